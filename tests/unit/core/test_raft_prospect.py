"""Who misses the leader asks first; who hears it promises to keep to it (YB-16)."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import effects, events, raft
from quorate.core.entry import Header
from quorate.core.raft.messages import (
    AppendEntries,
    GoneRequest,
    GoneResponse,
    StillRequest,
    TakeOver,
    VoteRequest,
    VoteResponse,
)
from quorate.core.raft.prospect import EAGER_TURNS, LAST_RESORT_TURNS
from tests.unit.core.kit import (
    FIVE,
    N1,
    N2,
    N3,
    N4,
    NOWHERE,
    TUNING,
    Bench,
    Span,
    answer_gone,
    at,
    flushed,
    following,
    keep_alive,
    leader,
    orders,
    rest,
    sent,
)

# ---- whoever asks ----


@pytest.mark.behaviour("YB-16")
def test_whoever_misses_its_leader_asks_every_other_voter_and_nothing_is_saved() -> None:
    bench = Bench(N1, "1-0", epoch=4, learners=(N4,))
    ordered = bench.wake()
    question = GoneRequest(4, at("1-0"), bench.replica.times_asked)
    assert ordered == [effects.Send(2, question), effects.Send(3, question)]
    assert (bench.replica.role.name, bench.replica.epoch) == ("prospect", 4)
    assert bench.replica.leader == 0


@pytest.mark.behaviour("YB-16", "YB-4")
def test_it_stands_when_a_majority_with_itself_misses_the_leader() -> None:
    bench = Bench(N1, "1-0", voters=FIVE, epoch=4)
    bench.wake()
    answer_gone(bench, N2)
    answer_gone(bench, N2)
    assert bench.replica.role.name == "prospect", "a repeated answer is one answer"
    answer_gone(bench, N3, gone=False)
    assert bench.replica.role.name == "prospect"
    assert orders(answer_gone(bench, N4)) == [effects.SaveState(1, raft.SavedState(5, N1))]
    assert (bench.replica.role.name, bench.replica.epoch) == ("candidate", 5)


@pytest.mark.behaviour("YB-16")
def test_an_answer_to_what_was_asked_earlier_says_nothing_about_now() -> None:
    bench = Bench(N1, "1-0", epoch=4)
    bench.wake()
    earlier = bench.replica.times_asked
    bench.wake()
    answer_gone(bench, N2, asked=earlier)
    assert bench.replica.role.name == "prospect"
    answer_gone(bench, N2)
    assert bench.replica.role.name == "candidate"


@pytest.mark.behaviour("YB-16")
def test_those_who_said_so_earlier_are_asked_anew() -> None:
    bench = Bench(N1, "1-0", voters=FIVE, epoch=4)
    bench.wake()
    answer_gone(bench, N2)
    bench.wake()
    answer_gone(bench, N3)
    assert bench.replica.role.name == "prospect", "N2 may hear the leader by now"


def test_answers_of_an_earlier_life_do_not_count() -> None:
    first, second = Bench(N1, "1-0", epoch=4), Bench(N1, "1-0", epoch=4)
    second.replica.rng.seed(2)
    other = raft.Replica(second.replica.config, second.replica.rng)
    assert first.replica.times_asked != other.times_asked


@pytest.mark.behaviour("YB-16")
def test_in_vain_it_asks_less_and_less_often_and_its_epoch_stays() -> None:
    bench = Bench(N1, "1-0", epoch=4)
    waits = []
    for _ in range(12):
        bench.wake()
        deadline = bench.replica.deadline()
        assert deadline is not None
        waits.append(deadline - bench.now)
    assert waits[0] <= 1.0
    assert all(0.5 <= wait <= 4.0 for wait in waits)
    assert min(waits[4:]) >= 2.0
    assert (bench.replica.role.name, bench.replica.epoch, bench.replica.vote) == ("prospect", 4, None)


@pytest.mark.behaviour("YB-16")
@pytest.mark.parametrize("message", [AppendEntries(4, at("1-0"), 0), StillRequest(4, 1)])
def test_a_leader_that_is_heard_ends_it(message: object) -> None:
    bench = Bench(N1, "1-0", epoch=4)
    bench.wake()
    bench.receive(N2, message)
    assert (bench.replica.role.name, bench.replica.leader) == ("follower", 2)
    answer_gone(bench, N2)
    answer_gone(bench, N3)
    assert bench.replica.role.name == "follower", "what was said before is forgotten"


@pytest.mark.behaviour("YB-15", "YB-16")
def test_a_prospect_that_is_told_to_take_over_stands_at_once() -> None:
    bench = Bench(N1, "1-0", epoch=4)
    bench.wake()
    bench.receive(N2, TakeOver(4))
    assert (bench.replica.role.name, bench.replica.epoch) == ("candidate", 5)


@pytest.mark.behaviour("YB-18")
def test_a_prospect_that_hears_of_a_higher_epoch_takes_it_and_waits() -> None:
    bench = Bench(N1, "1-0", epoch=4)
    bench.wake()
    bench.receive(N2, GoneResponse(6, bench.replica.times_asked, False))
    assert (bench.replica.role.name, bench.replica.epoch) == ("follower", 6)


@pytest.mark.behaviour("YB-16")
def test_a_candidate_without_enough_votes_sees_how_things_are_before_another_epoch() -> None:
    bench = Bench(N1, "1-0", epoch=4)
    bench.stand()
    bench.persist()
    ordered = bench.wake()
    assert (bench.replica.role.name, bench.replica.epoch) == ("prospect", 5)
    assert [type(message) for message in sent(ordered)] == [GoneRequest] * 2


def test_a_group_of_one_asks_nobody() -> None:
    bench = Bench(N1, voters=(N1,))
    assert sent(bench.wake()) == []
    assert bench.replica.role.name == "candidate"


def test_damage_that_is_found_meanwhile_ends_it() -> None:
    bench = Bench(N1, "1-0 1-1", epoch=4)
    bench.wake()
    bench.tell(events.Damaged(Span(NOWHERE, at("1-0"))))
    assert bench.replica.role.name == "follower"
    bench.wake()
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("YB-15")
def test_a_node_that_nobody_wants_to_lead_asks_and_does_not_stand() -> None:
    """A leader at rest is woken by its question; otherwise its clock would run for ever."""
    bench = Bench(N1, "1-0", epoch=4, tuning=msgspec.structs.replace(TUNING, priority=0))
    assert len(sent(bench.wake())) == 2
    answer_gone(bench, N2)
    answer_gone(bench, N3)
    assert (bench.replica.role.name, bench.replica.epoch) == ("prospect", 4)
    bench.receive(N2, TakeOver(4))
    assert bench.replica.role.name == "candidate", "unless the leader itself wants it"


@pytest.mark.behaviour("YB-15")
def test_it_stands_where_nobody_else_comes_to_lead() -> None:
    """Of three one is gone, and this one alone has what that one and it had settled."""
    bench = Bench(N1, "1-0 1-1", epoch=4, tuning=msgspec.structs.replace(TUNING, priority=0))
    turns = 0
    while bench.replica.role.name != "candidate":
        turns += 1
        bench.wake()
        answer_gone(bench, N2)
        assert turns <= LAST_RESORT_TURNS
    assert turns == LAST_RESORT_TURNS


# ---- whoever is asked ----


@pytest.mark.behaviour("YB-16")
def test_it_is_gone_for_whoever_owes_it_nothing_any_more() -> None:
    bench = following()
    assert sent(bench.receive(N3, GoneRequest(1, at("1-0"), 7))) == [GoneResponse(1, 7, False)]
    bench.now += 0.99
    assert sent(bench.receive(N3, GoneRequest(1, at("1-0"), 8))) == [GoneResponse(1, 8, False)]
    bench.now += 0.02
    assert sent(bench.receive(N3, GoneRequest(1, at("1-0"), 9))) == [GoneResponse(1, 9, True)]
    assert (bench.replica.role.name, bench.replica.vote) == ("follower", None), "nothing is promised by that"


@pytest.mark.behaviour("YB-16", "OR-6")
@pytest.mark.parametrize(("theirs", "gone"), [("1-0", False), ("1-1", True), ("2-0", True), ("1-5", True)])
def test_whoever_could_not_have_this_vote_is_not_encouraged(theirs: str, gone: bool) -> None:
    bench = Bench(N2, "1-0 1-1", epoch=2)
    bench.miss_leader()
    assert sent(bench.receive(N3, GoneRequest(2, at(theirs), 1))) == [GoneResponse(2, 1, gone)]


@pytest.mark.behaviour("YB-16")
def test_a_leader_is_not_gone_and_makes_itself_heard() -> None:
    bench = leader()
    bench.now += 0.1
    for member in (N2, N3):
        flushed(bench, member, 1)
    before = bench.replica.role.cursors[3]
    before.beats = 50
    assert sent(bench.receive(N3, GoneRequest(2, at("2-1"), 1)), N3)[-1] == GoneResponse(2, 1, False)
    assert before.beats == 0, "it is tried with every heartbeat again"
    assert any(isinstance(message, AppendEntries) for message in sent(bench.wake(), N3))


@pytest.mark.behaviour("YB-16", "YB-10")
def test_a_question_of_the_past_is_answered_with_the_epoch() -> None:
    bench = following()
    assert sent(bench.receive(N3, GoneRequest(0, at("1-0"), 3))) == [GoneResponse(1, 3, False)]


@pytest.mark.behaviour("YB-7", "YB-18")
def test_a_question_of_a_higher_epoch_is_answered_when_that_is_saved() -> None:
    bench = following()
    bench.now += 2
    assert sent(bench.receive(N3, GoneRequest(5, at("1-0"), 3))) == []
    assert sent(bench.persist()) == [GoneResponse(5, 3, True)]


@pytest.mark.behaviour("YB-16")
def test_at_rest_the_leader_counts_as_heard_until_its_node_is_suspected() -> None:
    bench = following()
    bench.receive(N1, AppendEntries(1, at("1-0"), 0, quiet=True))
    assert bench.replica.deadline() is None
    bench.now += 100
    assert bench.receive(N3, VoteRequest(2, at("1-0"))) == []
    bench.tell(events.Suspected(1))
    assert sent(bench.receive(N3, GoneRequest(1, at("1-0"), 2))) == [GoneResponse(1, 2, True)]


@pytest.mark.behaviour("YB-16")
def test_a_resting_voter_that_is_asked_lets_the_leader_speak_or_vouches_no_longer() -> None:
    """What put it to rest was late, perhaps: its leader was wiped, and no failure detector would say so again."""
    bench = following()
    bench.receive(N1, AppendEntries(1, at("1-0"), 0, quiet=True))
    bench.now += 100
    to_leader, to_asker = sent(bench.receive(N3, GoneRequest(1, at("1-0"), 1)))
    assert (to_leader.quiet, to_asker) == (False, GoneResponse(1, 1, False))
    assert bench.replica.deadline() is not None
    bench.now += TUNING.election_timeout_s / 2
    assert sent(bench.receive(N3, GoneRequest(1, at("1-0"), 2))) == [GoneResponse(1, 2, False)]
    bench.now += TUNING.election_timeout_s
    assert sent(bench.receive(N3, GoneRequest(1, at("1-0"), 3))) == [GoneResponse(1, 3, True)]


@pytest.mark.behaviour("YB-16")
def test_a_resting_voter_whose_leader_asks_begins_to_wait() -> None:
    """The leader was restarted. If it is gone for good after its question, nobody else would ever wake this one."""
    bench = following()
    bench.receive(N1, AppendEntries(1, at("1-0"), 0, quiet=True))
    assert bench.replica.deadline() is None
    assert sent(bench.receive(N1, GoneRequest(1, at("1-0"), 1))) == [GoneResponse(1, 1, True)]
    assert bench.replica.leader == 0
    bench.wake()
    assert bench.replica.role.name == "prospect"


# ---- the promise ----


@pytest.mark.behaviour("YB-16")
def test_whoever_hears_its_leader_neither_votes_nor_takes_the_epoch() -> None:
    bench = following()
    assert bench.receive(N3, VoteRequest(9, at("1-9"))) == []
    assert (bench.replica.epoch, bench.replica.vote, bench.replica.leader) == (1, None, 1)
    bench.now += 1.01
    bench.receive(N3, VoteRequest(9, at("1-9")))
    assert sent(bench.persist()) == [VoteResponse(9, True)]


@pytest.mark.behaviour("YB-16")
def test_the_promise_also_holds_in_an_epoch_that_was_adopted_meanwhile() -> None:
    """Somebody's question brings the epoch; the vote that was asked for in it, late, would break the lease."""
    bench = following(voters=FIVE)
    bench.receive(N4, GoneRequest(2, at("1-0"), 1))
    assert bench.replica.epoch == 2
    bench.persist()
    assert bench.receive(N3, VoteRequest(2, at("1-0"))) == []
    assert bench.replica.vote is None
    bench.now += 1.01
    bench.receive(N3, VoteRequest(2, at("1-0")))
    assert sent(bench.persist()) == [VoteResponse(2, True)]


