"""Plain transactions: one producer, known by its transactional id (KIP-98, KIP-360, KIP-588).

    empty ──add──► ongoing ──end──► committing | aborting ──all markers written──► committed | aborted
                      └── time-out, or another InitProducerId: aborting, under an epoch that nobody has

Whoever leads the home next goes on from the phase that is settled: decided is decided, and markers that were
already written are not written twice (machine/producers.py).
"""

from __future__ import annotations

from quorate.machine.transaction_words import (
    DONE,
    EPOCH_EXHAUSTED,
    NOBODY,
    PARTITIONS_COUNT_MAX,
    PRODUCERS_COUNT_MAX,
    AddPartitions,
    BeginProducer,
    Ending,
    EndPlain,
    Phase,
    Plain,
    Result,
    State,
    Verdict,
    is_bad_name,
)

DECIDED = (Phase.COMMITTING, Phase.ABORTING)


def begin_producer(state: State, command: BeginProducer) -> Result:
    name = command.name
    plain = state.plain.get(name)
    if plain is None:
        if is_bad_name(name):
            return Result(Verdict.BAD_NAME)
        if len(state.plain) >= PRODUCERS_COUNT_MAX:
            return Result(Verdict.TOO_MANY)
        plain = Plain(command.fresh_id, -1, command.timeout_ms, partitions=[])
        state.plain[name] = plain
        return _next_epoch(state, plain, command)
    if command.producer_id != NOBODY:
        refused = _refused(plain, command)
        if refused is not None:
            return refused
    plain.used_ms = state.now_ms
    if plain.phase in DECIDED:
        return Result(Verdict.CONCURRENT)
    if plain.phase is Phase.ONGOING:
        abort_for_owner(state, name, plain)
        plain.last_epoch = command.epoch if command.producer_id != NOBODY else NOBODY
        return Result(Verdict.CONCURRENT)
    return _next_epoch(state, plain, command)


def _refused(plain: Plain, command: BeginProducer) -> Result | None:
    """A producer that names itself goes on only where nobody has come after it."""
    if command.producer_id != plain.producer_id or command.epoch not in (plain.epoch, plain.last_epoch):
        return Result(Verdict.FENCED)
    if command.epoch == plain.last_epoch and plain.phase not in (*DECIDED, Phase.ONGOING):
        # It asks again, or was aborted for taking too long: the epoch that is there now is nobody else's.
        plain.timeout_ms = command.timeout_ms
        return Result(Verdict.DONE, plain.producer_id, plain.epoch)
    return None


def _next_epoch(state: State, plain: Plain, command: BeginProducer) -> Result:
    if plain.epoch >= EPOCH_EXHAUSTED:
        plain.producer_id, plain.epoch, plain.last_epoch = command.fresh_id, 0, NOBODY
    else:
        plain.last_epoch = plain.epoch if command.producer_id != NOBODY else NOBODY
        plain.epoch += 1
    plain.phase = Phase.EMPTY
    plain.timeout_ms = command.timeout_ms
    plain.used_ms = state.now_ms
    return Result(Verdict.DONE, plain.producer_id, plain.epoch)


def add_partitions(state: State, command: AddPartitions) -> Result:
    plain = state.plain.get(command.name)
    refused = why_not_owner(plain, command.producer_id, command.epoch)
    if refused is not None:
        return Result(refused)
    assert plain is not None
    if plain.phase in DECIDED:
        return Result(Verdict.CONCURRENT)
    fresh = [each for each in dict.fromkeys(command.partitions) if each not in plain.partitions]
    if len(plain.partitions) + len(fresh) > PARTITIONS_COUNT_MAX:
        return Result(Verdict.TOO_MANY)
    plain.used_ms = state.now_ms
    if plain.phase is not Phase.ONGOING:
        plain.phase = Phase.ONGOING
        plain.number += 1
        plain.began_ms = state.now_ms
        plain.last_epoch = NOBODY
    plain.partitions += fresh
    return DONE


def end_plain(state: State, command: EndPlain) -> Result:
    plain = state.plain.get(command.name)
    refused = why_not_owner(plain, command.producer_id, command.epoch)
    if refused is not None:
        return Result(refused)
    assert plain is not None
    wanted = (Phase.COMMITTING, Phase.COMMITTED) if command.commit else (Phase.ABORTING, Phase.ABORTED)
    plain.used_ms = state.now_ms
    if plain.phase is Phase.ONGOING:
        _decide(state, command.name, plain, commit=command.commit)
        return DONE
    return DONE if plain.phase in wanted else Result(Verdict.BAD_STATE)


def abort_for_owner(state: State, name: str, plain: Plain) -> None:
    """Aborted by the coordinator: under the next epoch, so that whatever its producer still sends is refused."""
    plain.last_epoch = plain.epoch
    plain.epoch += 1
    _decide(state, name, plain, commit=False)


def _decide(state: State, name: str, plain: Plain, *, commit: bool) -> None:
    assert plain.phase is Phase.ONGOING
    assert plain.producer_id not in state.endings
    plain.phase = Phase.COMMITTING if commit else Phase.ABORTING
    partitions, plain.partitions = plain.partitions, []
    state.endings[plain.producer_id] = Ending(plain.epoch, plain.number, commit, partitions, name)


def ended(state: State, ending: Ending) -> None:
    """Every marker is where it belongs."""
    plain = state.plain[ending.name]
    assert plain.phase in DECIDED
    plain.phase = Phase.COMMITTED if ending.commit else Phase.ABORTED


def why_not_owner(plain: Plain | None, producer_id: int, epoch: int) -> Verdict | None:
    if plain is None or plain.producer_id != producer_id:
        return Verdict.BAD_PRODUCER
    return Verdict.FENCED if plain.epoch != epoch else None


def is_overdue(plain: Plain, now_ms: int) -> bool:
    return plain.phase is Phase.ONGOING and plain.began_ms + plain.timeout_ms <= now_ms
