"""Reading a topic as a batch, beside a Python source that yields Arrow batches which it made beforehand.

Both give Spark the same columns of 100-byte records in as many tasks, and Spark makes rows of them and drops these.
Ours comes from three nodes on the same cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quorate.bench.report import Say, at_least, figure, ratios
from quorate.bench.spark_stage import REPETITIONS, VALUE_BYTES, Found, records_on_spark
from quorate.bench.turns import in_turns, seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def reads(place: Path, quick: bool, say: Say) -> Found:
    from quorate.bench.spark_ready import READY, Ready

    rows_count = 400_000 if quick else 2_000_000
    with records_on_spark(place, rows_count, say) as (session, where):
        session.dataSource.register(Ready)
        ours = session.read.format("quorate").options(**where).load()
        # A partition that is long is read by several.
        tasks_count = ours.rdd.getNumPartitions()
        shape = {"rows": str(rows_count), "tasks": str(tasks_count), "bytes": str(VALUE_BYTES)}
        ready = session.read.format(READY).options(**shape).load()
        assert ours.schema == ready.schema
        assert ready.rdd.getNumPartitions() == tasks_count
        assert ours.count() == ready.count() == rows_count
        sides = {
            "from memory": lambda: seconds(lambda: _dropped(ready)),
            "from the cluster": lambda: seconds(lambda: _dropped(ours)),
        }
        in_turns(sides, 1)
        taken = in_turns(sides, 1 if quick else REPETITIONS, lambda text: say(f"read: {text}"))
    rates = [rows_count / took_s for took_s in taken["from the cluster"]]
    beside = ratios(taken["from memory"], taken["from the cluster"])
    return [figure("read: records a second", "", rates)], [
        at_least(0.5, "read: beside a source with ready Arrow batches", "", beside)
    ]


def _dropped(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
