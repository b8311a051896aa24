"""Where a stream of a table's changes begins."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from quorate.spark.options import WrongOption, parse_table_options
from quorate.spark.tables import TableStreamReader
from quorate.wire.tables import Consistency, Described

ENDS = 41


class Group:
    def describe(self, consistency: Consistency) -> Described:
        return Described((), "raft", leader=1, epoch=1, offset=ENDS, group_id=b"\x0a" * 16)


def begun(monkeypatch: pytest.MonkeyPatch, starting: str) -> object:
    monkeypatch.setattr(TableStreamReader, "group", Group())
    given = {"bootstrap": "127.0.0.1:1", "table": "bank/accounts", "readChangeFeed": "true"}
    options = parse_table_options({**given, "startingOffsets": starting}, writes=False)
    return TableStreamReader(options, StructType()).initialOffset()["next"]


def test_an_offset_is_up_to_the_one_that_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(monkeypatch, "0") == 0
    assert begun(monkeypatch, "latest") == ENDS + 1
    assert begun(monkeypatch, str(ENDS + 1)) == ENDS + 1
    with pytest.raises(WrongOption, match="the log of bank ends at offset 41, before 43"):
        begun(monkeypatch, str(ENDS + 2))
