"""Offsets planned: never backwards, limits shared out, ranges cut without loss, first batches replayed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.client.ranges import Range
from quorate.spark import planning
from quorate.spark.options import Positions
from quorate.spark.planning import (
    StreamOffset,
    at_least,
    at_most,
    begin_of,
    cut_into_tasks,
    limited,
    read_stream_offset,
)


def test_an_offset_survives_its_json() -> None:
    offset = StreamOffset(
        {"b": {1: 5, 0: 7}, "a": {10: 1, 9: 2}},
        {"b": "ff", "a": "00"},
        is_initial=True,
        first_start={"a": {9: 0}},
    )
    assert read_stream_offset(json.loads(json.dumps(offset.to_json()))) == offset


def test_an_offset_is_always_written_alike() -> None:
    one = StreamOffset({"b": {1: 5, 0: 7}, "a": {0: 1}}, {"b": "ff", "a": "00"})
    other = StreamOffset({"a": {0: 1}, "b": {0: 7, 1: 5}}, {"a": "00", "b": "ff"})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_the_first_batch_begins_where_it_began() -> None:
    end = StreamOffset({"t": {0: 10}}, {}, first_start={"t": {0: 4}})
    asked_again = StreamOffset({"t": {0: 25}}, {}, is_initial=True)
    assert begin_of(asked_again, end) == {"t": {0: 4}}


def test_later_batches_begin_where_the_one_before_ended() -> None:
    first_end = StreamOffset({"t": {0: 10}}, {}, first_start={"t": {0: 4}})
    second_end = StreamOffset({"t": {0: 30}}, {})
    assert begin_of(first_end, second_end) == {"t": {0: 10}}


def test_a_leader_that_is_behind_takes_nothing_back() -> None:
    assert at_least({"t": {0: 5, 1: 9}}, {"t": {0: 8, 1: 2}}) == {"t": {0: 8, 1: 9}}


def test_a_partition_that_is_new_begins_at_zero_and_is_no_part_of_an_old_target() -> None:
    assert at_least({"t": {0: 5, 1: 9}}, {"t": {0: 5}}) == {"t": {0: 5, 1: 9}}
    assert at_most({"t": {0: 5, 1: 9}}, {"t": {0: 3}}) == {"t": {0: 3, 1: 0}}
    assert cut_into_tasks({"t": {0: 5}}, {"t": {0: 5, 1: 9}}) == [Range("t", 1, 0, 9)]


def test_a_limit_is_shared_in_proportion() -> None:
    begin: Positions = {"t": {0: 100, 1: 0, 2: 50}}
    end: Positions = {"t": {0: 400, 1: 100, 2: 50}}
    assert limited(begin, end, 40) == {"t": {0: 129, 1: 10, 2: 50}}
    assert limited(begin, end, 1) == {"t": {0: 101, 1: 0, 2: 50}}
    assert limited(begin, end, 400) == end
    each_has_one: Positions = {"t": dict.fromkeys(range(5), 1)}
    assert limited({}, each_has_one, 3) == {"t": {0: 1, 1: 1, 2: 1, 3: 0, 4: 0}}


positions = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.integers(0, 3), st.integers(0, 10_000), min_size=1),
    min_size=1,
)


@given(begin=positions, end=positions, offsets_max=st.integers(1, 500))
def test_a_limit_never_goes_back_never_beyond_and_always_on(
    begin: Positions, end: Positions, offsets_max: int
) -> None:
    end = at_least(end, begin)
    found = limited(begin, end, offsets_max)
    lengths = [
        found[topic][number] - begin.get(topic, {}).get(number, 0) for topic in end for number in end[topic]
    ]
    lefts = [
        end[topic][number] - begin.get(topic, {}).get(number, 0) for topic in end for number in end[topic]
    ]
    assert all(length >= 0 for length in lengths)
    assert all(found[topic][number] <= end[topic][number] for topic in end for number in end[topic])
    assert (sum(lengths) > 0) == (sum(lefts) > 0)
    assert sum(lengths) <= offsets_max
    if offsets_max >= len(lengths):
        assert all((length > 0) == (left > 0) for length, left in zip(lengths, lefts, strict=True))


# At most 80,000 offsets: tasks that are shorter would be more than there may be.
@given(begin=positions, end=positions, tasks_min=st.integers(0, 50), length_max=st.integers(8, 5_000))
def test_tasks_hold_every_offset_once(
    begin: Positions, end: Positions, tasks_min: int, length_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "TASK_OFFSETS_MAX", length_max)
        tasks = cut_into_tasks(begin, end, tasks_min)
    for topic, parts in end.items():
        for number, last in parts.items():
            first = begin.get(topic, {}).get(number, 0)
            edges = [
                (task.first, task.end) for task in tasks if (task.topic, task.partition) == (topic, number)
            ]
            assert all(low < high <= low + length_max for low, high in edges)
            assert [low for low, _ in edges] == [first, *(high for _, high in edges)][: len(edges)]
            assert (edges[-1][1] if edges else max(first, last)) == max(first, last)


def test_work_is_bounded_in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TASKS_MAX", 10)
    assert len(cut_into_tasks({}, {"t": {0: 10**12}})) == 10


def test_more_tasks_than_partitions_if_asked_for() -> None:
    assert len(cut_into_tasks({}, {"t": {0: 100, 1: 100}}, 8)) == 8
    assert cut_into_tasks({"t": {0: 7}}, {"t": {0: 7}}, 8) == []


def test_a_partition_that_came_later_begins_where_the_batch_says() -> None:
    start = StreamOffset({"t": {0: 10}}, {"t": "aa"})
    end = StreamOffset({"t": {0: 12, 1: 40}}, {"t": "aa"}, first_start={"t": {1: 30}})
    assert begin_of(start, end) == {"t": {0: 10, 1: 30}}


def test_offsets_of_a_topic_that_was_created_anew_are_not_its_own() -> None:
    start = StreamOffset({"t": {0: 1000}, "u": {0: 5}}, {"t": "aa", "u": "cc"})
    end = StreamOffset({"t": {0: 3}, "u": {0: 7}}, {"t": "bb", "u": "cc"}, first_start={"t": {0: 1}})
    assert begin_of(start, end) == {"t": {0: 1}, "u": {0: 5}}


def test_tasks_are_as_short_as_asked_for() -> None:
    tasks = cut_into_tasks({}, {"t": {0: 100, 1: 30}}, 0, 40)
    assert [(task.partition, task.end - task.first) for task in tasks] == [(0, 33), (0, 33), (0, 34), (1, 30)]
