"""Who counts, who leads, who may take over: each invariant about it is broken once, and says so."""

from __future__ import annotations

import pytest

from quorate.core.effects import Cut, InstallSnapshot, SaveState
from quorate.core.entry import EntryId, Header, Kind, Member, Membership, Snapshot, Standing, Wanted
from quorate.core.events import Event, Received, TimePassed
from quorate.core.raft import SavedState
from quorate.core.raft.invariants import RaftInvariants
from quorate.core.raft.messages import GoneRequest, GoneResponse, TakeOver, VoteResponse
from quorate.sim.invariants import Invariants
from tests.unit.sim.test_invariants import VOTERS, Puppet, elect, entry, expect, noop, saved, stand

N1, N2, N3 = VOTERS
N4, N5 = Member(4, 1), Member(5, 1)
WANTED = Wanted((N1, N4, N5))
LEARNING = Membership(VOTERS, (N4, N5), wanted=WANTED)
JOINT = Membership(WANTED.ensemble, outgoing=VOTERS, wanted=WANTED)
AT_REST = Membership(WANTED.ensemble)


def control(epoch: int, offset: int, membership: Membership) -> Header:
    return Header(epoch, offset, kind=Kind.CONTROL, control=membership)


@pytest.fixture
def five() -> list[Puppet]:
    """Three who count and two outsiders; the first leads, and everybody has the first entry flushed."""
    invariants = Invariants(1, RaftInvariants)
    puppets = [Puppet(invariants, node) for node in range(1, 6)]
    for puppet in puppets:
        puppet.start()
    elect(puppets[0])
    for puppet in puppets[1:]:
        saved(puppet, 1)
        puppet.append(noop(1, 0))
    for puppet in puppets:
        puppet.flush()
    puppets[0].settle(0)
    return puppets


def spread(puppets: list[Puppet], header: Header, *nodes: int) -> None:
    """The leader appends it; it is flushed there and on these nodes."""
    for puppet in [puppets[0], *(puppets[node - 1] for node in nodes)]:
        puppet.append(header)
        puppet.flush()


# ---- steps ----


@pytest.mark.behaviour("YB-12")
def test_change_by_learning_joint_and_rest_is_safe(five: list[Puppet]) -> None:
    leader = five[0]
    for offset, membership in ((1, LEARNING), (2, JOINT), (3, AT_REST)):
        spread(five, control(1, offset, membership), 2, 3, 4, 5)
        leader.settle(offset)
    assert leader.invariants.membership(0) == AT_REST
    assert leader.invariants.membership(0, 2) == JOINT
    assert leader.invariants.membership(0, 0) == Membership(VOTERS)


@pytest.mark.behaviour("YB-12")
def test_change_from_one_ensemble_to_another_at_once(five: list[Puppet]) -> None:
    with expect("change-unsafe"):
        five[0].append(control(1, 1, AT_REST))


@pytest.mark.behaviour("YB-12")
def test_joint_step_that_leaves_out_the_ensemble_before_it(five: list[Puppet]) -> None:
    other = Membership(WANTED.ensemble, outgoing=(N1, N2), wanted=WANTED)
    with expect("change-unsafe"):
        five[0].append(control(1, 1, other))


@pytest.mark.behaviour("YB-12")
def test_joint_step_that_ends_somewhere_else(five: list[Puppet]) -> None:
    spread(five, control(1, 1, JOINT), 2, 3, 4, 5)
    five[0].settle(1)
    with expect("change-unsafe"):
        five[0].append(control(1, 2, Membership((N4, N5))))


@pytest.mark.behaviour("YB-12")
def test_joint_step_that_ends_before_it_is_settled(five: list[Puppet]) -> None:
    spread(five, control(1, 1, JOINT))
    with expect("change-unsafe"):
        five[0].append(control(1, 2, AT_REST))


@pytest.mark.behaviour("YB-12")
def test_joint_step_may_go_back_before_it_is_settled(five: list[Puppet]) -> None:
    spread(five, control(1, 1, JOINT))
    five[0].append(control(1, 2, Membership(VOTERS)))


