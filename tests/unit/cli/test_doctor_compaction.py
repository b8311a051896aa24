"""What `quorate doctor` says of copies that were compacted otherwise."""

from __future__ import annotations

from tests.unit.cli.test_doctor import NOW_MS, TRIO, found, to_be_compacted, well


def test_the_copy_that_was_compacted_otherwise_is_to_be_made_anew_where_most_are_alike() -> None:
    two = found(to_be_compacted(well(), ((TRIO[0], 1), (TRIO[1], 2)), NOW_MS))["compaction-differs"]
    assert two.commands == ()
    three = found(to_be_compacted(well(), ((TRIO[0], 1), (TRIO[1], 2), (TRIO[2], 1)), NOW_MS))
    assert three["compaction-differs"].commands == (
        "quorate topic remove t/0 --node 2",
        "quorate topic add t/0 --node 2",
    )
    leads = found(to_be_compacted(well(), ((TRIO[0], 2), (TRIO[1], 1), (TRIO[2], 1)), NOW_MS))
    assert leads["compaction-differs"].commands[0] == "quorate topic transfer t/0"
