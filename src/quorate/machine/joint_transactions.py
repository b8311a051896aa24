"""Joint transactions: many producers, published by one commit that is known by (app, number).

An attempt of a task opens a producer of its own and writes under it. Whoever coordinates the tasks lists the
attempts that count. The commit is one entry of the home's log: before it there is nothing of (app, number) for
readers, behind it there is all that it lists, and everything else that was opened up to that number is aborted.

A commit comes in two steps. *Seal*: nothing may be added to the listed attempts, which the leaders of their
partitions hear when they ask. Then it is counted what they have settled (host/coordinating.py), and only what
is all there is *committed*. In between an attempt can time out or its run be fenced; then the commit fails whole.

Runs have no order of their own: one that was never heard of is the newest. Those that it fences are remembered.
"""

from __future__ import annotations

from quorate.machine.transaction_words import (
    ABORTED_NUMBERS_MAX,
    DONE,
    FENCED_RUNS_MAX,
    PARTITIONS_COUNT_MAX,
    PRODUCERS_COUNT_MAX,
    AbortJoint,
    App,
    Attempt,
    CommitJoint,
    Ending,
    Enlist,
    OpenAttempt,
    Part,
    Renew,
    Result,
    Seal,
    State,
    Verdict,
    is_bad_name,
)

FIRST_EPOCH = 0
ABORTING_EPOCH = 1
"""Attempts that are aborted are fenced in their partitions by the marker itself."""
ONLY_NUMBER = 1
"""A producer of a joint transaction has one transaction."""


def open_attempt(state: State, command: OpenAttempt) -> Result:
    if is_bad_name(command.app) or is_bad_name(command.run) or command.number < 0:
        return Result(Verdict.BAD_NAME)
    app = state.apps.get(command.app)
    if app is None:
        if len(state.apps) >= PRODUCERS_COUNT_MAX:
            return Result(Verdict.TOO_MANY)
        app = state.apps[command.app] = App(fenced=[], aborted=[], attempts={}, run=command.run)
    refused = _why_not(state, app, command.number, command.run)
    if refused is not None:
        return refused
    if command.fresh_id in app.attempts:
        return Result(Verdict.DONE, command.fresh_id, FIRST_EPOCH, app.last)
    if len(app.attempts) >= PRODUCERS_COUNT_MAX:
        return Result(Verdict.TOO_MANY)
    app.used_ms = state.now_ms
    app.attempts[command.fresh_id] = Attempt(
        command.number,
        command.run,
        command.task,
        command.attempt,
        command.timeout_ms,
        state.now_ms,
        partitions=[],
    )
    return Result(Verdict.DONE, command.fresh_id, FIRST_EPOCH, app.last)


def _why_not(state: State, app: App, number: int, run: str) -> Result | None:
    """Why this run can neither open nor end anything under this number; a new run fences the others first."""
    if run in app.fenced:
        return Result(Verdict.RUN_FENCED, last=app.last)
    if run != app.run:
        _begin_run(state, app, run)
    if number <= app.last:
        return Result(Verdict.ALREADY_IN, last=app.last)
    if number in app.aborted:
        return Result(Verdict.NUMBER_ABORTED, last=app.last)
    return None


def _begin_run(state: State, app: App, run: str) -> None:
    if app.run:
        app.fenced.append(app.run)
        del app.fenced[:-FENCED_RUNS_MAX]
    app.run = run
    app.aborted = []
    for producer_id in list(app.attempts):
        _end(state, app, producer_id, commit=False)


def enlist(state: State, command: Enlist) -> Result:
    attempt = attempt_of(state, command.app, command.producer_id)
    if attempt is None or attempt.sealed:
        return Result(Verdict.BAD_STATE)
    if command.epoch != FIRST_EPOCH:
        return Result(Verdict.FENCED)
    if command.partition not in attempt.partitions:
        if len(attempt.partitions) >= PARTITIONS_COUNT_MAX:
            return Result(Verdict.TOO_MANY)
        attempt.partitions.append(command.partition)
    state.apps[command.app].used_ms = state.now_ms
    return DONE


def renew(state: State, command: Renew) -> Result:
    app = state.apps.get(command.app)
    if app is None or command.run != app.run:
        return Result(Verdict.RUN_FENCED if app is not None else Verdict.PART_GONE)
    gone = [each for each in command.producer_ids if each not in app.attempts]
    for producer_id in command.producer_ids:
        if producer_id not in gone:
            app.attempts[producer_id].began_ms = state.now_ms
    app.used_ms = state.now_ms
    return Result(Verdict.PART_GONE, gone[0]) if gone else DONE


