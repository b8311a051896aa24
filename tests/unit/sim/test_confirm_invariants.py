"""The invariants of `confirm`: each is broken once, by a replica that lies, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core import commands, confirm
from quorate.core.confirm.invariants import ConfirmInvariants
from quorate.core.confirm.messages import AppendResponse, GoneResponse, Row, Says
from quorate.core.effects import Commit, Cut, Outcome, Reply, SaveState
from quorate.core.entry import (
    Confirm,
    Control,
    EntryId,
    Flag,
    Header,
    Kind,
    Membership,
    Promote,
    Quorums,
    Rollback,
)
from quorate.core.events import Commanded, Event, Received, TimePassed
from quorate.sim.invariants import Invariants
from tests.unit.sim.test_invariants import VOTERS, Puppet, expect


class Player(Puppet):
    """A puppet that plays a replica of `confirm`."""

    loose = False

    def __init__(self, invariants: Invariants, node: int) -> None:
        super().__init__(invariants, node)
        self.config: Any = confirm.Config(self.me, VOTERS)

    def control(self, control: Control) -> Header:
        header = Header(self.epoch, self.log.head.offset + 1, kind=Kind.CONTROL, control=control)
        self.append(header)
        return header

    def take(self, *, synchronous: bool = True, count: int = 1) -> Header:
        flags = Flag.SYNCHRONOUS if synchronous else 0
        offset = self.log.head.offset + 1
        header = Header(self.epoch, offset, count, 100, Kind.RECORDS, flags, 100 + offset)
        self.append(header)
        return header

    def answer(self, outcome: Outcome, offset: int, event: Event | None = None, request: int = 1) -> None:
        self.step(event or TimePassed(), Reply(request, outcome, offset, self.epoch, self.me.node))

    def command(self, command: commands.Command) -> None:
        self.step(Commanded(command))


@pytest.fixture
def trio() -> list[Player]:
    """The first leads, and its PROMOTE is settled."""
    invariants = Invariants(1, ConfirmInvariants)
    players = [Player(invariants, node) for node in (1, 2, 3)]
    for player in players:
        player.start()
    leader = players[0]
    leader.lead(1)
    leader.control(Promote(1, 0))
    for player in players[1:]:
        player.epoch = 1
    spread(players)
    leader.settle(0)
    return players


def spread(players: list[Player], *nodes: int) -> None:
    """What the leader has is flushed there, and on these nodes."""
    leader = players[0]
    leader.flush()
    for node in nodes or (2, 3):
        player = players[node - 1]
        rest = [header for header in leader.log.window if header.offset > player.log.head.offset]
        player.append(*rest)
        player.flush()


def room(players: list[Player]) -> ConfirmInvariants:
    found = players[0].invariants.room
    assert isinstance(found, ConfirmInvariants)
    return found


def test_a_leader_that_confirms_and_rolls_back_breaks_nothing(trio: list[Player]) -> None:
    leader, two, _ = trio
    first = leader.take()
    spread(trio)
    leader.settle(1)
    leader.control(Confirm(first.id))
    spread(trio)
    leader.settle(2)
    void = leader.take(count=3)
    leader.control(Rollback(void.offset))
    spread(trio)
    leader.settle(6)
    leader.answer(Outcome.ROLLED_BACK, void.offset)
    two.settle(6)
    assert [room(trio).is_void(0, offset) for offset in range(7)] == [False] * 3 + [True] * 3 + [False]
    assert (room(trio).confirms, room(trio).rollbacks, room(trio).promotions) == (1, 1, 1)
    assert room(trio).undone == 3, "once on each replica"


# ---- what is decided ----


@pytest.mark.behaviour("D8")
def test_replica_that_does_not_know_what_is_void(trio: list[Player]) -> None:
    leader, two, _ = trio
    void = leader.take()
    leader.control(Rollback(void.offset))
    spread(trio)
    leader.settle(2)
    two.log.controls = [header for header in two.log.controls if type(header.control) is not Rollback]
    two.commit = 2
    with expect("decided-twice"):
        publish(two, 2)


@pytest.mark.behaviour("D8")
def test_replica_that_takes_for_void_what_is_valid(trio: list[Player]) -> None:
    leader, two, _ = trio
    leader.take()
    spread(trio)
    leader.settle(1)
    two.log.controls.append(Header(1, 2, kind=Kind.CONTROL, control=Rollback(1)))
    two.commit = 1
    with expect("decided-twice"):
        publish(two, 1)


def publish(player: Player, offset: int) -> None:
    player.step(TimePassed(), Commit(offset))


@pytest.mark.behaviour("TT-6")
def test_confirm_of_what_is_not_settled(trio: list[Player]) -> None:
    first = trio[0].take()
    with expect("confirm-unsettled"):
        trio[0].control(Confirm(first.id))


@pytest.mark.behaviour("TT-6")
def test_confirm_of_another_entry(trio: list[Player]) -> None:
    with expect("confirm-unsettled"):
        trio[0].control(Confirm(EntryId(3, 0)))


@pytest.mark.behaviour("D8")
def test_confirm_of_what_was_rolled_back(trio: list[Player]) -> None:
    leader = trio[0]
    void = leader.take()
    leader.control(Rollback(void.offset))
    spread(trio)
    leader.settle(2)
    with expect("confirm-unsettled"):
        leader.control(Confirm(void.id))


@pytest.mark.behaviour("TT-5")
def test_one_confirm_twice(trio: list[Player]) -> None:
    leader = trio[0]
    first = leader.take()
    spread(trio)
    leader.settle(1)
    leader.control(Confirm(first.id))
    with expect("confirm-unsettled"):
        leader.control(Confirm(first.id))


@pytest.mark.behaviour("TT-10")
def test_rollback_of_what_is_settled(trio: list[Player]) -> None:
    leader = trio[0]
    first = leader.take()
    spread(trio)
    leader.settle(1)
    with expect("rollback-settled"):
        leader.control(Rollback(first.offset))


# ---- what is taken ----


@pytest.mark.behaviour("D6")
def test_epoch_that_does_not_begin_with_promote(trio: list[Player]) -> None:
    trio[1].lead(2)
    with expect("first-not-promote"):
        trio[1].take()


@pytest.mark.behaviour("TT-20")
def test_records_before_promote_is_settled(trio: list[Player]) -> None:
    trio[1].lead(2)
    trio[1].control(Promote(2, 1))
    with expect("writable-early"):
        trio[1].take()


@pytest.mark.behaviour("TT-10")
def test_records_behind_an_open_rollback(trio: list[Player]) -> None:
    void = trio[0].take()
    trio[0].control(Rollback(void.offset))
    with expect("writable-closed"):
        trio[0].take()


@pytest.mark.behaviour("TT-21", "TT-24")
@pytest.mark.parametrize("order", [commands.SetReadOnly(5, True), commands.Demote(5)], ids=str)
def test_records_of_a_leader_that_takes_none(trio: list[Player], order: commands.Command) -> None:
    trio[0].command(order)
    with expect("writable-closed"):
        trio[0].take()


def test_leader_that_is_writable_again_takes_records(trio: list[Player]) -> None:
    trio[0].command(commands.SetReadOnly(5, True))
    trio[0].command(commands.SetReadOnly(6, False))
    trio[0].take()


# ---- what is answered ----


@pytest.mark.behaviour("D8")
def test_client_that_hears_of_a_rollback_before_it_is_settled(trio: list[Player]) -> None:
    void = trio[0].take()
    trio[0].control(Rollback(void.offset))
    with expect("rollback-early"):
        trio[0].answer(Outcome.ROLLED_BACK, void.offset)


@pytest.mark.behaviour("D8")
def test_person_who_hears_of_a_rollback_before_it_is_settled(trio: list[Player]) -> None:
    void = trio[0].take()
    trio[0].command(commands.RollBack(9))
    trio[0].control(Rollback(void.offset))
    with expect("rollback-early"):
        trio[0].answer(Outcome.SETTLED, 0, request=9)


@pytest.mark.behaviour("TT-37")
def test_asynchronous_one_answered_before_the_synchronous_one_ahead_of_it(trio: list[Player]) -> None:
    leader = trio[0]
    leader.take()
    later = leader.take(synchronous=False)
    leader.flush()
    with expect("async-overtakes"):
        leader.answer(Outcome.FLUSHED, later.offset)


@pytest.mark.behaviour("TT-34")
def test_asynchronous_one_answered_before_it_is_flushed(trio: list[Player]) -> None:
    later = trio[0].take(synchronous=False)
    with expect("async-overtakes"):
        trio[0].answer(Outcome.FLUSHED, later.offset)


@pytest.mark.behaviour("TT-10")
def test_asynchronous_one_answered_while_it_is_being_rolled_back(trio: list[Player]) -> None:
    void = trio[0].take(synchronous=False)
    trio[0].control(Rollback(void.offset))
    trio[0].flush()
    with expect("async-overtakes"):
        trio[0].answer(Outcome.FLUSHED, void.offset)


@pytest.mark.behaviour("TT-2")
def test_synchronous_one_answered_when_it_is_flushed(trio: list[Player]) -> None:
    first = trio[0].take()
    trio[0].flush()
    with expect("async-overtakes"):
        trio[0].answer(Outcome.FLUSHED, first.offset)


# ---- who counts ----


@pytest.mark.behaviour("D9")
@pytest.mark.parametrize(
    "message",
    [
        Says(1, Row(1, 2, aye=True)),
        GoneResponse(1, 7, True),
        AppendResponse(1, True, 0, 0, 0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_loose_replica_that_counts(trio: list[Player], message: Any) -> None:
    trio[2].loose = True
    save(trio[2], 1)
    with expect("loose-counts"):
        trio[2].say(1, message)


def save(player: Player, epoch: int) -> None:
    player.step(TimePassed(), SaveState(player.order(), confirm.SavedState(epoch)))
    player.flush()


@pytest.mark.behaviour("D9")
def test_loose_replica_that_is_counted(trio: list[Player]) -> None:
    leader = trio[0]
    leader.take()
    spread(trio, 3)
    loose = AppendResponse(1, True, 1, 1, 0, loose=True)
    leader.step(Received(trio[2].me, loose))
    with expect("settled-minority"):
        leader.settle(1)


@pytest.mark.behaviour("D9")
def test_what_was_counted_before_it_was_cut_loose_stays_counted(trio: list[Player]) -> None:
    leader, _, three = trio
    leader.take()
    spread(trio, 3)
    three.loose = True
    three.log.cut(EntryId(1, 0))
    three.step(Commanded(commands.CutLoose(4)), Cut(three.order(), EntryId(1, 0)))
    leader.settle(1)


@pytest.mark.behaviour("D6")
def test_two_ayes_in_one_epoch(trio: list[Player]) -> None:
    three = trio[2]
    for node in (1, 2):
        trio[node - 1].epoch = 2
        room(trio)._asked[0, node, 2] = {1, 2, 3}
    three.epoch = 2
    three.step(TimePassed(), SaveState(three.order(), confirm.SavedState(2, VOTERS[0])))
    three.flush()
    three.say(1, Says(2, Row(2, 1, aye=True)))
    with expect("vote-once"):
        three.say(2, Says(2, Row(2, 2, aye=True)))


@pytest.mark.behaviour("TT-12")
def test_epoch_that_nobody_ordered_and_nobody_missed_the_last_one(trio: list[Player]) -> None:
    two = trio[1]
    two.epoch, two.role.name = 2, "candidate"
    with expect("epoch-inflated"):
        two.step(TimePassed())


@pytest.mark.behaviour("TT-12", "TT-15")
def test_epoch_of_one_that_was_ordered_to_stand(trio: list[Player]) -> None:
    two = trio[1]
    two.epoch, two.role.name = 2, "candidate"
    two.command(commands.Promote(3))


@pytest.mark.behaviour("D10")
@pytest.mark.parametrize("quorums", [Quorums(1, 2), Quorums(3, 1)], ids=str)
def test_quorums_that_need_not_meet(trio: list[Player], quorums: Quorums) -> None:
    joint = Membership(VOTERS, outgoing=VOTERS, quorums=quorums)
    with expect("change-unsafe"):
        trio[0].control(joint)


@pytest.mark.behaviour("D10")
def test_other_quorums_at_once(trio: list[Player]) -> None:
    with expect("change-unsafe"):
        trio[0].control(Membership(VOTERS, quorums=Quorums(3, 2)))


@pytest.mark.behaviour("TT-40")
def test_settled_on_fewer_than_the_commit_quorum(trio: list[Player]) -> None:
    leader = trio[0]
    joint = Membership(VOTERS, outgoing=VOTERS, quorums=Quorums(3, 2))
    leader.control(joint)
    spread(trio)
    leader.settle(1)
    leader.control(Membership(VOTERS, quorums=Quorums(3, 2)))
    spread(trio, 2)
    with expect("settled-minority"):
        leader.settle(2)
