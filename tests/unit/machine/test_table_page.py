"""The example of docs/TABLES.md is run, and its limits are the real ones."""

from __future__ import annotations

import re
from pathlib import Path

from quorate import tables as table_types
from quorate.wire import tables as wire

PAGE = (Path(__file__).parents[3] / "docs" / "TABLES.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    """Those that need a cluster are run by tests/cluster/test_table_command.py."""
    examples = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (example,) = [example for example in examples if "quorate.machine" in example]
    exec(compile(example, "docs/TABLES.md", "exec"), {"__name__": "example"})


def test_the_limits_are_the_real_ones() -> None:
    limits = PAGE[PAGE.index("## Limits") :]
    for bound in (
        table_types.NAME_CHARACTERS_MAX,
        table_types.COLUMNS_COUNT_MAX,
        table_types.TABLES_COUNT_MAX,
        table_types.OPERATIONS_COUNT_MAX,
        table_types.CHANGES_COUNT_MAX,
        table_types.KEY_LENGTH_MAX,
        table_types.SCAN_ROWS_MAX,
        table_types.RESULTS_REMEMBERED_MAX,
        wire.PAGE_ROWS_MAX,
    ):
        assert re.search(rf"\b{bound:,}\b", limits), f"{bound:,} is not among the limits"
    assert table_types.TRANSACTION_BYTES_MAX == 16 << 20
    assert table_types.ROW_BYTES_MAX == wire.PAGE_BYTES_MAX == 1 << 20
