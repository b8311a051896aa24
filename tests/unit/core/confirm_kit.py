"""Small words for tests of `confirm`: a replica on the bench, a leader with its limbo, and what is said to it."""

from __future__ import annotations

from random import Random
from typing import Any

from quorate.core import commands, confirm, effects, events
from quorate.core.confirm.leader import Leader
from quorate.core.confirm.messages import AppendEntries, AppendResponse, GoneResponse, Row, Says
from quorate.core.effects import Effect, Outcome
from quorate.core.entry import (
    NOWHERE,
    Confirm,
    Control,
    EntryId,
    Flag,
    Header,
    Kind,
    Member,
    Promote,
    Quorums,
    Rollback,
)
from tests.unit.core.kit import N1, N2, THREE, Stand, of_kind

TUNING = confirm.Tuning(election_timeout_s=1.0, heartbeat_s=0.1, keep_behind=0)
MANUAL = confirm.Tuning(election_timeout_s=1.0, heartbeat_s=0.1, keep_behind=0, automatic=False)
SYNC = Flag.SYNCHRONOUS


def log_of(text: str) -> tuple[Header, ...]:
    """`1-0P 1-1s 1-2a 1-3C1 1-4R2`: PROMOTE, a synchronous and an asynchronous transaction, CONFIRM of everything
    up to offset 1, ROLLBACK of everything from offset 2 on."""
    headers: list[Header] = []
    for word in text.split():
        epoch_word, rest = word.split("-")
        epoch = int(epoch_word)
        digits = len(rest) - len(rest.lstrip("0123456789"))
        offset, letter, more = int(rest[:digits]), rest[digits], rest[digits + 1 :]
        if letter in "sa":
            headers.append(Header(epoch, offset, size=100, flags=SYNC if letter == "s" else 0))
            continue
        control: Control
        if letter == "P":
            control = Promote(int(more or 1), 0)
        elif letter == "C":
            upto = int(more)
            at = next((header.id for header in headers if header.last == upto), EntryId(epoch, upto))
            control = Confirm(at)
        else:
            assert letter == "R", word
            control = Rollback(int(more))
        headers.append(Header(epoch, offset, kind=Kind.CONTROL, control=control))
    return tuple(headers)


def found(log: str, *, base: EntryId = NOWHERE, **more: Any) -> events.Recovered:
    """What is on the disk of a replica with that log."""
    headers = log_of(log)
    epochs: list[tuple[int, int]] = []
    for header in headers:
        if header.epoch != (epochs[-1][0] if epochs else base.epoch):
            epochs.append((header.epoch, header.offset))
    controls = tuple(header for header in headers if header.control is not None)
    head = headers[-1].id if headers else base
    return events.Recovered(base, head, tuple(epochs), headers, controls, **more)


class Bench(Stand):
    """One replica on the bench."""

    def __init__(
        self,
        me: Member = N1,
        log: str = "",
        *,
        voters: tuple[Member, ...] = THREE,
        learners: tuple[Member, ...] = (),
        quorums: Quorums | None = None,
        tuning: confirm.Tuning = TUNING,
        epoch: int = 0,
        vote: Member | None = None,
        state: confirm.SavedState | None = None,
        **more: Any,
    ) -> None:
        self.now = 0.0
        config = confirm.Config(me, voters, learners, tuning, quorums=quorums)
        self.replica: confirm.Replica = confirm.Replica(config, Random(me.node))
        saved = state if state is not None else confirm.SavedState(epoch, vote)
        self.started = self.tell(events.Started(found(log, state=saved, **more)))

    @property
    def leading(self) -> Leader:
        role = self.replica.role
        assert isinstance(role, Leader)
        return role

    def command(self, command: commands.Command) -> list[Effect]:
        return self.tell(events.Commanded(command))

    def miss_leader(self) -> None:
        """Let so much time pass that it owes nobody its vote, and not so much that it stands."""
        self.now = max(self.now, self.replica.promised_until)

    def stand(self) -> list[Effect]:
        """Let it miss its leader, and everybody with it: a nominee, whose row is saved and said."""
        self.wake()
        for voter in sorted(self.replica.voters):
            if self.replica.role.name != "prospect":
                break
            if voter != self.replica.me:
                self.receive(voter, GoneResponse(self.replica.epoch, self.replica.times_asked, True))
        assert self.replica.role.name == "candidate"
        return self.persist() + self.persist()

    def promote(self, request: int = 7, *, roll_back: bool = False) -> list[Effect]:
        """Somebody orders it to stand: a nominee, whose row is saved and said."""
        ordered = self.command(commands.Promote(request, roll_back))
        return ordered + self.persist() + self.persist()

    def elect(self, *voters: Member, commit: int = -1) -> list[Effect]:
        """These say AYE, and it leads; returns what it orders then."""
        ordered: list[Effect] = []
        for voter in voters or sorted(self.replica.voters):
            if self.replica.role.name == "leader":
                break
            if voter != self.replica.me:
                ordered = self.receive(voter, aye(self, commit=commit))
        assert self.replica.role.name == "leader"
        return ordered

    def kinds(self) -> str:
        """The log as `log_of` writes it."""
        return " ".join(map(_word, self.replica.log.window))


