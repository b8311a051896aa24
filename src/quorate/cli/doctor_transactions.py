"""What is wrong with transactions: one that is open for long, behind which nobody reads what is committed.

A transaction that is open in several partitions is one finding: who ends it ends it everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from quorate.cli import say
from quorate.cli.doctor_facts import CRITICAL, WARNING, Facts, Finding, Place, named
from quorate.machine.purpose import HOMES, TRANSACTIONS
from quorate.node.held_back import TOLD_COUNT_MAX, OpenTransaction

HELD_BACK_S = 30.0
"""Half of what Kafka's clients let a transaction be open (`transaction.timeout.ms`) before it is aborted."""


class _Held(NamedTuple):
    place: Place
    first: int
    behind_count: int
    """Offsets that are settled, and that readers of committed records do not see."""


class _Known(NamedTuple):
    """A transaction, and the time on the node that coordinates it."""

    transaction: OpenTransaction
    now_ms: int


def transaction_findings(facts: Facts) -> Iterator[Finding]:
    held: dict[int, list[_Held]] = {}
    ages_s: dict[int, float] = {}
    for place in facts.partitions():
        leader = facts.found.leader(place.partition)
        if leader is None or leader.held_back is None:
            continue
        by = leader.held_back
        held.setdefault(by.producer_id, []).append(_Held(place, by.first, leader.commit - by.first + 1))
        for copy in facts.found.held(
            place.partition
        ).values():  # Who leads now may have come to know it late.
            if copy.held_back is not None and copy.held_back.producer_id == by.producer_id:
                ages_s[by.producer_id] = max(ages_s.get(by.producer_id, 0.0), copy.held_back.age_s)
    known = _known(facts)
    for producer_id, places in held.items():
        found, age_s = known.get(producer_id), ages_s[producer_id]
        if found is not None and found.transaction.began_ms:
            age_s = max(age_s, (found.now_ms - found.transaction.began_ms) / 1000)
        if age_s >= HELD_BACK_S:
            yield _finding(facts, producer_id, found, places, age_s)


def _known(facts: Facts) -> dict[int, _Known]:
    return {
        each.producer_id: _Known(each, facts.healths[node].wall_ms)
        for node, status in facts.statuses.items()
        for each in status.transactions
        if node in facts.healths
    }


def _finding(
    facts: Facts, producer_id: int, known: _Known | None, places: list[_Held], age_s: float
) -> Finding:
    names = [held.place.name for held in places]
    most = max(places, key=lambda held: held.behind_count)
    whose, is_so, do = _words(facts, known)
    decided = known is not None and bool(known.transaction.decided)
    stays = decided or (known is None and _all_are_told(facts))
    return Finding(
        "transaction-open",
        CRITICAL if stays else WARNING,
        named(names),
        f"the transaction of producer {producer_id}{whose} {is_so} for {say.duration(age_s)}: readers of "
        f"committed records (`read_committed`) see nothing of {most.place.name} from offset {most.first} on, "
        f"{most.behind_count:,} {'offset' if most.behind_count == 1 else 'offsets'} by now",
        do,
        (f"quorate topic describe {most.place.name}", *_commands(known)),
        partitions=tuple(names),
    )


def _commands(known: _Known | None) -> tuple[str, ...]:
    if known is None or known.transaction.decided:
        return (f"quorate topic describe {HOMES[TRANSACTIONS]}",)
    return (f"quorate transaction abort {quote(known.transaction.name)}",)


def _all_are_told(facts: Facts) -> bool:
    """Else somebody may coordinate it who did not say so: an older version, or one with very many."""
    versions = {health.version for health in facts.healths.values()}
    return (
        len(versions) == 1
        and facts.healths.keys() == facts.statuses.keys()
        and all(len(status.transactions) < TOLD_COUNT_MAX for status in facts.statuses.values())
    )


def _words(facts: Facts, known: _Known | None) -> tuple[str, str, str]:
    """Whose it is, how it is, and what to do."""
    if known is None:
        if any(
            facts.found.leader(place.partition) is None
            for place in facts.partitions()
            if place.topic.name == HOMES[TRANSACTIONS]
        ):
            do = "bring its coordinator back: start the nodes with copies of what nobody leads"
        else:
            do = (
                "look again in a moment; if it stays so, read with `read_uncommitted` meanwhile, and compare what "
                "the nodes have on their disks (`quorate audit`): no coordinator that answers knows it"
            )
        return "", "is open", do
    transaction, now_ms = known
    whose = _whose(transaction)
    if transaction.decided:
        do = "see why its end is not written there: who leads, and what the nodes say; it is tried again and again"
        return whose, f"is {transaction.decided}, and that has not been written there", do
    left_s = max((transaction.began_ms + transaction.timeout_ms - now_ms) / 1000, 0.0)
    if transaction.number < 0:
        do = (
            "end it in the program with that id, or start that again: a producer that begins under the same id "
            "aborts what is open; where there is none, abort it"
        )
    else:
        do = (
            "let that job commit or abort, or start it again: a new run aborts what the one before has open; where "
            "there is none, abort it"
        )
    return whose, "is open", f"{do}. It is aborted by itself in {say.duration(left_s)}"


def _whose(transaction: OpenTransaction) -> str:
    if transaction.number >= 0:
        return f" (joint app {transaction.name!r}, number {transaction.number})"
    return f" (transactional id {transaction.name!r})" if transaction.name else " (of a joint app)"
