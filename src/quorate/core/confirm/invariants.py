"""What must hold after every event of a `confirm` group, beside what holds in raft (core/raft/invariants.py).

Votes are rows of `_voting` here, and quorums have the sizes that the membership says; the rest is as there.

| invariant | says | source |
| --- | --- | --- |
| decided-twice | a settled record is valid or void on all replicas alike, and for ever | D8, TT-5 |
| published-inside | what a ROLLBACK takes back is not handed out without the ROLLBACK itself | D8 |
| confirm-unsettled | a CONFIRM names what is settled and valid, and was not named before | TT-5, TT-6 |
| first-not-promote | the first entry of a leader's epoch is its PROMOTE | D6 |
| writable-early | a leader takes no records before its PROMOTE is settled | TT-17, TT-20 |
| writable-closed | nor while a ROLLBACK is open, when it was set read-only, or is being demoted | TT-10, TT-21 |
| rollback-settled | a ROLLBACK takes back nothing that is settled | TT-10, D8 |
| rollback-early | nobody hears of a rollback before its ROLLBACK is settled | D8 |
| async-overtakes | answered early: what is flushed, not rolled back, behind nothing synchronous | TT-34, TT-37 |
| loose-counts | who was cut loose neither votes nor counts until it is joined again | D9 |
"""

from __future__ import annotations

from typing import Any

from quorate.core import commands
from quorate.core.confirm.messages import AppendResponse, GoneResponse, Says
from quorate.core.effects import Append, Cut, Outcome, Reply, Send
from quorate.core.entry import Confirm, EntryId, Flag, Header, Kind, Member, Membership, Promote, Rollback
from quorate.core.events import Commanded, Received, Started
from quorate.core.invariant import Violated
from quorate.core.raft.invariants import RaftInvariants

Group = tuple[int, int]
"""A partition and an epoch: one leader's work."""
Place = tuple[int, int]
"""A partition and a node."""


class Reign:
    """What one leader has done in its epoch."""

    __slots__ = ("closed", "confirmed", "promote", "rollback", "rolls_from", "synchronous")

    def __init__(self, promote: int) -> None:
        self.promote = promote
        """Where its PROMOTE stands."""
        self.rollback = -1
        """Where its newest ROLLBACK stands."""
        self.rolls_from = -1
        """The first offset that it names."""
        self.confirmed = -1
        self.closed: dict[str, bool] = {}
        """Why it takes no records, by the orders that it was given."""
        self.synchronous: list[int] = []
        """The ends of synchronous transactions, as they were appended."""


