"""Calls about tables without sockets: whom they ask, how long they wait, and what an answer means."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from quorate.client.errors import (
    BadAnswer,
    GroupReplaced,
    NobodyThere,
    OutcomeUnknown,
    Refused,
    RolledBack,
    TransactionRefused,
    UnknownGroup,
    Unreachable,
)
from quorate.client.table_calls import (
    NODE_SHARE,
    PATIENCE_MIN_S,
    REDIRECTIONS_COUNT_MAX,
    SHUNNED_S,
    Call,
    Nodes,
    Step,
)
from quorate.tables import Delete, Outcome, Result, Transaction
from quorate.wire import tables as wire

ADDRESSES = {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)}
EXECUTE = wire.Execute("bank", Transaction(bytes(16), (Delete("t", (1,)),)))
GET = wire.Get("bank", "t", (1,))
ROWS = wire.Rows((), 5, group_id=b"g" * 16)
DONE = wire.Done(Result(Outcome.DONE, 7))
LEADS = 2
TIMED_OUT = TimeoutError("no answer in time")


def known(*, leader: int = LEADS) -> Nodes:
    nodes = Nodes([ADDRESSES[1]], Random(1))
    nodes.addresses = dict(ADDRESSES)
    if leader:
        nodes.leaders["bank"] = leader
    return nodes


def call_of(request: wire.Request, nodes: Nodes, *, timeout_s: float = 30.0, **how: Any) -> Call[Any]:
    return Call(nodes, request, lambda answer: answer, now=0.0, timeout_s=timeout_s, **how)


def fails(call: Call[Any], now: float, *, was_sent: bool = True, error: Exception = TIMED_OUT) -> None:
    call.failed(now, error, str(error), was_sent=was_sent)


# ---- whom ----


def test_it_looks_around_first_and_then_asks_the_leader() -> None:
    nodes = Nodes([("seed", 9)])
    call = call_of(GET, nodes)
    step = call.next(0.0)
    assert (step.address, step.looks_around, step.pause_s) == (("seed", 9), True, 0.0)
    call.saw(ADDRESSES, LEADS)
    step = call.next(0.1)
    assert (step.address, step.looks_around, step.pause_s) == (ADDRESSES[LEADS], False, 0.0)
    call.answered(ROWS)
    assert call.is_over
    assert call.found is ROWS
    assert nodes.group_ids == {"bank": b"g" * 16}


def test_a_redirection_is_followed_at_once_but_not_for_ever() -> None:
    call = call_of(EXECUTE, known(leader=1))
    asked = []
    for number in range(REDIRECTIONS_COUNT_MAX + 1):
        step = call.next(0.0)
        asked.append((step.address, step.pause_s > 0))
        call.answered(wire.Again("not leader", 2 - number % 2))
    addresses, paused = zip(*asked, strict=True)
    assert addresses == (ADDRESSES[1], ADDRESSES[2], ADDRESSES[1], ADDRESSES[2])
    assert paused == (False, False, False, True)


def test_a_leader_that_is_busy_is_asked_again_after_longer_and_longer_pauses() -> None:
    call = call_of(EXECUTE, known())
    pauses = []
    for _ in range(5):
        step = call.next(0.0)
        assert step.address == ADDRESSES[LEADS]
        pauses.append(step.pause_s)
        call.answered(wire.Again("too many wait", LEADS))
    assert pauses == sorted(pauses)
    assert pauses[0] == 0 < pauses[1]


def test_a_read_that_a_copy_cannot_answer_now_goes_to_another_one() -> None:
    call = call_of(GET, known())
    assert call.next(0.0).address == ADDRESSES[LEADS]
    call.answered(wire.Again("its state is still being read", LEADS))
    assert call.next(0.0).address != ADDRESSES[LEADS]
    linearizable = call_of(wire.Get("bank", "t", (1,), wire.Consistency.LINEARIZABLE), known())
    for _ in range(2):
        assert linearizable.next(0.0).address == ADDRESSES[LEADS]
        linearizable.answered(wire.Again("what former leaders left is not settled yet", LEADS))


def test_a_leader_that_nobody_knows_the_place_of_is_looked_for() -> None:
    call = call_of(GET, known())
    call.next(0.0)
    call.answered(wire.Again("not leader", 4))
    assert call.next(0.0).looks_around
    call.saw(ADDRESSES | {4: ("d", 4)}, 4)
    assert call.next(0.0).address == ("d", 4)


def test_a_hint_that_leads_nowhere_is_dropped() -> None:
    nodes = known()
    call = call_of(GET, nodes)
    call.next(0.0)
    call.answered(wire.Again("not leader", 4))
    assert call.next(0.0).looks_around
    call.saw(ADDRESSES, 0)
    assert not call.next(0.0).looks_around
    assert nodes.leaders == {}


def test_silence_costs_a_share_of_the_time_and_then_others_are_asked() -> None:
    nodes = known()
    call = call_of(EXECUTE, nodes)
    step = call.next(0.0)
    assert step.patience_s == PATIENCE_MIN_S
    fails(call, PATIENCE_MIN_S)
    second = call.next(PATIENCE_MIN_S)
    assert second.address != step.address
    assert second.pause_s == 0
    # Another node still says that it leads: it is left alone for a moment all the same.
    call.answered(wire.Again("not leader", LEADS))
    third = call.next(PATIENCE_MIN_S)
    assert third.address != ADDRESSES[LEADS]
    call.answered(wire.Again("not leader", LEADS))
    assert call.next(PATIENCE_MIN_S + SHUNNED_S).address == ADDRESSES[LEADS]


def test_a_short_time_is_shared_too() -> None:
    step = call_of(GET, known(), timeout_s=1.0).next(0.0)
    assert step.patience_s == 0.5


def test_patience_grows_where_it_was_in_vain() -> None:
    """Each try of a transaction is one more entry in a log that gets nowhere."""
    call = call_of(EXECUTE, known(), timeout_s=100.0)
    patience = []
    for _ in range(4):
        patience.append(call.next(0.0).patience_s)
        call.answered(wire.Unknown("nothing was settled in time"))
    assert patience == [2.0, 4.0, 8.0, 10.0]


def test_large_transactions_may_take_longer() -> None:
    assert call_of(EXECUTE, known(), size=16_000_000).next(0.0).patience_s > 10


def test_a_node_is_told_to_answer_before_our_patience_ends() -> None:
    call = call_of(EXECUTE, known())
    step = call.next(0.0)
    request = call.request()
    assert isinstance(request, wire.Execute)
    assert request.timeout_ms == step.patience_s * NODE_SHARE * 1000
    assert request.transaction == EXECUTE.transaction


def test_after_several_failures_it_is_asked_anew_where_the_nodes_are() -> None:
    call = call_of(GET, known())
    steps: list[Step] = []
    for number in range(4):
        steps.append(call.next(0.1 * number))
        fails(call, 0.1 * number, error=ConnectionRefusedError("connection refused"))
    assert [step.looks_around for step in steps] == [False, False, False, True]


def test_nobody_listens_at_any_address() -> None:
    call = call_of(GET, Nodes([("a", 1), ("b", 2)], Random(1)))
    refused = ConnectionRefusedError("connection refused")
    first = call.next(0.0).address
    fails(call, 0.0, was_sent=False, error=refused)
    assert call.next(0.0).address != first
    with pytest.raises(NobodyThere, match="nobody listens at"):
        fails(call, 0.0, was_sent=False, error=refused)


def test_whoever_has_been_reached_before_is_waited_for() -> None:
    call = call_of(GET, known(), timeout_s=5.0)
    for number in range(3):
        call.next(number * 0.1)
        fails(call, number * 0.1, was_sent=False, error=ConnectionRefusedError("connection refused"))
    with pytest.raises(Unreachable, match=r"within 5 s: .*connection refused; is a majority"):
        call.next(5.0)


# ---- one node ----


def test_one_node_is_asked_and_nobody_else() -> None:
    call = call_of(GET, known(), node=3)
    for now in (0.0, 3.0):
        assert call.next(now).address == ADDRESSES[3]
        fails(call, now)
    assert call.next(6.0).address == ADDRESSES[3]


def test_a_node_that_there_is_not_is_refused_after_two_looks() -> None:
    """Whoever has just started knows only itself."""
    call = call_of(GET, known(), node=9)
    assert call.next(0.0).looks_around
    call.saw({1: ADDRESSES[1]}, 0)
    second = call.next(0.0)
    assert second.looks_around
    assert second.pause_s > 0
    call.saw(ADDRESSES, LEADS)
    with pytest.raises(Refused, match="there is no node 9; there are: 1, 2, 3"):
        call.next(0.0)


def test_a_node_without_a_copy_is_refused_where_it_was_meant_and_left_otherwise() -> None:
    call = call_of(GET, known(), node=1)
    call.next(0.0)
    with pytest.raises(Refused, match="node 1 has no copy of 'bank'; these have: 2, 3"):
        call.answered(wire.Elsewhere((2, 3)))
    call = call_of(GET, known(leader=0))
    call.next(0.0)
    call.answered(wire.Elsewhere((3,)))
    step = call.next(0.0)
    assert (step.address, step.pause_s) == (ADDRESSES[3], 0.0)


# ---- what became of a transaction ----


def test_what_was_never_sent_has_not_happened() -> None:
    call = call_of(EXECUTE, known(), timeout_s=1.0)
    call.next(0.0)
    fails(call, 0.5, was_sent=False)
    with pytest.raises(Unreachable, match="nothing came of it within 1 s"):
        call.next(1.0)


@pytest.mark.parametrize("answer", [None, wire.Unknown("another leader")])
def test_what_was_sent_and_not_answered_is_unknown_in_the_end(answer: wire.Answer | None) -> None:
    call = call_of(EXECUTE, known(), timeout_s=1.0)
    call.next(0.0)
    if answer is None:
        fails(call, 0.1)
    else:
        call.answered(answer)
    call.next(0.2)
    call.answered(wire.Again("nobody leads"))
    with pytest.raises(OutcomeUnknown, match="nobody leads; ask for it by its id") as unknown:
        call.next(1.0)
    assert unknown.value.id == EXECUTE.transaction.id


def test_what_was_unknown_is_sent_again_and_then_known() -> None:
    call = call_of(EXECUTE, known())
    call.next(0.0)
    call.answered(wire.Unknown())
    call.next(0.5)
    call.answered(DONE)
    assert call.found is DONE


def test_a_read_that_was_not_answered_is_not_unknown() -> None:
    call = call_of(GET, known(), timeout_s=1.0)
    call.next(0.0)
    fails(call, 0.1)
    with pytest.raises(Unreachable):
        call.next(1.0)


def test_a_rollback_is_told_of_the_first_try_and_of_no_other() -> None:
    """The first copy of what was sent twice may stand, whatever became of the second."""
    call = call_of(EXECUTE, known())
    call.next(0.0)
    with pytest.raises(RolledBack):
        call.answered(wire.RolledBack())
    call = call_of(EXECUTE, known())
    call.next(0.0)
    fails(call, 2.0)
    call.next(2.0)
    call.answered(wire.RolledBack())
    assert not call.is_over
    call.next(3.0)
    call.answered(DONE)
    assert call.found is DONE


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (wire.NoGroup(), UnknownGroup),
        (wire.NoGroup(is_another=True), GroupReplaced),
        (wire.Refused("no"), Refused),
        (ROWS, BadAnswer),
    ],
)
def test_a_last_word_says_nothing_of_an_earlier_try(answer: wire.Answer, error: type[Exception]) -> None:
    call = call_of(EXECUTE, known())
    call.next(0.0)
    with pytest.raises(error):
        call.answered(answer)
    call = call_of(EXECUTE, known())
    call.next(0.0)
    call.answered(wire.Unknown())
    call.next(0.0)
    with pytest.raises(OutcomeUnknown):
        call.answered(answer)


def test_what_the_tables_refuse_is_refused() -> None:
    call = call_of(EXECUTE, known())
    call.next(0.0)
    with pytest.raises(TransactionRefused, match="t 1 is there already"):
        call.answered(wire.Done(Result(Outcome.REFUSED, 7, "t 1 is there already")))


def test_a_result_that_is_forgotten_is_unknown() -> None:
    call = call_of(EXECUTE, known())
    call.next(0.0)
    with pytest.raises(OutcomeUnknown, match="forgotten"):
        call.answered(wire.Done(None))


# ---- orders ----


@pytest.mark.parametrize("order", [wire.Promote("bank"), wire.Demote("bank")])
def test_an_order_is_given_once(order: wire.Request) -> None:
    """The next one who leads would be demoted, too."""
    call = call_of(order, known())
    assert call.next(0.0).patience_s == 30.0
    with pytest.raises(Unreachable, match="it may have been done: look who leads"):
        fails(call, 1.0)
    call = call_of(order, known())
    call.next(0.0)
    with pytest.raises(Refused, match="another epoch began; look who leads"):
        call.answered(wire.Unknown("another epoch began"))


def test_an_order_that_was_not_taken_goes_to_whoever_leads() -> None:
    call = call_of(wire.Demote("bank"), known(leader=1))
    call.next(0.0)
    call.answered(wire.Again("not leader", 3))
    assert call.next(0.0).address == ADDRESSES[3]
    call.answered(wire.Ordered(0))
    assert call.is_over
