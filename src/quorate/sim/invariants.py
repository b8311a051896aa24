"""What must hold after every event, whatever the protocol: a running account of every replica and every log.

Each check costs the same however long the run is. By induction over the entries (log matching), looking at
one position says everything about the log below it, so a settled log is known by the epoch of each offset.

- one-leader: at most one leader per epoch (Raft §5.2).
- log-matching: an entry id names one entry behind one predecessor, everywhere and for ever (YB-6).
- leader-completeness: a new leader has everything settled in earlier epochs (Raft §5.4).
- state-machine-safety: each settled offset has one entry, on all replicas and for ever (Raft §5.4.3).
- machine-digest: machines that applied the same offset are in the same state.
- commit-regressed, commit-above-log: commit rises within one life and stays inside the log (OR-10).
- published-early: machines and readers get only what is settled and flushed on their own node.
- epoch-regressed: epochs never fall, not even over a restart, as far as they were flushed (YB-7).
- durable-lost: a restart has everything that was reported as flushed.
- acknowledged-unsettled: a client hears of success only for what is settled (rule 8).
- leader-cut: a leader never cuts its own log (Raft §5.3).
- kept-too-little: a log that keeps all but what expires starts at or below that.
- wrong-order: disk orders are numbered one by one, and completed in that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from quorate.core.effects import (
    Append,
    Commit,
    Cut,
    InstallSnapshot,
    Outcome,
    RemovePrefix,
    Repair,
    Reply,
    SaveState,
    StageChunk,
)
from quorate.core.entry import NOWHERE, EntryId, Flag, Header, Member, Membership, Rollback
from quorate.core.events import Expired, Failed, Loaded, Persisted, Started
from quorate.core.invariant import Violated

Entry = tuple[int, int, int, int, Any]
"""Of an entry id: the predecessor's epoch and offset, the entry's offset, its CRC, its control record."""


def valid(entries: Iterable[Entry]) -> list[Entry]:
    """Those of a log's stretch that its own ROLLBACKs leave: found anew, from the entries alone."""
    found: list[Entry] = []
    for entry in entries:
        control = entry[4]
        if type(control) is Rollback:
            found = [earlier for earlier in found if earlier[4] is not None or earlier[2] < control.first]
        found.append(entry)
    return found


class Settled:
    """The settled log of one partition: what nobody may contradict any more."""

    __slots__ = ("digests", "epochs", "rounds")

    def __init__(self) -> None:
        self.epochs: list[int] = []
        """The epoch of every settled offset."""
        self.rounds: list[tuple[int, int]] = []
        """(epoch of the leader that settled it, highest offset), ascending."""
        self.digests: dict[int, Any] = {}

    @property
    def commit(self) -> int:
        return len(self.epochs) - 1


class Shadow:
    """One replica as the world has seen it act, over all lives of one disk."""

    __slots__ = (
        "commit",
        "commit_before",
        "damaged",
        "durable",
        "durable_before",
        "epoch",
        "head",
        "head_before",
        "issued",
        "missing",
        "name",
        "node",
        "orders",
        "partition",
        "persisted",
        "published",
        "replica",
        "role",
        "saved",
        "settled",
    )

    def __init__(self, node: int, partition: int, settled: Settled) -> None:
        self.node = node
        self.partition = partition
        self.name = f"p{partition} n{node}"
        self.settled = settled
        self.replica: Any = None
        self.role = "follower"
        self.epoch = 0
        self.commit = self.commit_before = -1
        self.published = -1
        self.damaged = False
        """The world has flipped bytes of this disk: less may be found than was flushed."""
        self.missing = -1
        """Up to here it may lack entries that it never had: a snapshot stands for them, and peers are asked."""
        self.head = self.head_before = NOWHERE
        """Now, and before the step that is looked at."""
        self.durable = self.durable_before = NOWHERE
        self.saved: Any = None
        """The newest protocol state that was reported as flushed."""
        self.issued = 0
        self.persisted = 0
        self.orders: deque[tuple[int, EntryId | None, Any, bool]] = deque()
        """Orders on their way: (io, head afterwards, saved state, whether it takes the whole log's place)."""