@pytest.mark.behaviour("YB-12")
def test_learners_may_change_at_any_time(five: list[Puppet]) -> None:
    five[0].append(control(1, 1, LEARNING))
    five[0].append(control(1, 2, Membership(VOTERS, (N4,))))


@pytest.mark.behaviour("YB-13")
def test_newcomer_counts_though_it_is_far_behind(five: list[Puppet]) -> None:
    leader = five[0]
    far = leader.config.tuning.catch_up_max + 10
    batch = Header(1, 1, far, 100, Kind.RECORDS, 0, 7)
    spread(five, batch, 2, 3, 4)
    leader.settle(far)
    with expect("joiner-counts-early"):
        leader.append(control(1, far + 1, JOINT))


# ---- what is in force ----


def test_replica_goes_by_a_membership_that_was_cut(five: list[Puppet]) -> None:
    follower = five[1]
    spread(five, control(1, 1, LEARNING), 2)
    follower.log.cut(EntryId(1, 0))
    with expect("config-uncut"):
        follower.step(TimePassed(), Cut(follower.order(), EntryId(1, 0)))


def test_replica_goes_by_what_it_was_born_with_though_its_log_says_otherwise(five: list[Puppet]) -> None:
    five[0].append(control(1, 1, LEARNING))
    five[0].membership = Membership(VOTERS)
    with expect("config-uncut"):
        five[0].step(TimePassed())


def test_snapshot_is_installed_with_a_membership_that_was_not_in_force(five: list[Puppet]) -> None:
    spread(five, control(1, 1, LEARNING), 2, 3)
    five[0].settle(1)
    late = five[3]
    snapshot = Snapshot(EntryId(1, 1), 0, 10, Standing(Membership(VOTERS)))
    with expect("config-uncut"):
        late.step(TimePassed(), InstallSnapshot(late.order(), snapshot, keep=False))


# ---- majorities ----


@pytest.mark.behaviour("YB-12")
def test_joint_entry_is_settled_by_the_new_ensemble_alone(five: list[Puppet]) -> None:
    spread(five, control(1, 1, JOINT), 4)
    with expect("settled-minority"):
        five[0].settle(1)


@pytest.mark.behaviour("YB-12")
def test_joint_entry_is_settled_by_the_old_ensemble_alone(five: list[Puppet]) -> None:
    spread(five, control(1, 1, JOINT), 2, 3)
    with expect("settled-minority"):
        five[0].settle(1)


@pytest.mark.behaviour("YB-12")
def test_leader_that_is_left_out_does_not_count_itself(five: list[Puppet]) -> None:
    left_out = Membership((N2, N3, N4), outgoing=VOTERS)
    spread(five, control(1, 1, left_out), 2, 3)
    five[0].settle(1)
    spread(five, control(1, 2, Membership((N2, N3, N4))), 2)
    with expect("settled-minority"):
        five[0].settle(2)


@pytest.mark.behaviour("YB-12")
def test_candidate_is_elected_by_one_of_two_ensembles(five: list[Puppet]) -> None:
    spread(five, control(1, 1, JOINT), 2, 3, 4)
    candidate = five[3]
    stand(candidate, 2)
    five[0].role.name = "follower"
    saved(five[0], 2, N4)
    five[0].say(4, VoteResponse(2, True))
    candidate.role.name = "leader"
    with expect("elected-minority"):
        candidate.step(TimePassed())


@pytest.mark.behaviour("YB-5")
def test_vote_of_another_incarnation_does_not_elect(five: list[Puppet]) -> None:
    five[1].invariants.wiped(2)
    another = Puppet(five[0].invariants, 2, incarnation=2)
    another.start()
    candidate = five[2]
    stand(candidate, 2)
    saved(another, 2, N3)
    another.say(3, VoteResponse(2, True))
    candidate.role.name = "leader"
    with expect("elected-minority"):
        candidate.step(TimePassed())