@pytest.mark.behaviour("YB-15", "YB-16")
def test_the_promise_does_not_bind_against_whom_the_leader_itself_wants() -> None:
    bench = following()
    bench.receive(N3, VoteRequest(2, at("1-0"), handed_over=True))
    assert sent(bench.persist()) == [VoteResponse(2, True)]


@pytest.mark.behaviour("YB-16")
def test_after_a_restart_a_voter_keeps_a_promise_that_it_may_have_made() -> None:
    bench = Bench(N2, "1-0", epoch=1)
    assert bench.receive(N3, VoteRequest(2, at("1-0"))) == []
    assert sent(bench.receive(N3, GoneRequest(1, at("1-0"), 1))) == [GoneResponse(1, 1, False)]
    assert sent(Bench(N2).receive(N3, GoneRequest(0, NOWHERE, 1))) == [GoneResponse(0, 1, True)], (
        "who has never been in an epoch has promised nothing"
    )


@pytest.mark.behaviour("YB-16")
def test_nobody_stands_itself_while_its_promise_lasts() -> None:
    for seed in range(50):
        bench = following()
        bench.replica.rng.seed(seed)
        bench.receive(N1, AppendEntries(1, at("1-0"), 0))
        deadline = bench.replica.deadline()
        assert deadline is not None
        assert deadline >= bench.replica.promised_until


