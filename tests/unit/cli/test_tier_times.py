"""How often `quorate tier` looks: as Spark reads times, or one line."""

from __future__ import annotations

import pytest

from quorate.cli.tier import spelled
from quorate.cli.wrong import WrongUsage


@pytest.mark.parametrize(
    ("every", "said"),
    [(None, None), ("30s", "30 seconds"), ("5 min", "5 minutes"), ("999999h", "999999 hours")],
)
def test_times_are_spelled_as_spark_has_them(every: str | None, said: str | None) -> None:
    assert spelled(every) == said


@pytest.mark.parametrize("every", ["", "5", "-1s", "1.5h", "٣s", "99999999999999999999min"])
def test_what_spark_cannot_read_is_told_before_it_is_asked(every: str) -> None:
    with pytest.raises(WrongUsage, match="write a time, as in 30s or 5min"):
        spelled(every)
