"""What a page shows is compared with what is printed: only what varies may be another thing."""

from __future__ import annotations

import pytest

from tests.cluster.typed_pages import Block, Shown, blocks_of, expect_as_shown, rewritten

STATUS = [
    " node   address         state   metadata   behind   copies   leads",
    "    1   10.0.0.1:9092   up      leads                    3       1",
    "    2   10.0.0.2:9092   up      votes           0        3       1",
]
PAGE = """# A page

```console
$ quorate one
1
```

```
$ quorate two
```

```console elsewhere
$ quorate three
$ quorate four
4
```
"""


def block(*rows: str) -> Block:
    return Block("", [Shown("quorate cluster status", list(rows))])


def test_who_leads_and_how_wide_a_table_is_may_differ() -> None:
    other = [
        " node   address           state   metadata   behind   copies   leads",
        " ──────────────────────────────────────────────────────────────────",
        "    1   10.0.0.1:9092     up      votes          12        3       0",
        "    2   10.0.0.2:9092     up      leads                    3       2",
    ]
    expect_as_shown(block(*STATUS), block(*other))


@pytest.mark.parametrize(
    ("what", "instead"),
    [("10.0.0.2", "10.0.0.3"), ("   2   10", "   3   10"), ("3       1", "4       1"), ("up ", "down ")],
)
def test_another_node_count_or_state_is_seen(what: str, instead: str) -> None:
    other = [row.replace(what, instead) for row in STATUS]
    assert other != STATUS
    with pytest.raises(AssertionError):
        expect_as_shown(block(*STATUS), block(*other))


def test_another_order_of_lines_is_seen() -> None:
    with pytest.raises(AssertionError):
        expect_as_shown(block(*STATUS), block(STATUS[0], STATUS[2], STATUS[1]))


def test_blocks_are_found_by_scene_and_put_back_where_they_were() -> None:
    first, second = blocks_of(PAGE)
    assert first == Block("", [Shown("quorate one", ["1"])])
    assert second == Block("elsewhere", [Shown("quorate three", []), Shown("quorate four", ["4"])])
    assert rewritten(PAGE, [first, second]) == PAGE
