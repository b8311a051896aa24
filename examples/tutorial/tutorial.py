# %% [markdown]
# # A pipeline, cell by cell
#
# Open this file as a notebook (VS Code, PyCharm and Jupytext take `# %%` for cells), or run it. It needs
# a cluster (`quorate up`) and `pip install '.[local]'`; the environment variable `QUORATE_BOOTSTRAP` says where.
#
# It can be run as often as you like: each run has names of its own, and takes away at its end what it has made.

# %%
import os
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from uuid import uuid4

from pyspark.sql import functions

from quorate.client import Cluster, TableGroup, create_group
from quorate.client.admin import create_topic, delete_topic
from quorate.spark.session import local_session
from quorate.tables import Column, CreateTable, Insert, Table, Type

BOOTSTRAP = os.environ.get("QUORATE_BOOTSTRAP", "127.0.0.1:9092")
RUN = uuid4().hex[:8]
ORDERS, REVENUE, CATALOG = f"orders-{RUN}", f"revenue-{RUN}", f"catalog-{RUN}"
to_end = ExitStack()
scratch = to_end.enter_context(TemporaryDirectory(prefix="quorate-tutorial-"))

# %% [markdown]
# ## Two topics and a table
#
# Each chooses how its copies agree.


# %%
def take_away() -> None:
    with Cluster(BOOTSTRAP) as cluster:
        for name in (ORDERS, REVENUE, CATALOG):
            delete_topic(cluster, name)


with Cluster(BOOTSTRAP) as cluster:
    create_topic(cluster, ORDERS, partitions_count=2, config={"quorate.replication": "raft"})
    create_topic(cluster, REVENUE, partitions_count=1, config={"quorate.replication": "isr"})
    create_group(cluster, CATALOG, replication="confirm")
to_end.callback(take_away)
with TableGroup(BOOTSTRAP, CATALOG) as catalog:
    prices = Table("prices", (Column("item", Type.STR), Column("cents", Type.INT)), key=("item",))
    catalog.execute(CreateTable(prices))
    catalog.execute(Insert("prices", ("nails", 3)), Insert("prices", ("hammer", 1250)))

# %% [markdown]
# ## Spark finds the rest by itself
#
# No jar, no registration. On a platform of yours, `spark` is there already.

# %%
spark = to_end.enter_context(local_session("tutorial"))

# %% [markdown]
# ## Events in
#
# A batch is written atomically. With a name and a number it is written once, however often this cell runs.

# %%
orders = spark.range(1000).selectExpr(
    "if(id % 10 = 0, 'hammer', 'nails') as key", "cast(1 + id % 5 as string) as value"
)
for _ in range(2):
    (
        orders.write.format("quorate")
        .options(bootstrap=BOOTSTRAP, topic=ORDERS, txnAppId=f"tutorial-{RUN}", txnVersion="1")
        .mode("append")
        .save()
    )
read = spark.read.format("quorate").options(bootstrap=BOOTSTRAP, subscribe=ORDERS).load()
assert read.count() == 1000

# %% [markdown]
# ## A table is a DataFrame, too
#
# As it is at one moment.

# %%
price_list = spark.read.format("quorate").options(bootstrap=BOOTSTRAP, table=f"{CATALOG}/prices").load()
price_list.show()

# %% [markdown]
# ## A stream: what was sold, and for how much
#
# Every batch that it writes is in once, for whoever reads what is committed, over restarts and killed nodes.

# %%
sold = (
    spark.readStream.format("quorate")
    .options(bootstrap=BOOTSTRAP, subscribe=ORDERS, startingOffsets="earliest")
    .load()
    .selectExpr("cast(key as string) as item", "cast(cast(value as string) as long) as pieces")
    .groupBy("item")
    .agg(functions.sum("pieces").alias("pieces"))
    .join(price_list, "item")
    .selectExpr("item as key", "cast(pieces * cents as string) as value")
)
query = (
    sold.writeStream.format("quorate")
    .options(bootstrap=BOOTSTRAP, topic=REVENUE, checkpointLocation=f"{scratch}/checkpoint")
    .outputMode("complete")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% [markdown]
# ## What came of it

# %%
revenue = spark.read.format("quorate").options(bootstrap=BOOTSTRAP, subscribe=REVENUE).load()
newest = revenue.groupBy(functions.col("key").cast("string").alias("item")).agg(
    functions.max_by(functions.col("value").cast("string"), "offset").alias("cents")
)
newest.show()
found = {row["item"]: int(row["cents"]) for row in newest.collect()}
assert found == {"hammer": 100 * 1250, "nails": 2900 * 3}

# %% [markdown]
# ## The end

# %%
to_end.close()
