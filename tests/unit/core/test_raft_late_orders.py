"""Orders to change membership that are older than what was ordered since."""

from __future__ import annotations

from quorate.core.effects import Outcome
from quorate.core.entry import Membership
from tests.unit.core.kit import N1, N2, N4, THREE, Bench, catch_up, change, leader, replies


def test_an_order_older_than_what_was_ordered_since_is_refused() -> None:
    """A leader whose image is behind may give one; the group has been told better by another."""
    bench = leader(voters=THREE)
    change(bench, *THREE, request=1, version=9)
    settle_membership(bench)
    assert bench.replica.membership == Membership(THREE, version=9), "the same ensemble, by a newer order"
    ordered = change(bench, N1, N2, N4, request=2, version=8)
    assert [(reply.outcome, reply.why) for reply in replies(ordered)] == [
        (Outcome.REFUSED, "a newer change was ordered before")
    ]
    assert bench.replica.membership == Membership(THREE, version=9)


def test_the_same_order_again_changes_nothing() -> None:
    bench = leader(voters=THREE)
    change(bench, *THREE, request=1, version=9)
    settle_membership(bench)
    head = bench.replica.log.head
    ordered = change(bench, *THREE, request=2, version=9)
    assert [reply.outcome for reply in replies(ordered)] == [Outcome.SETTLED]
    assert bench.replica.log.head == head


def settle_membership(bench: Bench) -> None:
    catch_up(bench, N2)
    assert bench.replica.membership_at == bench.replica.commit
