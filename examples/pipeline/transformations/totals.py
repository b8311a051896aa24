"""Events of a topic, their totals as a table, and each event, enriched, in another topic, exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import sum  # noqa: A004

spark = SparkSession.active()
BOOTSTRAP = spark.conf.get("spark.quorate.bootstrap")


@dp.table
def events() -> DataFrame:
    """As they come: `{"user": "ann", "amount": 1.5}`."""
    return (
        spark.readStream.format("quorate")
        .option("bootstrap", BOOTSTRAP)
        .option("subscribe", "events")
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "user string, amount double")
        .load()
        .selectExpr("value.user", "value.amount", "timestamp")
    )


@dp.materialized_view
def totals() -> DataFrame:
    return spark.read.table("events").groupBy("user").agg(sum("amount").alias("amount"))


dp.create_sink("large", "quorate", {"bootstrap": BOOTSTRAP, "topic": "large"})


@dp.append_flow(target="large")
def large_events() -> DataFrame:
    """Each event that is worth it, once for whoever reads what is committed."""
    return (
        spark.readStream.table("events")
        .where("amount >= 100")
        .selectExpr("user as key", "to_json(struct(*)) as value")
    )