class ConfirmInvariants(RaftInvariants):
    def __init__(self) -> None:
        super().__init__()
        self._sent[Says] = self._says
        self.confirms = 0
        """CONFIRMs that leaders wrote,"""
        self.rollbacks = 0
        """ROLLBACKs that are settled,"""
        self.undone = 0
        """transactions that were taken back, on any replica, by a ROLLBACK or a cut,"""
        self.promotions = 0
        """and leaders whose PROMOTE is settled."""
        self._reigns: dict[Group, Reign] = {}
        self._void: dict[int, set[int]] = {}
        """By partition: the settled offsets that were rolled back."""
        self._taken_back: dict[int, list[tuple[int, int]]] = {}
        """By partition: the first offset that a settled ROLLBACK takes back, and its own."""
        self._looked: dict[Place, int] = {}
        """Up to where a replica's view of what is void was compared."""
        self._orders: dict[tuple[int, int, int], Any] = {}
        """By partition, node and request: orders that are not answered."""
        self._gave_up: dict[tuple[int, Member], list[EntryId]] = {}
        """By partition: what a member had flushed when it was cut loose. Leaders may have counted it before."""
        self._said_loose: set[tuple[Group, Member]] = set()
        """Whose newest answer to the leader of an epoch was that it does not count."""
        self._settling: int | None = None
        """Up to where this step has settled more than any before."""
        self._decided: dict[int, int] = {}
        """By partition: up to where it is known what is void."""

    def stepped(self, world: Any, shadow: Any, replica: Any, event: Any, effects: list[Any]) -> None:
        kind = type(event)
        if kind is Started:
            self._started(shadow)
        elif kind is Commanded:
            self._commanded(shadow, replica, event.command)
        elif kind is Received and type(event.message) is AppendResponse:
            self._heard(shadow, replica, event.sender, event.message)
        if self._settling is not None:
            offset, self._settling = self._settling, None
            super().settled(world, shadow, replica, offset)
            self._decide(world, shadow, offset)
        super().stepped(world, shadow, replica, event, effects)
        for effect in effects:
            if type(effect) is Reply:
                self._replied(world, shadow, replica, effect)
            elif type(effect) is Cut:
                self._cut(world, shadow, effect)
        self._compare(world, shadow, replica)

    def _started(self, shadow: Any) -> None:
        place = (shadow.partition, shadow.node)
        self._looked.pop(place, None)
        for key in [key for key in self._orders if key[:2] == place]:
            del self._orders[key]

    def _reign(self, shadow: Any, replica: Any) -> Reign | None:
        """Of this replica, while it leads."""
        leads = replica.role.name == "leader" or (shadow.role == "leader" and shadow.epoch == replica.epoch)
        return self._reigns.get((shadow.partition, replica.epoch)) if leads else None

    # --- votes ---

    def _says(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        message: Says = effect.message
        if message.stands:
            # Rows go to everybody, learners too; who counts is for the nominee to know (see `_elected`).
            membership = world.membership_at(shadow.partition, shadow.head)[0]
            nodes = {member.node for member in membership.members}
            self._asked[shadow.partition, replica.me.node, message.epoch] = nodes
        if not message.row.aye:
            self._epoch_saved(shadow, effect)
            return
        if replica.loose:
            raise Violated("loose-counts", f"{shadow.name} is loose, and votes: {message.row}")
        self._voted(shadow, replica, message.row.epoch, message.row.nominee)

    def _gone_response(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        message: GoneResponse = effect.message
        if replica.loose and message.gone:
            raise Violated("loose-counts", f"{shadow.name} is loose, and says that the leader is gone")
        super()._gone_response(world, shadow, replica, effect)

    def _new_epoch(self, shadow: Any, replica: Any, event: Any, membership: Membership) -> None:
        if type(event) is not Commanded or type(event.command) is not commands.Promote:
            super()._new_epoch(shadow, replica, event, membership)

    def _acts(self, world: Any, shadow: Any, replica: Any, event: Any) -> None:
        if replica.loose:
            raise Violated("loose-counts", f"{shadow.name} is loose, and {replica.role.name}")
        super()._acts(world, shadow, replica, event)

    # --- what is flushed where ---

    def _append_response(self, world: Any, shadow: Any, replica: Any, effect: Send) -> None:
        if replica.loose and effect.message.accepted and not effect.message.loose:
            raise Violated("loose-counts", f"{shadow.name} is loose, and answers: {effect.message}")
        super()._append_response(world, shadow, replica, effect)

    def _heard(self, shadow: Any, replica: Any, sender: Member, message: AppendResponse) -> None:
        if message.epoch != replica.epoch or not message.accepted:
            return
        said = ((shadow.partition, message.epoch), sender)
        if message.loose:
            self._said_loose.add(said)
        else:
            self._said_loose.discard(said)

    def _has(self, world: Any, partition: int, member: Member, entry: EntryId) -> bool:
        if ((partition, entry.epoch), member) in self._said_loose:
            return False
        given_up = self._gave_up.get((partition, member), ())
        return super()._has(world, partition, member, entry) or any(
            self._holds(world, partition, last, entry) for last in given_up
        )

    def _holds(self, world: Any, partition: int, last: EntryId, entry: EntryId) -> bool:
        """Whether a log that ends with `last` has that entry."""
        while last.offset > entry.offset:
            last = world.entry_before(partition, last)
        return bool(last == entry)

    # --- entries ---

    def _append(self, world: Any, shadow: Any, replica: Any, effect: Append) -> None:
        super()._append(world, shadow, replica, effect)
        for header in effect.headers:
            if type(header.control) is Rollback:
                self.undone += self._records(world, shadow, header.id, header.control.first)
            if replica.role.name == "leader" and replica.epoch == header.epoch:
                self._led(world, shadow, replica, header)

    def _led(self, world: Any, shadow: Any, replica: Any, header: Header) -> None:
        """A leader has appended something of its own."""
        group = (shadow.partition, header.epoch)
        control = header.control
        if group not in self._reigns:
            if type(control) is not Promote:
                raise Violated("first-not-promote", f"{shadow.name} began e{header.epoch} with {header}")
            self._reigns[group] = Reign(header.offset)
        reign = self._reigns[group]
        if type(control) is Confirm:
            self._confirms(world, shadow, reign, header, control)
        elif type(control) is Rollback:
            self._rolls_back(world, shadow, reign, header, control)
        elif header.kind == Kind.RECORDS:
            self._takes(world, shadow, replica, reign, header)

    def _takes(self, world: Any, shadow: Any, replica: Any, reign: Reign, header: Header) -> None:
        settled = world.settled[shadow.partition].commit
        if min(settled, shadow.commit_before) < reign.promote:
            raise Violated(
                "writable-early", f"{shadow.name} took {header}, its PROMOTE is at {reign.promote}"
            )
        closed = [why for why, is_so in reign.closed.items() if is_so]
        if reign.rollback > shadow.commit_before:
            closed.append(f"rolls back at {reign.rollback}")
        if closed:
            raise Violated(
                "writable-closed", f"{shadow.name} took {header}, though it {' and '.join(closed)}"
            )
        if header.flags & Flag.SYNCHRONOUS:
            reign.synchronous.append(header.last)

    def _confirms(self, world: Any, shadow: Any, reign: Reign, header: Header, control: Confirm) -> None:
        self.confirms += 1
        settled = world.settled[shadow.partition]
        upto = control.upto
        said = f"{shadow.name} confirmed {upto} by {header.id}"
        if upto.offset > settled.commit or settled.epochs[upto.offset] != upto.epoch:
            raise Violated("confirm-unsettled", f"{said}, {settled.commit} is settled")
        if upto.offset in self._void.get(shadow.partition, ()):
            raise Violated("confirm-unsettled", f"{said}, which was rolled back")
        if upto.offset <= reign.confirmed:
            raise Violated("confirm-unsettled", f"{said}, and {reign.confirmed} before")
        reign.confirmed = upto.offset

    def _rolls_back(self, world: Any, shadow: Any, reign: Reign, header: Header, control: Rollback) -> None:
        # What it knows to be settled: of a successor's doings it need not know yet.
        settled = shadow.commit_before
        if control.first <= settled:
            raise Violated(
                "rollback-settled", f"{shadow.name} takes back {control.first}, {settled} is settled"
            )
        reign.rollback, reign.rolls_from = header.offset, control.first

    def _cut(self, world: Any, shadow: Any, effect: Cut) -> None:
        self.undone += self._records(world, shadow, shadow.head_before, effect.to.offset + 1)

    def _records(self, world: Any, shadow: Any, last: EntryId, first: int) -> int:
        """Transactions from an offset on, in a log that ends with `last`."""
        stretch = world.chain(shadow.partition, last, above=first - 1)
        return sum(entry[4] is None for entry in stretch)

    # --- orders and answers ---

    def _commanded(self, shadow: Any, replica: Any, command: Any) -> None:
        self._orders[shadow.partition, shadow.node, command.request] = command
        if type(command) is commands.CutLoose and replica.loose:
            given_up = self._gave_up.setdefault((shadow.partition, replica.me), [])
            given_up.append(shadow.durable_before)
        reign = self._reign(shadow, replica)
        if reign is None:
            return
        if type(command) is commands.SetReadOnly:
            reign.closed["was set read-only"] = command.read_only
        elif type(command) is commands.Demote:
            reign.closed["is being demoted"] = True

    def _replied(self, world: Any, shadow: Any, replica: Any, reply: Reply) -> None:
        order = self._orders.pop((shadow.partition, shadow.node, reply.request), None)
        reign = self._reign(shadow, replica)
        if reply.outcome is Outcome.ROLLED_BACK:
            if reply.offset not in self._void.get(shadow.partition, ()):
                raise Violated("rollback-early", f"{shadow.name} says that {reply.offset} was rolled back")
        elif reply.outcome is Outcome.FLUSHED:
            self._flushed(shadow, replica, reign, reply.offset)
        elif type(order) is commands.RollBack and reply.outcome is Outcome.SETTLED:
            at = reign.rollback if reign is not None else 1 << 62
            if at > world.settled[shadow.partition].commit:
                raise Violated("rollback-early", f"{shadow.name} says that its ROLLBACK at {at} is done")
        elif type(order) is commands.Demote and reply.outcome is Outcome.TIMED_OUT and reign is not None:
            reign.closed["is being demoted"] = False  # Given up, and whoever ordered it knows.

    def _flushed(self, shadow: Any, replica: Any, reign: Reign | None, offset: int) -> None:
        said = f"{shadow.name} answered {offset} early"
        if reign is None:
            raise Violated("async-overtakes", f"{said}, and does not lead")
        if offset > shadow.durable.offset:
            raise Violated("async-overtakes", f"{said}, flushed: {shadow.durable}")
        ahead = [last for last in reign.synchronous if replica.commit < last]
        if ahead and ahead[0] <= offset:
            raise Violated("async-overtakes", f"{said}; the synchronous one at {ahead[0]} is not settled")
        if reign.rollback > replica.commit and offset >= reign.rolls_from:
            raise Violated("async-overtakes", f"{said}; the ROLLBACK at {reign.rollback} takes it back")

    # --- what is settled, and how ---

    def settled(self, world: Any, shadow: Any, replica: Any, offset: int) -> None:
        """Looked at when this step's event is: whose answer it was decides who counts."""
        self._settling = offset

    def _decide(self, world: Any, shadow: Any, offset: int) -> None:
        partition = shadow.partition
        last = EntryId(world.settled[partition].epochs[offset], offset)
        known = self._void.setdefault(partition, set())
        above, self._decided[partition] = self._decided.get(partition, -1), offset
        for entry in world.chain(partition, last, above=above):
            control = entry[4]
            self.promotions += type(control) is Promote
            if type(control) is Rollback:
                self.rollbacks += 1
                if control.first <= above and not control.forced:
                    said = f"the ROLLBACK at {entry[1]} takes {control.first} back, which was settled"
                    raise Violated("decided-twice", f"{shadow.name}: {said}")
                self._taken_back.setdefault(partition, []).append((control.first, entry[1]))
                voided = world.chain(partition, EntryId(entry[0], entry[1]), above=control.first - 1)
                ends = [other[2] for other in voided[1:]] + [entry[2]]
                for other, end in zip(voided, ends, strict=True):
                    known.update(range(other[2], end) if other[4] is None else ())

    def remember(self, partition: int, earlier: Any) -> None:
        """What is void stays void, whatever protocols there were since (017)."""
        if isinstance(earlier, ConfirmInvariants):
            self._void.setdefault(partition, set()).update(earlier._void.get(partition, ()))
            self._taken_back.setdefault(partition, []).extend(earlier._taken_back.get(partition, ()))

    def is_void(self, partition: int, offset: int) -> bool:
        """Whether the records there are settled as rolled back."""
        return offset in self._void.get(partition, ())

    def _compare(self, world: Any, shadow: Any, replica: Any) -> None:
        """What a replica has settled is void to it as it is to everybody. What it cannot read, it cannot know."""
        log = replica.log
        place = (shadow.partition, shadow.node)
        looked = max(self._looked.get(place, -1), log.base.offset)
        if log.faulty or shadow.published <= looked:
            return
        self._looked[place] = shadow.published
        for first, at in self._taken_back.get(shadow.partition, ()):
            if first <= shadow.published < at:
                said = f"{shadow.published}, and not the ROLLBACK at {at} of all from {first} on"
                raise Violated("published-inside", f"{shadow.name} hands out {said}")
        epochs = world.settled[shadow.partition].epochs
        last = EntryId(epochs[shadow.published], shadow.published)
        known = self._void.get(shadow.partition, set())
        for entry in world.chain(shadow.partition, last, above=looked):
            if entry[4] is None and log.is_void(entry[2]) != (entry[2] in known):
                said = "valid" if entry[2] in known else "void"
                raise Violated("decided-twice", f"{shadow.name} takes {entry[2]} for {said}, others do not")
