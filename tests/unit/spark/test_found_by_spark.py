"""What Spark finds by itself; where the source cannot be imported, whoever asks for it hears why."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
from pyspark.sql.datasource import DataSource


def found() -> type[DataSource]:
    sys.modules.pop("pyspark_quorate", None)
    source: type[DataSource] = importlib.import_module("pyspark_quorate").DefaultSource
    return source


def test_the_source_is_found_under_its_name() -> None:
    assert found().name() == "quorate"
    assert found().__name__ == "QuorateSource"


def test_a_spark_that_lacks_something_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    older = ModuleType("pyspark.sql.streaming.datasource")
    monkeypatch.setitem(sys.modules, older.__name__, older)
    monkeypatch.delitem(sys.modules, "quorate.spark.source", raising=False)
    source = found()
    assert source.name() == "quorate"
    with pytest.raises(RuntimeError, match=r"needs Spark 4\.2 or newer .*ReadAllAvailable") as raised:
        source({})
    assert "\n" not in str(raised.value)
    monkeypatch.undo()
    assert found().__name__ == "QuorateSource"
