"""The invariants: each is broken once, by a replica that lies, and says so."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest

from quorate.core.effects import Append, Commit, Cut, Effect, Outcome, Reply, SaveState, Send
from quorate.core.entry import NOWHERE, EntryId, Header, Kind, Member, Membership, NoOp
from quorate.core.events import Event, Loaded, Persisted, Recovered, Started, TimePassed
from quorate.core.invariant import Violated
from quorate.core.log import LogView
from quorate.core.raft import Config, SavedState
from quorate.core.raft.invariants import RaftInvariants
from quorate.core.raft.messages import AppendResponse, VoteRequest, VoteResponse
from quorate.sim.invariants import Invariants

VOTERS = (Member(1, 1), Member(2, 1), Member(3, 1))


class Reading:
    """Of a leader: what lease it believes to have."""

    lease_until = 0.0
    may_lease = True


class HandingOver:
    heir = 0


class Role:
    name = "follower"

    def __init__(self) -> None:
        self.reading = Reading()
        self.handing_over = HandingOver()


class Puppet:
    """A replica that does and says what a test wants."""

    def __init__(self, invariants: Invariants, node: int, *, incarnation: int = 1) -> None:
        self.invariants = invariants
        self.me = Member(node, incarnation)
        self.config = Config(self.me, VOTERS)
        self.membership = Membership(VOTERS)
        self.faulty = False
        self.role = Role()
        self.epoch = 0
        self.commit = -1
        self.barrier = None
        self.leads_from: int | None = None
        self.generation = 0
        self.log = LogView(Recovered(base=NOWHERE, head=NOWHERE, epochs=()))
        self.durable = NOWHERE
        self.ios = 0

    def start(self, recovered: Recovered | None = None) -> None:
        if recovered is None:
            recovered = Recovered(base=NOWHERE, head=NOWHERE, epochs=())
        self.ios = 0
        self.role.name = "follower"
        self.log = LogView(recovered)
        self.durable = recovered.head
        self.step(Started(recovered))

    def step(self, event: Event, *effects: Effect) -> None:
        self.invariants.stepped(self.me.node, 0, self, event, list(effects))

    def order(self) -> int:
        self.ios += 1
        return self.ios

    def append(self, *headers: Header) -> None:
        self.log.append(headers)
        self.goes_by_its_log()
        self.step(TimePassed(), Append(self.order(), headers))

    def goes_by_its_log(self) -> None:
        newest = self.log.newest(Membership)
        control = newest.control if newest is not None else None
        self.membership = control if isinstance(control, Membership) else Membership(VOTERS)

    def cut(self, to: EntryId) -> None:
        self.log.cut(to)
        self.goes_by_its_log()
        self.step(TimePassed(), Cut(self.order(), to))

    def flush(self) -> None:
        self.durable = self.log.head
        self.step(Persisted(self.ios))

    def lead(self, epoch: int) -> None:
        """Elected by everybody."""
        room = self.invariants.room
        if room is not None:
            everybody = [shadow.replica.me for shadow in self.invariants.shadows.values()]
            room._votes.update({(0, member, epoch): self.me.node for member in everybody})
        self.epoch = epoch
        self.role.name = "leader"
        self.step(TimePassed())

    def settle(self, offset: int, *effects: Effect) -> None:
        self.commit = offset
        self.step(TimePassed(), *effects)

    def say(self, to: int, message: Any) -> None:
        self.step(TimePassed(), Send(to, message))


def entry(epoch: int, offset: int, crc: int = 7) -> Header:
    return Header(epoch, offset, 1, 100, Kind.RECORDS, 0, crc)


def noop(epoch: int, offset: int) -> Header:
    return Header(epoch, offset, kind=Kind.CONTROL, control=NoOp(1))


def expect(invariant: str) -> AbstractContextManager[object]:
    return pytest.raises(Violated, match=f"^{invariant}: ")


@pytest.fixture
def trio() -> list[Puppet]:
    """Three replicas of one partition, watched without a protocol's own invariants."""
    return group(Invariants(1))


@pytest.fixture
def rafts() -> list[Puppet]:
    return group(Invariants(1, RaftInvariants))


def group(invariants: Invariants) -> list[Puppet]:
    puppets = [Puppet(invariants, node) for node in (1, 2, 3)]
    for puppet in puppets:
        puppet.start()
    return puppets


def test_every_settled_entry_is_told_once_in_the_order_of_the_log(trio: list[Puppet]) -> None:
    one, two, _ = trio
    told: list[tuple[int, int, int]] = []
    one.invariants.on_settled = lambda *entry: told.append(entry)
    pair = Header(1, 1, 2, 100, Kind.RECORDS, 0, 8)
    for puppet in (one, two):
        puppet.append(noop(1, 0), pair, entry(1, 3, crc=9))
    one.settle(2)
    assert told == [(0, 0, 0), (0, 1, 8)]
    two.settle(3)
    one.settle(3)
    assert told[2:] == [(0, 3, 9)]


# ---- of every protocol ----


def test_two_leaders_of_one_epoch(trio: list[Puppet]) -> None:
    trio[0].lead(1)
    trio[1].lead(2)
    with expect("one-leader"):
        trio[2].lead(1)


