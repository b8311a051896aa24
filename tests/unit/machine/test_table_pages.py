"""Scans in pieces: nothing is left out, nothing comes twice, and no piece is larger than it may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.tables import BadRead, Delete, Insert, Level, Replace, Row, Values
from tests.unit.machine.table_support import ACCOUNTS, EVENTS, Group


def accounts(count: int) -> Group:
    group = Group(ACCOUNTS, EVENTS)
    if count:
        group.append(*(Insert("accounts", (number, "x" * number, 0)) for number in range(count)))
        group.settle()
    return group


def all_pages(
    group: Group, first: Values | None = None, last: Values | None = None, *, limit: int, bytes_max: int
) -> list[list[Row]]:
    pages, after = [], None
    while True:
        rows, after = group.tables.page(
            "accounts", first, last, after=after, limit=limit, bytes_max=bytes_max
        )
        pages.append(rows)
        if after is None:
            return pages


@given(
    count=st.integers(0, 40),
    limit=st.integers(1, 12),
    bytes_max=st.integers(0, 400),
    ends=st.tuples(*[st.none() | st.integers(-1, 41).map(lambda number: (number,))] * 2),
)
def test_pages_joined_are_the_scan(
    count: int, limit: int, bytes_max: int, ends: tuple[Values | None, Values | None]
) -> None:
    group = accounts(count)
    pages = all_pages(group, *ends, limit=limit, bytes_max=bytes_max)
    assert [row for page in pages for row in page] == group.tables.scan("accounts", *ends)
    assert all(len(page) <= limit for page in pages)
    assert all(pages[:-1]), "every page but the last has something, or it would go on for ever"


def test_a_row_that_is_too_large_for_a_page_is_one() -> None:
    pages = all_pages(accounts(3), limit=10, bytes_max=0)
    assert [[row.values[0] for row in page] for page in pages] == [[0], [1], [2]]


def test_a_page_goes_on_behind_its_key_although_that_row_is_gone() -> None:
    group = accounts(5)
    rows, after = group.tables.page("accounts", None, None, after=None, limit=2, bytes_max=1000)
    assert after == (1,)
    group.append(Delete("accounts", (1,)), Delete("accounts", (2,)))
    group.settle()
    rows, after = group.tables.page("accounts", None, None, after=after, limit=2, bytes_max=1000)
    assert ([row.values[0] for row in rows], after) == ([3, 4], None)


def test_keys_of_several_columns_go_on_too() -> None:
    group = accounts(0)
    group.append(*(Insert("events", ("e", day, number, None)) for day in (1, 2) for number in (1, 2, 3)))
    group.settle()
    rows, after = group.tables.page("events", (1,), (2,), after=None, limit=4, bytes_max=1000)
    assert after == (2, 1)
    rows, after = group.tables.page("events", (1,), (2,), after=after, limit=4, bytes_max=1000)
    assert [row.values[1:3] for row in rows] == [(2, 2), (2, 3)]
    assert after is None


def test_pages_have_levels() -> None:
    group = accounts(1)
    group.append(Replace("accounts", (0, "new", 1)))
    how = {"after": None, "limit": 9, "bytes_max": 1000}
    (settled,), _ = group.tables.page("accounts", None, None, **how)  # type: ignore[arg-type]
    (local,), _ = group.tables.page("accounts", None, None, level=Level.LOCAL, **how)  # type: ignore[arg-type]
    assert (settled.values[1], local.values[1]) == ("", "new")


@pytest.mark.parametrize("after", [("x",), (1, 2), (None,), ()])
def test_behind_what_is_no_key_nothing_is_looked_for(after: Values) -> None:
    with pytest.raises(BadRead):
        accounts(1).tables.page("accounts", None, None, after=after, limit=1, bytes_max=1)