@pytest.mark.behaviour("YB-18")
def test_a_leader_that_is_asked_for_its_vote_in_a_higher_epoch_steps_down() -> None:
    bench = leader()
    bench.receive(N3, VoteRequest(7, at("2-1")))
    assert (bench.replica.role.name, bench.replica.epoch) == ("follower", 7)


# ---- check-quorum ----


@pytest.mark.behaviour("YB-16", "YB-3")
def test_a_leader_that_hears_no_majority_stands_down() -> None:
    bench = leader(voters=FIVE)
    bench.tell(events.Proposed(1, (Header(0, 0, size=100),)))
    ordered: list[effects.Effect] = []
    while bench.replica.role.name == "leader" and bench.now < 10:
        keep_alive(bench, N2)
        ordered = bench.wake()
    assert bench.replica.role.name == "follower"
    assert (bench.replica.epoch, bench.replica.leader) == (2, 0)
    assert effects.Reply(1, effects.Outcome.UNKNOWN) in ordered
    assert 1.0 <= bench.now - 0 <= 3.5


@pytest.mark.behaviour("YB-16", "YB-3")
def test_a_leader_that_hears_a_majority_leads_on() -> None:
    bench = leader(voters=FIVE)
    bench.tell(events.Proposed(1, (Header(0, 0, size=100),)))
    for _ in range(100):
        keep_alive(bench, N2, N3)
        bench.wake()
    assert bench.replica.role.name == "leader"