def _word(header: Header) -> str:
    at, control = f"{header.epoch}-{header.offset}", header.control
    if isinstance(control, Promote):
        return f"{at}P{control.leader if control.leader != 1 else ''}"
    if isinstance(control, Confirm):
        return f"{at}C{control.upto.offset}"
    if isinstance(control, Rollback):
        return f"{at}R{control.first}"
    if control is not None:
        return f"{at}M"
    return f"{at}{'s' if header.flags & SYNC else 'a'}"


# ---- leaders and followers ----


def new_leader(log: str = "", **more: Any) -> Bench:
    """N1 stands with that log, and wins with everybody's vote. Its PROMOTE is flushed here and nowhere else."""
    bench = Bench(N1, log, **more)
    if more.get("tuning", TUNING).automatic:
        bench.stand()
    else:
        bench.promote()
    bench.elect()
    bench.persist()
    return bench


def leader(log: str = "", **more: Any) -> Bench:
    """The same, and everybody streams and has its PROMOTE: it takes writes."""
    bench = new_leader(log, **more)
    head = bench.replica.log.head.offset
    others = [member for member in sorted(bench.replica.membership.members) if member != N1]
    for member in others:
        bench.receive(member, AppendResponse(bench.replica.epoch, True, head - 1, head - 1, -1))
    for member in others:
        flushed(bench, member, head)
    bench.persist()
    for member in others:
        flushed(bench, member, bench.replica.log.head.offset)
    bench.persist()
    assert bench.replica.commit == bench.replica.log.head.offset
    return bench


def following(log: str = "1-0P", *, commit: int | None = None, me: Member = N2, **more: Any) -> Bench:
    """N2 follows N1 in the epoch of its head, has just heard from it, and knows that much to be settled."""
    epoch = log_of(log)[-1].epoch
    bench = Bench(me, log, epoch=epoch, **more)
    bench.miss_leader()
    head = bench.replica.log.head
    bench.receive(N1, AppendEntries(epoch, head, head.offset if commit is None else commit))
    bench.persist()
    return bench


# ---- what it is told ----


def propose(bench: Bench, request: int = 1, flags: int = SYNC, **header: Any) -> list[Effect]:
    """A transaction of one entry; a synchronous one unless it is said otherwise."""
    return bench.tell(events.Proposed(request, (Header(0, 0, size=10, flags=flags, **header),)))


def flushed(bench: Bench, follower: Member, offset: int, **more: Any) -> list[Effect]:
    return bench.receive(follower, AppendResponse(bench.replica.epoch, True, offset, offset, -1, **more))


def keep_alive(bench: Bench, *members: Member) -> None:
    """They have what is settled, and say so."""
    commit = bench.replica.commit
    for member in members:
        bench.receive(member, AppendResponse(bench.replica.epoch, True, commit, commit, commit))


def let_time_pass(bench: Bench, seconds: float) -> list[Effect]:
    """So long, waking it whenever it wants."""
    ordered: list[Effect] = []
    until = bench.now + seconds
    while (deadline := bench.replica.deadline()) is not None and deadline <= until:
        ordered += bench.wake()
    bench.now = until
    return ordered


def send(bench: Bench, prev: EntryId, text: str, *, commit: int = -1, sender: Member = N1) -> list[Effect]:
    """The leader sends these entries."""
    headers = log_of(text)
    return bench.receive(sender, AppendEntries(headers[-1].epoch, prev, commit, headers))


def nominate(
    bench: Bench, nominee: Member, epoch: int, last: EntryId, *, ordered: bool = True
) -> list[Effect]:
    """A nominee's row arrives."""
    return bench.receive(nominee, Says(epoch, Row(epoch, nominee.node, True), last, True, ordered))


def aye(bench: Bench, *, commit: int | None = -1, last: EntryId = NOWHERE) -> Says:
    """To this nominee."""
    epoch = bench.replica.epoch
    return Says(epoch, Row(epoch, bench.replica.me.node, True), last, commit=commit)


def nay(bench: Bench, last: EntryId, *, faulty: bool = False) -> Says:
    epoch = bench.replica.epoch
    return Says(epoch, Row(epoch, bench.replica.me.node), last, faulty=faulty)


# ---- what it orders ----


def outcomes(ordered: list[Effect]) -> list[tuple[int, Outcome]]:
    """Who was answered what."""
    return [(reply.request, reply.outcome) for reply in of_kind(ordered, effects.Reply)]


def reasons(ordered: list[Effect]) -> list[str]:
    return [reply.why for reply in of_kind(ordered, effects.Reply)]


def reports(ordered: list[Effect]) -> list[str]:
    return [report.what for report in of_kind(ordered, effects.Report)]


def committed(ordered: list[Effect]) -> list[int]:
    """What machines and readers got, step by step."""
    return [effect.offset for effect in of_kind(ordered, effects.Commit)]


def appended(ordered: list[Effect]) -> str:
    """Everything that was appended, as `log_of` writes it."""
    return " ".join(_word(header) for effect in of_kind(ordered, effects.Append) for header in effect.headers)