@pytest.mark.behaviour("YB-12")
def test_who_is_left_out_leads_until_that_is_settled_and_no_longer(five: list[Puppet]) -> None:
    leader = five[0]
    left_out = Membership((N2, N3, N4), outgoing=VOTERS)
    spread(five, control(1, 1, left_out), 2, 3, 4)
    leader.settle(1)
    spread(five, control(1, 2, Membership((N2, N3, N4))), 2, 3)
    with expect("learner-acts"):
        leader.settle(2)


# ---- epochs ----


def ask(puppet: Puppet, asked: int) -> None:
    puppet.say(1 + puppet.me.node % 3, GoneRequest(1, puppet.log.head, asked))


def take_epoch(puppet: Puppet, event: Event | None = None) -> None:
    puppet.epoch = 2
    puppet.role.name = "candidate"
    puppet.step(event or TimePassed(), SaveState(puppet.order(), SavedState(2, puppet.me)))


@pytest.mark.behaviour("YB-16")
def test_new_epoch_is_taken_when_a_majority_misses_the_leader(five: list[Puppet]) -> None:
    ask(five[1], 1)
    five[2].say(2, GoneResponse(1, 1, True))
    take_epoch(five[1])


@pytest.mark.behaviour("YB-16")
def test_new_epoch_is_taken_though_nobody_else_misses_the_leader(five: list[Puppet]) -> None:
    ask(five[1], 1)
    five[2].say(2, GoneResponse(1, 1, False))
    with expect("epoch-inflated"):
        take_epoch(five[1])


@pytest.mark.behaviour("YB-16")
def test_answer_to_an_earlier_question_says_nothing_about_now(five: list[Puppet]) -> None:
    ask(five[1], 1)
    five[2].say(2, GoneResponse(1, 1, True))
    ask(five[1], 2)
    with expect("epoch-inflated"):
        take_epoch(five[1])


@pytest.mark.behaviour("YB-15")
def test_new_epoch_is_taken_when_the_leader_wishes_it(five: list[Puppet]) -> None:
    five[0].role.handing_over.heir = 2
    five[0].say(2, TakeOver(1))
    take_epoch(five[1], Received(N1, TakeOver(1)))


# ---- heirs and leases ----


@pytest.mark.behaviour("YB-15")
def test_heir_that_lacks_an_entry(five: list[Puppet]) -> None:
    five[0].append(entry(1, 1))
    with expect("heir-behind"):
        five[0].say(2, TakeOver(1))


@pytest.mark.behaviour("YB-15")
def test_heir_that_does_not_count(five: list[Puppet]) -> None:
    with expect("heir-behind"):
        five[0].say(4, TakeOver(1))


@pytest.mark.behaviour("YB-15")
def test_second_heir_before_the_first_is_given_up(five: list[Puppet]) -> None:
    leader = five[0]
    leader.role.handing_over.heir = 2
    leader.say(2, TakeOver(1))
    with expect("two-heirs"):
        leader.say(3, TakeOver(1))


@pytest.mark.behaviour("YB-15")
def test_second_heir_after_the_first_was_given_up(five: list[Puppet]) -> None:
    leader = five[0]
    leader.role.handing_over.heir = 2
    leader.say(2, TakeOver(1))
    leader.role.handing_over.heir = 3
    leader.say(3, TakeOver(1))


@pytest.mark.parametrize("down", [False, True])
def test_leader_is_elected_while_a_lease_lasts(five: list[Puppet], down: bool) -> None:
    five[0].invariants.local = lambda node: None if down and node == 1 else 5.0
    five[0].role.reading.lease_until = 6.0
    five[0].step(TimePassed())
    if down:
        five[1].lead(2)
    else:
        with expect("lease-overlap"):
            five[1].lead(2)


def test_leader_is_elected_when_a_lease_has_ended_or_was_given_up(five: list[Puppet]) -> None:
    five[0].invariants.local = lambda node: 5.0
    five[0].role.reading.lease_until = 4.9
    five[1].lead(2)
    five[1].role.reading.lease_until = 6.0
    five[1].role.reading.may_lease = False
    five[2].lead(3)