def test_one_entry_id_with_two_contents(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0, crc=7))
    trio[1].append(entry(1, 0, crc=7))
    with expect("log-matching"):
        trio[2].append(entry(1, 0, crc=8))


def test_one_entry_behind_two_predecessors(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0), entry(3, 1))
    with expect("log-matching"):
        trio[1].append(entry(2, 0), entry(3, 1))


def test_entry_that_nobody_appended_comes_out_of_a_log(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0))
    trio[0].step(Loaded(1, (entry(1, 0),)))
    with expect("log-matching"):
        trio[0].step(Loaded(2, (entry(1, 1),)))


def test_settled_offset_with_two_entries(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0), entry(1, 1))
    trio[0].settle(1)
    trio[1].append(entry(1, 0), entry(2, 1))
    with expect("state-machine-safety"):
        trio[1].settle(1)


def test_settled_entry_is_cut(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0), entry(1, 1))
    trio[0].settle(1)
    with expect("state-machine-safety"):
        trio[0].cut(EntryId(1, 0))


def test_new_leader_without_a_settled_entry(trio: list[Puppet]) -> None:
    trio[0].lead(1)
    trio[0].append(entry(1, 0), entry(1, 1))
    trio[0].settle(1)
    trio[1].append(entry(1, 0))
    with expect("leader-completeness"):
        trio[1].lead(2)


def test_leader_elected_late_need_not_have_what_a_later_one_settled(trio: list[Puppet]) -> None:
    trio[0].lead(3)
    trio[0].append(entry(3, 0))
    trio[0].settle(0)
    trio[1].lead(2)


def test_commit_falls(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0), entry(1, 1))
    trio[0].settle(1)
    with expect("commit-regressed"):
        trio[0].settle(0)


def test_commit_passes_the_end_of_the_log(trio: list[Puppet]) -> None:
    with expect("commit-above-log"):
        trio[0].settle(0)


def test_unflushed_entry_is_shown_to_readers(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0), entry(1, 1))
    trio[0].flush()
    trio[0].append(entry(1, 2))
    trio[0].settle(2, Commit(1))
    with expect("published-early"):
        trio[0].settle(2, Commit(2))


def test_success_is_told_before_it_is_settled(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0), entry(1, 1))
    trio[0].settle(0, Reply(1, Outcome.SETTLED, offset=0))
    with expect("acknowledged-unsettled"):
        trio[0].settle(0, Reply(2, Outcome.SETTLED, offset=1))


def test_epoch_falls(trio: list[Puppet]) -> None:
    trio[0].lead(3)
    trio[0].epoch = 2
    with expect("epoch-regressed"):
        trio[0].step(TimePassed())


def test_flushed_epoch_is_forgotten_over_a_restart(trio: list[Puppet]) -> None:
    trio[0].epoch = 3
    trio[0].step(TimePassed(), SaveState(trio[0].order(), SavedState(3)))
    trio[0].flush()
    trio[0].epoch = 2
    with expect("epoch-regressed"):
        trio[0].start(Recovered(base=NOWHERE, head=NOWHERE, epochs=(), state=SavedState(2)))


def test_flushed_entry_is_forgotten_over_a_restart(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0), entry(1, 1))
    trio[0].flush()
    with expect("durable-lost"):
        trio[0].start(Recovered(base=NOWHERE, head=EntryId(1, 0), epochs=((1, 0),), headers=(entry(1, 0),)))


def test_unflushed_entry_may_be_forgotten_over_a_restart(trio: list[Puppet]) -> None:
    trio[0].append(entry(1, 0))
    trio[0].start()


def test_completion_of_a_cut_entry_does_not_count_for_the_one_appended_again(rafts: list[Puppet]) -> None:
    """OR-20: the first append of 1-1 is flushed, but cut since; its second one is not flushed yet."""
    leader = rafts[0]
    leader.lead(1)
    leader.role.name = "follower"
    leader.append(entry(1, 0), entry(1, 1))
    leader.cut(EntryId(1, 0))
    leader.append(entry(1, 1))
    leader.durable = EntryId(1, 1)
    with expect("durable-early"):
        leader.step(Persisted(1))


def test_leader_cuts_its_own_log(trio: list[Puppet]) -> None:
    trio[0].lead(1)
    trio[0].append(entry(1, 0), entry(1, 1))
    with expect("leader-cut"):
        trio[0].cut(EntryId(1, 0))


def test_orders_out_of_turn(trio: list[Puppet]) -> None:
    trio[0].ios = 1
    with expect("wrong-order"):
        trio[0].append(entry(1, 0))


def test_machines_that_differ_at_one_offset(trio: list[Puppet]) -> None:
    invariants = trio[0].invariants
    invariants.applied(1, 0, 5, "digest")
    invariants.applied(2, 0, 5, "digest")
    with expect("machine-digest"):
        invariants.applied(3, 0, 5, "another")


# ---- of raft ----