@pytest.mark.behaviour("YB-16")
def test_a_leader_that_wakes_from_rest_gives_everybody_time_to_answer() -> None:
    bench = leader()
    rest(bench)
    bench.now += 1000
    bench.tell(events.Proposed(1, (Header(0, 0, size=100),)))
    bench.wake()
    assert bench.replica.role.name == "leader"


def test_a_follower_that_does_not_answer_is_tried_less_often() -> None:
    bench = leader()
    bench.tell(events.Proposed(1, (Header(0, 0, size=100),)))
    tries = []
    for _ in range(80):
        keep_alive(bench, N2)
        tries.append(len(sent(bench.wake(), N3)))
    assert all(tries[:8])
    assert sum(map(bool, tries[8:])) == 9, "one heartbeat of eight"
    flushed(bench, N3, 1)
    keep_alive(bench, N2)
    assert sent(bench.wake(), N3), "it was heard of"


# ---- a leader whose process has ended ----


@pytest.mark.behaviour("YB-16")
def test_a_leader_that_has_ended_is_waited_for_only_as_long_as_was_promised() -> None:
    bench = following()
    promised_until = bench.replica.promised_until
    bench.tell(events.Suspected(1, ended=True))
    deadline = bench.replica.deadline()
    assert deadline == pytest.approx(promised_until + 0.5 * TUNING.heartbeat_s)
    assert deadline > promised_until, "before that, nobody would say that it is gone"
    bench.wake()
    assert bench.replica.role.name == "prospect"


