"""The epoch index: which epoch wrote which offsets."""

from __future__ import annotations

import pytest

from quorate.core.entry import NOWHERE, EntryId
from quorate.core.epochs import EpochIndex
from tests.unit.core.kit import at


def index(*starts: tuple[int, int], base: EntryId = NOWHERE) -> EpochIndex:
    return EpochIndex(base, starts)


def test_an_offset_belongs_to_the_last_epoch_that_began_at_or_below_it() -> None:
    epochs = index((1, 0), (3, 4))
    assert [epochs.at(offset) for offset in (0, 3, 4, 9)] == [1, 1, 3, 3]


def test_below_the_first_start_the_base_answers() -> None:
    assert index((3, 7), base=at("2-4")).at(5) == 2


def test_a_cut_forgets_epochs_that_began_above_it() -> None:
    epochs = index((1, 0), (3, 4), (5, 6))
    epochs.cut(4)
    assert epochs.starts() == ((1, 0), (3, 4))


def test_a_removed_prefix_leaves_the_epoch_of_the_base() -> None:
    epochs = index((1, 0), (3, 4), (5, 9))
    epochs.remove_prefix(at("3-6"))
    assert epochs.starts() == ((5, 9),)
    assert epochs.at(7) == 3


def test_a_repaired_epoch_takes_its_place_between_its_neighbours() -> None:
    epochs = index((1, 0), (4, 8))
    epochs.insert(2, 3)
    epochs.insert(4, 6)
    assert epochs.starts() == ((1, 0), (2, 3), (4, 6))


@pytest.mark.behaviour("OX-4")
def test_entry_ids_compare_by_epoch_then_offset() -> None:
    assert at("1-2") < at("2-1") < at("2-2")


def test_nothing_above_the_last_shared_position_can_be_shared() -> None:
    epochs = index((1, 0), (2, 4), (5, 6))
    head = at("5-9")
    assert epochs.last_shared(at("5-20"), head) == at("5-9")
    assert epochs.last_shared(at("3-8"), head) == at("2-5")
    assert epochs.last_shared(at("1-2"), head) == at("1-2")
    assert epochs.last_shared(NOWHERE, head) == NOWHERE


def test_epochs_never_fall_along_a_log() -> None:
    with pytest.raises(AssertionError):
        index((3, 0)).append(2, 1)