def saved(puppet: Puppet, epoch: int, vote: Member | None = None) -> None:
    puppet.epoch = epoch
    puppet.step(TimePassed(), SaveState(puppet.order(), SavedState(epoch, vote)))
    puppet.flush()


def stand(puppet: Puppet, epoch: int) -> None:
    """It asks the others for their votes."""
    saved(puppet, epoch, puppet.me)
    puppet.say(1 + puppet.me.node % 3, VoteRequest(epoch, puppet.log.head))


@pytest.mark.behaviour("YB-11")
def test_two_votes_in_one_epoch_over_a_restart(rafts: list[Puppet]) -> None:
    stand(rafts[1], 2)
    stand(rafts[2], 2)
    saved(rafts[0], 2, VOTERS[1])
    rafts[0].say(2, VoteResponse(2, True))
    rafts[0].start(Recovered(base=NOWHERE, head=NOWHERE, epochs=(), state=SavedState(2, VOTERS[2])))
    with expect("vote-once"):
        rafts[0].say(3, VoteResponse(2, True))


@pytest.mark.behaviour("YB-7")
def test_vote_is_sent_before_it_is_flushed(rafts: list[Puppet]) -> None:
    stand(rafts[1], 2)
    rafts[0].epoch = 2
    rafts[0].step(TimePassed(), SaveState(rafts[0].order(), SavedState(2, VOTERS[1])))
    with expect("vote-unsaved"):
        rafts[0].say(2, VoteResponse(2, True))


@pytest.mark.behaviour("YB-5")
def test_learner_votes(rafts: list[Puppet]) -> None:
    learner = Puppet(rafts[0].invariants, 4)
    learner.start()
    stand(rafts[1], 2)
    saved(learner, 2, VOTERS[1])
    with expect("learner-acts"):
        learner.say(2, VoteResponse(2, True))


@pytest.mark.behaviour("YB-5")
def test_learner_stands_for_election(rafts: list[Puppet]) -> None:
    learner = Puppet(rafts[0].invariants, 4)
    learner.start()
    learner.role.name = "candidate"
    with expect("learner-acts"):
        learner.step(TimePassed())


@pytest.mark.behaviour("YB-7")
def test_entry_is_acknowledged_before_it_is_flushed(rafts: list[Puppet]) -> None:
    elect(rafts[0])
    follower = rafts[1]
    saved(follower, 1)
    follower.append(noop(1, 0))
    with expect("ack-unflushed"):
        follower.say(1, AppendResponse(1, True, 0, 0, -1))


@pytest.mark.behaviour("OR-10")
def test_entry_is_acknowledged_that_the_leader_does_not_have(rafts: list[Puppet]) -> None:
    elect(rafts[2], 1)
    follower = rafts[1]
    saved(follower, 1)
    follower.append(noop(1, 0))
    follower.flush()
    elect(rafts[0], 2)
    saved(follower, 2)
    with expect("ack-unverified"):
        follower.say(1, AppendResponse(2, True, 0, 0, -1))


@pytest.mark.behaviour("YB-7")
def test_answer_in_an_epoch_that_is_not_flushed(rafts: list[Puppet]) -> None:
    rafts[1].epoch = 4
    with expect("epoch-unsaved"):
        rafts[1].say(1, AppendResponse(4, False, -1, -1, -1))


@pytest.mark.behaviour("YB-17")
def test_entry_of_an_epoch_without_a_leader(rafts: list[Puppet]) -> None:
    with expect("epoch-unelected"):
        rafts[1].append(entry(5, 0))


@pytest.mark.behaviour("YB-3")
def test_entry_is_settled_that_only_a_minority_has_flushed(rafts: list[Puppet]) -> None:
    elect(rafts[0])
    rafts[0].flush()
    with expect("settled-minority"):
        rafts[0].settle(0)


@pytest.mark.behaviour("YB-5")
def test_wiped_voter_that_came_back_as_a_learner_does_not_count(rafts: list[Puppet]) -> None:
    elect(rafts[0])
    rafts[0].flush()
    rafts[0].invariants.wiped(2)
    another = Puppet(rafts[0].invariants, 2, incarnation=2)
    another.start()
    saved(another, 1)
    another.append(noop(1, 0))
    another.flush()
    with expect("settled-minority"):
        rafts[0].settle(0)


@pytest.mark.behaviour("YB-19")
def test_entry_of_an_earlier_epoch_is_settled_by_counting(rafts: list[Puppet]) -> None:
    elect(rafts[0])
    rafts[0].flush()
    saved(rafts[1], 1)
    rafts[1].append(noop(1, 0))
    rafts[1].flush()
    rafts[0].epoch = 2
    with expect("settled-old-epoch"):
        rafts[0].settle(0)


@pytest.mark.behaviour("YB-2")
def test_follower_settles_what_no_leader_has(rafts: list[Puppet]) -> None:
    elect(rafts[0])
    rafts[1].append(noop(1, 0))
    with expect("settled-by-follower"):
        rafts[1].settle(0)


def elect(puppet: Puppet, epoch: int = 1) -> None:
    """Make it the leader of an epoch, with the entry that a leader begins with."""
    puppet.lead(epoch)
    puppet.append(noop(epoch, 0))