def seal(state: State, command: Seal) -> Result:
    refused = _why_not_committed(state, command)
    if refused is not None:
        return refused
    app = state.apps[command.app]
    for part in command.parts:
        app.attempts[part.producer_id].sealed = True
    return DONE


def commit_joint(state: State, command: CommitJoint) -> Result:
    refused = _why_not_committed(state, command)
    if refused is not None:
        return refused
    app = state.apps[command.app]
    listed = dict.fromkeys(part.producer_id for part in command.parts)
    for producer_id in listed:
        if not app.attempts[producer_id].sealed:
            return Result(Verdict.PART_GONE, producer_id, why="it was never sealed")
    for producer_id, attempt in list(app.attempts.items()):
        if attempt.number <= command.number:
            _end(state, app, producer_id, commit=producer_id in listed)
    app.last = command.number
    app.aborted = [number for number in app.aborted if number > app.last]
    app.used_ms = state.now_ms
    return Result(Verdict.DONE, last=app.last)


def _why_not_committed(state: State, command: Seal | CommitJoint) -> Result | None:
    app = state.apps.get(command.app)
    if app is None and command.parts:
        return Result(Verdict.PART_GONE, command.parts[0].producer_id)
    if app is None:  # A batch of nothing is a number like any other.
        if is_bad_name(command.app) or is_bad_name(command.run) or command.number < 0:
            return Result(Verdict.BAD_NAME)
        if len(state.apps) >= PRODUCERS_COUNT_MAX:
            return Result(Verdict.TOO_MANY)
        app = state.apps[command.app] = App(fenced=[], aborted=[], attempts={}, run=command.run)
    refused = _why_not(state, app, command.number, command.run)
    if refused is not None:
        return refused
    for part in command.parts:
        attempt = app.attempts.get(part.producer_id)
        if attempt is None or attempt.number != command.number or attempt.run != command.run:
            return Result(Verdict.PART_GONE, part.producer_id)
        if not _lists(part, attempt):
            return Result(Verdict.PART_UNLISTED, part.producer_id)
    return None


def _lists(part: Part, attempt: Attempt) -> bool:
    """Whether what is listed is what was written, of these very creations of the topics.

    Enlisting comes before writing: an attempt may have enlisted where nothing of it has arrived.
    """
    return all(each in attempt.partitions for each in part.partitions)


def abort_joint(state: State, command: AbortJoint) -> Result:
    app = state.apps.get(command.app)
    if app is None:  # An attempt may be on its way: it must find that its number was given up.
        if is_bad_name(command.app) or is_bad_name(command.run) or command.number < 0:
            return Result(Verdict.BAD_NAME)
        if len(state.apps) >= PRODUCERS_COUNT_MAX:
            return Result(Verdict.TOO_MANY)
        app = state.apps[command.app] = App(fenced=[], aborted=[], attempts={}, run=command.run)
    if command.run in app.fenced:
        return Result(Verdict.RUN_FENCED, last=app.last)
    if command.run != app.run:
        _begin_run(state, app, command.run)
    if command.number <= app.last:
        return Result(Verdict.ALREADY_IN, last=app.last)
    if command.number not in app.aborted:
        app.aborted = sorted([*app.aborted, command.number])[-ABORTED_NUMBERS_MAX:]
    for producer_id, attempt in list(app.attempts.items()):
        if attempt.number == command.number:
            _end(state, app, producer_id, commit=False)
    app.used_ms = state.now_ms
    return Result(Verdict.DONE, last=app.last)


def time_out(state: State, app: App) -> bool:
    """Abort the attempts that have been open for too long; whether there were some."""
    late = [
        producer_id
        for producer_id, attempt in app.attempts.items()
        if attempt.began_ms + attempt.timeout_ms <= state.now_ms
    ]
    for producer_id in late:
        _end(state, app, producer_id, commit=False)
    return bool(late)


def _end(state: State, app: App, producer_id: int, *, commit: bool) -> None:
    attempt = app.attempts.pop(producer_id)
    if attempt.partitions:
        epoch = FIRST_EPOCH if commit else ABORTING_EPOCH
        state.endings[producer_id] = Ending(epoch, ONLY_NUMBER, commit, attempt.partitions)


def attempt_of(state: State, name: str, producer_id: int) -> Attempt | None:
    app = state.apps.get(name)
    return app.attempts.get(producer_id) if app is not None else None