def test_at_rest_it_stands_at_once_and_the_others_one_after_the_other() -> None:
    due = []
    for me in (N2, N3):
        bench = following(me=me)
        head = bench.replica.log.head
        bench.receive(N1, AppendEntries(1, head, head.offset, quiet=True))
        assert bench.replica.deadline() is None
        bench.now = bench.replica.promised_until + 10.0
        bench.tell(events.Suspected(1, ended=True))
        due.append(bench.replica.deadline() - bench.now)
    assert due == pytest.approx([0.5 * TUNING.heartbeat_s, 2.5 * TUNING.heartbeat_s])


def test_that_another_node_has_ended_ends_no_patience() -> None:
    bench = following()
    deadline = bench.replica.deadline()
    bench.tell(events.Suspected(3, ended=True))
    assert bench.replica.deadline() == deadline


def test_said_again_it_does_not_put_off_the_election() -> None:
    bench = following()
    bench.tell(events.Suspected(1, ended=True))
    deadline = bench.replica.deadline()
    bench.now = bench.replica.promised_until + 0.25 * TUNING.heartbeat_s
    bench.tell(events.Suspected(1, ended=True))
    assert bench.replica.deadline() == deadline


def test_a_prospect_whose_leader_has_ended_asks_again_soon_and_not_for_ever() -> None:
    bench = following()
    bench.tell(events.Suspected(1, ended=True))
    bench.wake()
    waits = []
    for _ in range(EAGER_TURNS + 1):
        waits.append(bench.replica.deadline() - bench.now)
        bench.wake()
    assert all(wait <= 2 * TUNING.heartbeat_s for wait in waits[:EAGER_TURNS])
    assert waits[EAGER_TURNS] >= TUNING.election_timeout_s