class Invariants:
    """Sees every step of every replica. Raises Violated."""

    def __init__(self, partitions_count: int, room: Callable[[], Any] | None = None) -> None:
        self.settled = [Settled() for _ in range(partitions_count)]
        self.expired = [-1] * partitions_count
        """The last offset that somebody was told not to keep."""
        self.truncations = 0
        self.truncated_count = 0
        """Offsets that were cut, of all replicas together."""
        self.elections = 0
        self.room = room() if room is not None else None
        """The protocol's own invariants."""
        self.on_settled: Callable[[int, int, int], None] | None = None
        """Told every valid entry of the settled log, in order: its partition, first offset and CRC."""
        self.local: Callable[[int], float | None] = lambda node: None
        """What a node's clock shows; None if it is down, or if clocks keep no bounds."""
        self._born: list[Membership | None] = [None] * partitions_count
        self._memberships: list[dict[EntryId, tuple[Membership, EntryId]]] = [
            {} for _ in range(partitions_count)
        ]
        """What is in force behind an entry, and the entry that says so: see `membership_at`."""
        self._entries: list[dict[tuple[int, int], Entry]] = [{} for _ in range(partitions_count)]
        self.leaders: list[dict[int, int]] = [{} for _ in range(partitions_count)]
        self.shadows: dict[tuple[int, int], Shadow] = {}
        """By node and partition: whoever is there now."""
        self.buried: dict[tuple[int, Member], Shadow] = {}
        """By partition and member: those whose disk was wiped, as they were."""
        self._on_effect: dict[type, Callable[[Shadow, Any, Any], None]] = {
            Append: self._append,
            Cut: self._cut,
            SaveState: self._save_state,
            Repair: self._repair,
            StageChunk: self._order_only,
            InstallSnapshot: self._install,
            RemovePrefix: self._order_only,
            Commit: self._commit,
            Reply: self._reply,
        }
        self._on_event: dict[type, Callable[[Shadow, Any, Any], None]] = {
            Started: self._started,
            Persisted: self._persisted,
            Failed: self._failed,
            Loaded: self._loaded,
            Expired: self._has_expired,
        }

    def wiped(self, node: int) -> None:
        """A node lost its disk: whatever comes back is another replica."""
        for key in [key for key in self.shadows if key[0] == node]:
            shadow = self.shadows.pop(key)
            self.buried[shadow.partition, shadow.replica.me] = shadow

    def damaged(self, node: int) -> None:
        for (owner, _), shadow in self.shadows.items():
            if owner == node:
                shadow.damaged = True

    def stepped(self, node: int, partition: int, replica: Any, event: Any, effects: list[Any]) -> None:
        shadow = self.shadows.get((node, partition))
        if shadow is None or (type(event) is Started and self._is_another(shadow, replica)):
            damaged = shadow is not None
            shadow = self.shadows[node, partition] = Shadow(node, partition, self.settled[partition])
            shadow.damaged = damaged
        shadow.head_before = shadow.head
        shadow.commit_before = shadow.commit
        shadow.durable_before = shadow.durable
        on_event = self._on_event.get(type(event))
        if on_event is not None:
            on_event(shadow, replica, event)
        handlers = self._on_effect
        for effect in effects:
            on_effect = handlers.get(type(effect))
            if on_effect is not None:
                on_effect(shadow, replica, effect)
        if replica.commit != shadow.commit:
            if replica.commit < shadow.commit:
                raise Violated("commit-regressed", f"{shadow.name}: from {shadow.commit} to {replica.commit}")
            shadow.commit = replica.commit
            self._settle(shadow, replica, replica.commit)
        if replica.log.base.offset > self.expired[partition] and replica.keeps_all:
            raise Violated(
                "kept-too-little",
                f"{shadow.name} starts at {replica.log.base}; only up to {self.expired[partition]} may go",
            )
        if self.room is not None:
            self.room.stepped(self, shadow, replica, event, effects)
        led = shadow.role == "leader"
        if replica.epoch != shadow.epoch:
            if replica.epoch < shadow.epoch:
                raise Violated(
                    "epoch-regressed", f"{shadow.name} went from e{shadow.epoch} to e{replica.epoch}"
                )
            shadow.epoch = replica.epoch
            shadow.role = "follower"
        role = replica.role.name
        if role != shadow.role:
            shadow.role = role
            if role == "leader":
                self.elections += not led  # A leader may go on in another epoch.
                self._elected(shadow, replica)

    def _is_another(self, shadow: Shadow, replica: Any) -> bool:
        """What comes back where every copy of the state is unreadable is another member (rule 4)."""
        if shadow.replica is None or shadow.replica.me == replica.me:
            return False
        if not shadow.damaged:
            raise Violated("durable-lost", f"{shadow.name} came back as another, and nothing was damaged")
        self.buried[shadow.partition, shadow.replica.me] = shadow
        return True

    # --- events ---

    def _started(self, shadow: Shadow, replica: Any, event: Started) -> None:
        recovered = event.recovered
        if shadow.replica is not None:
            self._nothing_lost(shadow, replica, event)
        shadow.replica = replica
        voters = getattr(replica.config, "voters", None)  # Otherwise who counts is not a matter of the log.
        if voters is not None and self._born[shadow.partition] is None:
            quorums = getattr(replica.config, "quorums", None)
            self._born[shadow.partition] = Membership(voters, replica.config.learners, quorums=quorums)
        shadow.orders.clear()
        shadow.issued = shadow.persisted = 0
        shadow.head = shadow.durable = recovered.head
        shadow.role = "follower"
        shadow.epoch = replica.epoch
        shadow.saved = recovered.state
        shadow.commit = shadow.published = -1
        prev: EntryId | None = None
        for header in recovered.headers:
            self._match(shadow, header, prev)
            prev = header.id

    def _nothing_lost(self, shadow: Shadow, replica: Any, event: Started) -> None:
        """Damage may make entries unreadable, but that they were there is known (rule 2)."""
        recovered = event.recovered
        durable = shadow.durable
        held = recovered.head.offset >= durable.offset and (
            replica.log.holds(durable) or replica.log.span_at(durable.offset) is not None
        )
        if not held:
            raise Violated(
                "durable-lost", f"{shadow.name} had flushed up to {durable} and came back with {replica.log}"
            )
        if shadow.damaged:
            return
        if any(span.last.offset > shadow.missing for span in recovered.faulty):
            raise Violated(
                "durable-lost", f"{shadow.name} came back faulty, and nothing was damaged: {replica.log}"
            )
        if shadow.saved is not None and recovered.state is None:
            raise Violated("durable-lost", f"{shadow.name} came back without its state {shadow.saved}")
        saved_epoch = getattr(shadow.saved, "epoch", 0)
        if replica.epoch < saved_epoch:
            raise Violated(
                "epoch-regressed",
                f"{shadow.name} had flushed e{saved_epoch} and came back in e{replica.epoch}",
            )

    def _persisted(self, shadow: Shadow, replica: Any, event: Persisted) -> None:
        if not shadow.persisted <= event.io <= shadow.issued:
            raise Violated(
                "wrong-order", f"{shadow.name}: order {event.io} done, of {shadow.persisted}..{shadow.issued}"
            )
        shadow.persisted = event.io
        orders = shadow.orders
        while orders and orders[0][0] <= event.io:
            _, head, state, replaces = orders.popleft()
            if head is not None and (head.offset > shadow.durable.offset or replaces):
                shadow.durable = head
                shadow.head = head if replaces or head.offset > shadow.head.offset else shadow.head
            if state is not None:
                shadow.saved = state

    def _failed(self, shadow: Shadow, replica: Any, event: Failed) -> None:
        shadow.persisted = shadow.issued
        shadow.orders.clear()
        shadow.head = replica.log.head
        if event.head.offset > shadow.durable.offset:  # What was to be cut could not be.
            shadow.durable = event.head
        # What was heard to be settled and is not flushed here must be heard again; nobody was told of it.
        shadow.commit = min(shadow.commit, max(replica.commit, shadow.published))

    def _has_expired(self, shadow: Shadow, replica: Any, event: Expired) -> None:
        self.expired[shadow.partition] = max(self.expired[shadow.partition], event.to.offset)

    def _loaded(self, shadow: Shadow, replica: Any, event: Loaded) -> None:
        prev: EntryId | None = None
        for header in event.headers:
            self._match(shadow, header, prev)
            prev = header.id

    # --- effects ---

    def _order(
        self, shadow: Shadow, io: int, head: EntryId | None, state: Any = None, *, replaces: bool = False
    ) -> None:
        if io != shadow.issued + 1:
            raise Violated("wrong-order", f"{shadow.name} gave order {io} after order {shadow.issued}")
        shadow.issued = io
        shadow.orders.append((io, head, state, replaces))

    def _order_only(self, shadow: Shadow, replica: Any, effect: Any) -> None:
        self._order(shadow, effect.io, None)

    def _save_state(self, shadow: Shadow, replica: Any, effect: SaveState) -> None:
        self._order(shadow, effect.io, None, effect.state)

    def _append(self, shadow: Shadow, replica: Any, effect: Append) -> None:
        prev = shadow.head
        for header in effect.headers:
            is_part = header.flags & Flag.COMPACTED
            if header.offset != prev.offset + 1 or header.epoch < prev.epoch or is_part:
                raise Violated("log-matching", f"{shadow.name} appended {header} behind {prev}")
            self._match(shadow, header, prev)
            prev = header.id
        shadow.head = prev
        self._order(shadow, effect.io, prev)

    def _cut(self, shadow: Shadow, replica: Any, effect: Cut) -> None:
        self.truncations += 1
        self.truncated_count += max(0, shadow.head.offset - effect.to.offset)
        if shadow.role == "leader" and replica.role.name == "leader" and replica.epoch == shadow.epoch:
            raise Violated(
                "leader-cut", f"{shadow.name} leads e{shadow.epoch} and cut its own log to {effect.to}"
            )
        if effect.to.offset < shadow.commit:
            raise Violated("state-machine-safety", f"{shadow.name} cut to {effect.to} below {shadow.commit}")
        shadow.head = effect.to
        if shadow.durable.offset > effect.to.offset:
            shadow.durable = effect.to
        shadow.orders = deque(
            (io, effect.to if head is not None and head.offset > effect.to.offset else head, state, replaces)
            for io, head, state, replaces in shadow.orders
        )
        self._order(shadow, effect.io, None)

    def _repair(self, shadow: Shadow, replica: Any, effect: Repair) -> None:
        prev: EntryId | None = None
        for header in effect.headers:
            self._match(shadow, header, prev)
            prev = header.id
        self._order(shadow, effect.io, None)

    def _install(self, shadow: Shadow, replica: Any, effect: InstallSnapshot) -> None:
        last = effect.snapshot.last
        settled = shadow.settled
        if last.offset > settled.commit or settled.epochs[last.offset] != last.epoch:
            raise Violated("state-machine-safety", f"{shadow.name} installed {last}, which is not settled")
        if effect.start is not None and not effect.keep:
            shadow.missing = max(shadow.missing, last.offset)
        self._order(shadow, effect.io, last, replaces=not effect.keep)

    def _commit(self, shadow: Shadow, replica: Any, effect: Commit) -> None:
        """Machines and readers are told: there is no way back from here, not even through a restart."""
        if effect.offset <= shadow.published:
            raise Violated(
                "commit-regressed", f"{shadow.name} published {effect.offset} after {shadow.published}"
            )
        if effect.offset > replica.commit or effect.offset > shadow.durable.offset:
            raise Violated(
                "published-early",
                f"{shadow.name} published {effect.offset}, settled {replica.commit}, has {shadow.durable}",
            )
        shadow.published = effect.offset

    def _reply(self, shadow: Shadow, replica: Any, effect: Reply) -> None:
        # Leadership, as somebody wished; or an order to whoever has nothing settled yet: nothing was written.
        moved = effect.offset < 0 and (effect.leader or replica.commit < 0)
        if effect.outcome is Outcome.SETTLED and not moved and not 0 <= effect.offset <= replica.commit:
            raise Violated(
                "acknowledged-unsettled",
                f"{shadow.name} acknowledged {effect.offset}, commit {replica.commit}",
            )

    # --- who counts ---

    def membership_at(self, partition: int, entry: EntryId) -> tuple[Membership, EntryId]:
        """What is in force behind an entry, in whatever log it is, and which entry says so (or NOWHERE).

        An entry id has one predecessor everywhere (log-matching), so this is a matter of the entry alone.
        """
        known = self._memberships[partition]
        entries = self._entries[partition]
        way = []
        found = None
        while found is None:
            if entry.offset < 0:
                born = self._born[partition]
                assert born is not None
                found = (born, NOWHERE)
            elif (found := known.get(entry)) is None:
                way.append(entry)
                at = entries[entry.epoch, entry.offset]
                entry = EntryId(at[0], at[1])
        for passed in reversed(way):
            control = entries[passed.epoch, passed.offset][4]
            if type(control) is Membership:
                found = (control, passed)
            known[passed] = found
        return found

    def entry_before(self, partition: int, entry: EntryId) -> EntryId:
        known = self._entries[partition][entry.epoch, entry.offset]
        return EntryId(known[0], known[1])

    def of(self, partition: int, generation: int) -> Invariants:
        """The account of a partition's generation; where nothing turns, there is one of all."""
        return self

    def chain(self, partition: int, last: EntryId, *, above: int) -> list[Entry]:
        """The entries of any log that holds `last`, up to that one, from the first that lies above an offset on."""
        found = []
        while last.offset > above:
            entry = self._entries[partition][last.epoch, last.offset]
            found.append(entry)
            last = EntryId(entry[0], entry[1])
        return found[::-1]

    def knows(self, partition: int, entry: EntryId) -> bool:
        return (entry.epoch, entry.offset) in self._entries[partition]

    def seed(
        self,
        partition: int,
        last: EntryId,
        before: Invariants,
        *,
        born: Membership | None = None,
        above: int = -1,
    ) -> None:
        """This account goes on behind an entry that another one knows; who counts is said anew (generations.py)."""
        if born is None:
            born = self._born[partition]
        assert born is not None
        self._born[partition] = born
        known = self._entries[partition]
        while last.offset > above:
            entry = before._entries[partition][last.epoch, last.offset]
            if known.setdefault((last.epoch, last.offset), entry) != entry:
                raise Violated("log-matching", f"p{partition}: {last} is {entry}, and was another before")
            self._memberships[partition].setdefault(last, (born, NOWHERE))
            last = EntryId(entry[0], entry[1])

    def membership(self, partition: int, offset: int | None = None) -> Membership:
        """What the settled log says at an offset, or at its end."""
        epochs = self.settled[partition].epochs
        at = len(epochs) - 1 if offset is None else offset
        if not epochs or at < 0:
            born = self._born[partition]
            assert born is not None
            return born
        while (epochs[at], at) not in self._entries[partition]:
            at += 1 if offset is not None else -1  # Inside of an entry.
        return self.membership_at(partition, EntryId(epochs[at], at))[0]

    # --- what they come down to ---

    def _match(self, shadow: Shadow, header: Header, prev: EntryId | None) -> None:
        """One entry per entry id. A control entry is known by its record: the core does not know its CRC."""
        entries = self._entries[shadow.partition]
        key = (header.epoch, header.offset + header.count - 1)
        known = entries.get(key)
        if header.flags & Flag.COMPACTED and known is not None:
            return  # What is left of a run of entries, known by the last of them.
        crc = header.crc if header.control is None else 0
        if known is None:
            if prev is None:  # Every append is seen, so somebody must have appended it.
                raise Violated("log-matching", f"{shadow.name} has {header}, which nobody appended")
            entries[key] = (prev.epoch, prev.offset, header.offset, crc, header.control)
            return
        if known[2] != header.offset or known[3] != crc or known[4] != header.control:
            raise Violated("log-matching", f"{shadow.name} has {header} where another has {known}")
        if prev is not None and (known[0] != prev.epoch or known[1] != prev.offset):
            raise Violated(
                "log-matching", f"{shadow.name} has {header} behind {prev}, another {known[0]}-{known[1]}"
            )

    def _settle(self, shadow: Shadow, replica: Any, offset: int) -> None:
        log = replica.log
        if offset > log.head.offset:
            raise Violated("commit-above-log", f"{shadow.name} has commit {offset} and {log}")
        settled = shadow.settled
        epochs = settled.epochs
        common = min(offset, len(epochs) - 1)
        if common >= log.base.offset and common >= 0:
            mine = log.epoch_at(common)
            if mine and mine != epochs[common]:
                raise Violated(
                    "state-machine-safety",
                    f"{shadow.name} settled {mine}-{common} where {epochs[common]}-{common} was settled",
                )
        if offset <= common:
            return
        if log.base.offset > common:
            raise Violated(
                "state-machine-safety", f"{shadow.name} starts at {log.base}, beyond commit {common}"
            )
        epochs.extend(log.epoch_at(position) for position in range(common + 1, offset + 1))
        if self.on_settled is not None:
            entries = self._entries[shadow.partition]
            found = [entries.get((epochs[position], position)) for position in range(common + 1, offset + 1)]
            for entry in valid(entry for entry in found if entry is not None):  # Otherwise inside of one.
                self.on_settled(shadow.partition, entry[2], entry[3])
        if settled.rounds and settled.rounds[-1][0] == replica.epoch:
            settled.rounds.pop()
        settled.rounds.append((replica.epoch, offset))
        if self.room is not None:
            self.room.settled(self, shadow, replica, offset)

    def _elected(self, shadow: Shadow, replica: Any) -> None:
        leaders = self.leaders[shadow.partition]
        other = leaders.setdefault(replica.epoch, shadow.node)
        if other != shadow.node:
            raise Violated("one-leader", f"{shadow.name} leads e{replica.epoch}, as n{other} does")
        log = replica.log
        for epoch, offset in reversed(shadow.settled.rounds):
            if epoch >= replica.epoch:
                continue  # Settled by a later leader, unknown to one who was elected late.
            if offset > log.base.offset and not log.holds(EntryId(shadow.settled.epochs[offset], offset)):
                raise Violated(
                    "leader-completeness",
                    f"{shadow.name} leads e{replica.epoch} with {log} without"
                    f" {shadow.settled.epochs[offset]}-{offset}, settled in e{epoch}",
                )
            break

    def applied(self, node: int, partition: int, offset: int, digest: Any) -> None:
        """A machine has applied everything up to `offset`."""
        known = self.settled[partition].digests.setdefault(offset, digest)
        if known != digest:
            raise Violated(
                "machine-digest", f"p{partition} n{node} at {offset}: {digest}, another has {known}"
            )
