"""Rates as a person writes them, whatever they are for."""

from __future__ import annotations

import pytest

from quorate.cli.rates import parse_rate
from quorate.cli.wrong import WrongUsage


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("20MiB/s", 20 << 20),
        ("500KiB/s", 500 << 10),
        ("1.5MB/s", 1_500_000),
        ("20mib", 20 << 20),
        ("50MiB", 50 << 20),
        ("50MB", 50_000_000),
        ("20M", 20_000_000),
        ("800k", 800_000),
        ("1.5KiB/s", 1536),
        ("2 GiB", 2 << 30),
        (" 3 Gi ", 3 << 30),
        ("1000000", 1_000_000),
        ("7B", 7),
        ("0", 0),
        ("off", -1),
        ("None", -1),
    ],
)
def test_a_rate_is_written_as_people_do(text: str, rate: int) -> None:
    assert parse_rate(text, "--rate") == rate


@pytest.mark.parametrize(
    "text",
    ["fast", "-5", "-1M", "1e9", "20XiB/s", "5T", "5iB", "", "9999999GiB/s", "50 MiB per second", "9" * 400],
)
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(WrongUsage, match=rf"^--throttle '{text}': .*(or|write) off: no limit$"):
        parse_rate(text, "--throttle")


@pytest.mark.parametrize("text", ["0", "0.1", "0KiB"])
def test_what_would_never_end_is_refused_where_it_is_to(text: str) -> None:
    with pytest.raises(WrongUsage, match="as in 20MiB/s or 800k"):
        parse_rate(text, "--rate", least=1)
    assert parse_rate("off", "--rate", least=1) == -1
