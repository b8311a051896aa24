"""One consumer group, as the node that coordinates it sees it: who joins, who leaves, who is heard of, who
waits.

It goes in rounds. When somebody comes or goes, all members are called back (PREPARING); who has come by then is
the next generation, and one of them leads it (COMPLETING); the leader shares out the partitions, which is
written down, and everybody hears its share (STABLE). Clients share out, by a protocol that all of them know: to
this side it is bytes.

Time comes in as an argument, answers go out through functions, and so does what is to be written down: the log
has the group as of its last complete round, and a coordinator that takes over begins with that
(`LiveGroup.revived`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from kio.schema.errors import ErrorCode

from quorate.kafka.group_member import (
    NO_GENERATION,
    Join,
    Joined,
    Limits,
    Live,
    Stage,
    Sync,
    Synced,
    WhenJoined,
    WhenSynced,
    chosen_protocol,
    common_protocols,
    revived,
)
from quorate.machine.groups import Group, Member

MEMBER_BYTES_MAX = 1 << 20
"""Of what one member says to all its protocols; and of its share."""
GROUP_BYTES_MAX = 8 << 20
"""Of all that is written down of a group's members."""
SAVE_AGAIN_S = 0.5


class Saved(Protocol):
    """A group's members as they are to be written down."""

    def __call__(
        self, group: LiveGroup, members: tuple[Member, ...], done: Callable[[ErrorCode], None]
    ) -> None: ...


class LiveGroup:
    def __init__(self, name: str, limits: Limits, save: Saved, new_id: Callable[[Join], str]) -> None:
        self.name = name
        self.stage = Stage.EMPTY
        self.protocol_type = ""
        self.protocol = ""
        self.generation = 0
        self.leader = ""
        self.members: dict[str, Live] = {}
        self.limits = limits
        self._save = save
        self._new_id = new_id
        self._static: dict[str, str] = {}
        """Ids of static members, by instance."""
        self._announced: dict[str, float] = {}
        """Ids that were given out to members who have not come with them yet, and until when they may."""
        self._round_ends: float | None = None
        """When PREPARING is over, whoever is missing."""
        self._gathering: tuple[float, int] | None = None
        """In the first round: until when it may last at most, and how many had come when it was last looked at."""
        self._sync_ends: float | None = None
        """By then every member of the generation has asked for its share, or is gone."""
        self._unsynced: set[str] = set()
        self._shared_out = NO_GENERATION
        """The generation whose shares are being written down, or are."""
        self._saving = 0
        self._save_again: float | None = None

    @classmethod
    def revived(
        cls, now: float, name: str, group: Group, limits: Limits, save: Saved, new_id: Callable[[Join], str]
    ) -> LiveGroup:
        """As the log has it."""
        live = cls(name, limits, save, new_id)
        live.protocol_type, live.generation = group.protocol_type, group.generation
        if group.members:
            live.stage = Stage.STABLE
            live.protocol, live.leader = group.protocol, group.leader
            live.members = {member.id: revived(now, member) for member in group.members.values()}
            live._static = {
                each.instance: each.id for each in live.members.values() if each.instance is not None
            }
        return live

    @property
    def is_idle(self) -> bool:
        """Nothing is known here that is not in the log."""
        return not (self.members or self._announced or self._saving or self._save_again)

    # ---- joining ----

    def join(self, now: float, wanted: Join, answer: WhenJoined) -> None:
        error = self._why_no_join(wanted)
        if error:
            answer(Joined(error, wanted.member_id))
        elif wanted.member_id:
            self._join_again(now, wanted, answer)
        elif wanted.instance is not None and wanted.instance in self._static:
            self._come_back(now, wanted, answer)
        elif wanted.instance is None and wanted.needs_id:
            member_id = self._new_id(wanted)
            self._announced[member_id] = now + wanted.session_s
            answer(Joined(ErrorCode.member_id_required, member_id))
        else:
            self._admit(now, self._new_id(wanted), wanted, answer)

    def _why_no_join(self, wanted: Join) -> ErrorCode:
        limits = self.limits
        if not limits.session_least_s <= wanted.session_s <= limits.session_greatest_s:
            return ErrorCode.invalid_session_timeout
        said_bytes = wanted.bytes_count()
        others = [member for member in self.members.values() if not self._is_that(member, wanted)]
        if said_bytes > MEMBER_BYTES_MAX:
            return ErrorCode.invalid_request
        if sum(member.bytes_count() for member in others) + said_bytes > GROUP_BYTES_MAX:
            return ErrorCode.group_max_size_reached
        count = len(others) + len(self._announced.keys() - {wanted.member_id})
        if count >= limits.members_max and wanted.member_id not in self.members:
            return ErrorCode.group_max_size_reached
        names = {name for name, _ in wanted.protocols}
        is_known = bool(wanted.protocol_type and names)
        if self.members and is_known:
            is_known = wanted.protocol_type == self.protocol_type
            is_known = is_known and (not others or not names.isdisjoint(common_protocols(others)))
        return ErrorCode.none if is_known else ErrorCode.inconsistent_group_protocol

    @staticmethod
    def _is_that(member: Live, wanted: Join) -> bool:
        is_same_instance = wanted.instance is not None and member.instance == wanted.instance
        return member.id == wanted.member_id or is_same_instance

    def _admit(self, now: float, member_id: str, wanted: Join, answer: WhenJoined) -> None:
        member = self.members[member_id] = Live(member_id, wanted)
        if wanted.instance is not None:
            self._static[wanted.instance] = member_id
        self.protocol_type = wanted.protocol_type
        self.leader = self.leader or member_id
        self._wait(now, member, answer)
        self._prepare(now)

    def _join_again(self, now: float, wanted: Join, answer: WhenJoined) -> None:
        """Somebody who has an id."""
        if wanted.member_id in self._announced and wanted.instance is None:
            del self._announced[wanted.member_id]
            self._admit(now, wanted.member_id, wanted, answer)
            return
        error = self._why_unknown(wanted.member_id, wanted.instance)
        if error:
            answer(Joined(error, wanted.member_id))
            return
        member = self.members[wanted.member_id]
        # Its answer was lost; but a leader that comes again wants to share out anew.
        is_in = self.stage is Stage.COMPLETING or (self.stage is Stage.STABLE and member.id != self.leader)
        if is_in and member.protocols == wanted.protocols:
            self._heard(now, member)
            answer(self._joined(member))
        else:
            member.update(wanted)
            self._wait(now, member, answer)
            if self.stage is Stage.PREPARING:
                self._try_complete(now)
            else:
                self._prepare(now)

    def _come_back(self, now: float, wanted: Join, answer: WhenJoined) -> None:
        """A static member that was started anew gets another id, and whoever has the old one is fenced."""
        assert wanted.instance is not None
        old = self.members.pop(self._static[wanted.instance])
        self._refuse(old, ErrorCode.fenced_instance_id)
        led, self._unsynced = self.leader, self._unsynced - {old.id}
        member = Live(self._new_id(wanted), wanted)
        member.assignment = old.assignment
        self.members[member.id] = member
        self._static[wanted.instance] = member.id
        if led == old.id:
            self.leader = member.id
        is_same = old.metadata(self.protocol) == member.metadata(self.protocol)
        if (
            self.stage is Stage.STABLE
            and is_same
            and chosen_protocol(list(self.members.values())) == self.protocol
        ):
            self._heard(now, member)
            self._let_in(member, led, answer, can_skip=wanted.can_skip)
            return
        self._wait(now, member, answer)
        if self.stage is Stage.PREPARING:
            self._try_complete(now)
        else:
            self._prepare(now)

    def _let_in(self, member: Live, led: str, answer: WhenJoined, *, can_skip: bool) -> None:
        """It goes on with the share that it had, without a round, once it is written down who it is now.

        One that led would share out anew, in a generation that is complete: an old client is told that the one it
        was leads, so that it does not.
        """
        is_leader = member.id == self.leader

        def done(error: ErrorCode) -> None:
            joined = self._joined(member)
            if error:
                joined = Joined(error, "")
            elif is_leader and can_skip:
                joined = joined._replace(skip_assignment=True)
            elif is_leader:
                joined = joined._replace(leader=led, members=())
            answer(joined)

        self._write(done)

    def _wait(self, now: float, member: Live, answer: WhenJoined) -> None:
        if member.join is not None:
            member.join(Joined(ErrorCode.rebalance_in_progress, member.id))
        member.join = answer
        member.is_there = True
        self._heard(now, member)

    def _heard(self, now: float, member: Live) -> None:
        member.expires = now + member.session_s

    def _joined(self, member: Live) -> Joined:
        """What a member of the generation hears of it."""
        is_leader = member.id == self.leader
        everybody = tuple(
            (each.id, each.instance, each.metadata(self.protocol)) for each in self.members.values()
        )
        return Joined(
            ErrorCode.none,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            everybody if is_leader else (),
        )

    # ---- rounds ----

    def _prepare(self, now: float) -> None:
        """Call everybody back, unless they are called already."""
        if self.stage is Stage.PREPARING:
            self._try_complete(now)
            return
        for member in self.members.values():
            if member.sync is not None:
                self._answer_sync(member, Synced(ErrorCode.rebalance_in_progress))
        self._sync_ends = None
        self._unsynced.clear()
        longest_s = max((member.rebalance_s for member in self.members.values()), default=0.0)
        is_first = self.stage is Stage.EMPTY
        self.stage = Stage.PREPARING
        self._round_ends = now + longest_s
        self._gathering = None
        if is_first and self.limits.initial_delay_s:
            self._gathering = (now + longest_s, len(self.members))
            self._round_ends = now + min(self.limits.initial_delay_s, longest_s)
        self._try_complete(now)

    def _try_complete(self, now: float) -> None:
        """The round is over when everybody has come; the first one, when nobody comes any more."""
        if self.stage is not Stage.PREPARING or self._gathering is not None or self._announced:
            return
        if all(member.join is not None for member in self.members.values()):
            self._complete(now)

    def _end_round(self, now: float) -> None:
        """Its time is over."""
        if self._gathering is not None:
            most, count = self._gathering
            if len(self.members) > count and now < most:
                self._gathering = (most, len(self.members))
                self._round_ends = now + min(self.limits.initial_delay_s, most - now)
                return
        self._gathering = None
        for member in tuple(self.members.values()):
            if member.join is None and member.instance is None:
                self._forget(member)
        if self.members and all(member.join is None for member in self.members.values()):
            # Only static members are left, and none has come: they have until their sessions end.
            self._round_ends = now + max(member.rebalance_s for member in self.members.values())
            return
        self._complete(now)

    def _complete(self, now: float) -> None:
        self._round_ends = None
        self.generation += 1
        if not self.members:
            self._become_empty()
            return
        if self.leader not in self.members or self.members[self.leader].join is None:
            self.leader = next(each.id for each in self.members.values() if each.join is not None)
        self.protocol = chosen_protocol(list(self.members.values()))
        self.stage = Stage.COMPLETING
        self._sync_ends = now + max(member.rebalance_s for member in self.members.values())
        self._unsynced = set(self.members)
        for member in self.members.values():
            member.assignment = b""
            if member.join is not None:
                answer, member.join = member.join, None
                member.was_told = True
                self._heard(now, member)
                answer(self._joined(member))

    def _become_empty(self) -> None:
        self.stage = Stage.EMPTY
        self.protocol = self.leader = ""
        self._round_ends = self._gathering = self._sync_ends = None
        self._write(lambda _: None)

    # ---- shares ----

    def sync(self, now: float, wanted: Sync, answer: WhenSynced) -> None:
        error = self._why_unknown(wanted.member_id, wanted.instance, wanted.generation)
        if not error and self.stage is Stage.PREPARING:
            error = ErrorCode.rebalance_in_progress
        named = ((wanted.protocol_type, self.protocol_type), (wanted.protocol, self.protocol))
        if not error and any(said is not None and said != known for said, known in named):
            error = ErrorCode.inconsistent_group_protocol
        if error:
            answer(Synced(error))
            return
        member = self.members[wanted.member_id]
        self._heard(now, member)
        self._unsynced.discard(member.id)
        if self.stage is Stage.STABLE:
            answer(self._synced(member))
            return
        if member.sync is not None:
            member.sync(Synced(ErrorCode.rebalance_in_progress))
        member.sync = answer
        member.is_there = True
        if member.id == self.leader and self._shared_out != self.generation:
            self._share_out(dict(wanted.assignments))

    def _share_out(self, shares: dict[str, bytes]) -> None:
        """The leader has said who gets what; it counts when it is written down."""
        generation = self.generation
        shares = {member_id: shares.get(member_id, b"") for member_id in self.members}
        whole_bytes = sum(map(len, shares.values())) + sum(
            each.bytes_count() for each in self.members.values()
        )
        if whole_bytes > GROUP_BYTES_MAX or max(map(len, shares.values())) > MEMBER_BYTES_MAX:
            self._answer_syncs(Synced(ErrorCode.record_list_too_large))
            return
        self._shared_out = generation

        def done(error: ErrorCode) -> None:
            if self.stage is not Stage.COMPLETING or self.generation != generation:
                return
            if error:
                self._shared_out = NO_GENERATION
                self._answer_syncs(Synced(error))
                return
            self.stage = Stage.STABLE
            for member in self.members.values():
                member.assignment = shares.get(member.id, b"")
                if member.sync is not None:
                    self._answer_sync(member, self._synced(member))

        self._write(done, shares)

    def _synced(self, member: Live) -> Synced:
        return Synced(ErrorCode.none, member.assignment, self.protocol_type, self.protocol)

    def _answer_syncs(self, synced: Synced) -> None:
        for member in tuple(self.members.values()):
            if member.sync is not None:
                self._answer_sync(member, synced)

    def _answer_sync(self, member: Live, synced: Synced) -> None:
        assert member.sync is not None
        answer, member.sync = member.sync, None
        answer(synced)

    # ---- being there ----

    def heartbeat(self, now: float, member_id: str, instance: str | None, generation: int) -> ErrorCode:
        error = self._why_unknown(member_id, instance, generation)
        if error:
            return error
        self._heard(now, self.members[member_id])
        return ErrorCode.rebalance_in_progress if self.stage is Stage.PREPARING else ErrorCode.none

    def may_commit(self, now: float, member_id: str, instance: str | None, generation: int) -> ErrorCode:
        """Whether positions are taken from there. While members are called back they still are: it is then that
        clients say how far they have got."""
        if generation < 0 and not self.members:
            return ErrorCode.none  # Somebody who shares with nobody.
        error = self._why_unknown(member_id, instance, generation)
        if error:
            return error
        self._heard(now, self.members[member_id])
        return ErrorCode.rebalance_in_progress if self.stage is Stage.COMPLETING else ErrorCode.none

    def leave(self, now: float, member_id: str, instance: str | None) -> ErrorCode:
        """Somebody goes, or is made to: by its instance alone, where nobody says its id."""
        if instance is not None and not member_id:
            member_id = self._static.get(instance, "")
        if member_id in self._announced:
            del self._announced[member_id]
            self._try_complete(now)
            return ErrorCode.none
        error = self._why_unknown(member_id, instance)
        if not error:
            self._remove(now, self.members[member_id])
        return error

    def _why_unknown(self, member_id: str, instance: str | None, generation: int | None = None) -> ErrorCode:
        if instance is not None:
            known = self._static.get(instance)
            if known is None:
                return ErrorCode.unknown_member_id
            if known != member_id:
                return ErrorCode.fenced_instance_id
        if member_id not in self.members:
            return ErrorCode.unknown_member_id
        is_current = generation is None or generation == self.generation
        return ErrorCode.none if is_current else ErrorCode.illegal_generation

    def gone(self, now: float, answer: object) -> None:
        """The connection on which somebody waited for this answer is closed."""
        member = next((each for each in self.members.values() if answer in (each.join, each.sync)), None)
        if member is None:
            return
        member.is_there = False
        self._heard(now, member)
        if not member.was_told:  # It never hears its id, and comes as somebody else.
            self._remove(now, member)

    def _forget(self, member: Live) -> None:
        del self.members[member.id]
        if member.instance is not None:
            known = self._static.pop(member.instance)
            assert known == member.id
        self._unsynced.discard(member.id)
        if self.leader == member.id:
            self.leader = next(iter(self.members), "")
        self._refuse(member, ErrorCode.unknown_member_id)

    def _refuse(self, member: Live, error: ErrorCode) -> None:
        """It is not in the group any more: whatever it waits for does not come."""
        if member.join is not None:
            join, member.join = member.join, None
            join(Joined(error, member.id))
        if member.sync is not None:
            self._answer_sync(member, Synced(error))

    def _remove(self, now: float, member: Live) -> None:
        self._forget(member)
        self._prepare(now)

    # ---- time ----

    def deadline(self) -> float | None:
        """When `tick` has something to do, if nothing happens before."""
        return min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterator[float]:
        for due in (self._round_ends, self._sync_ends, self._save_again):
            if due is not None:
                yield due
        yield from self._announced.values()
        for member in self.members.values():
            if member.may_expire:
                yield member.expires

    def tick(self, now: float) -> None:
        late = [member_id for member_id, due in self._announced.items() if due <= now]
        for member_id in late:
            del self._announced[member_id]
        if late:
            self._try_complete(now)
        for member in tuple(self.members.values()):
            if member.id in self.members and member.may_expire and member.expires <= now:
                self._remove(now, member)
        if self._sync_ends is not None and self._sync_ends <= now:
            self._sync_ends = None
            for member_id in tuple(self._unsynced):
                if member_id in self.members:
                    self._remove(now, self.members[member_id])
            self._unsynced.clear()
        if self._round_ends is not None and self._round_ends <= now:
            self._end_round(now)
        if self._save_again is not None and self._save_again <= now:
            self._save_again = None
            if self.stage is Stage.EMPTY:
                self._write(lambda _: None)

    # ---- the log ----

    def _write(self, done: Callable[[ErrorCode], None], shares: dict[str, bytes] | None = None) -> None:
        """Let the log know who is in the group, and the share of each."""
        members = tuple(
            member.saved(member.assignment if shares is None else shares[member.id])
            for member in self.members.values()
        )
        self._saving += 1

        def saved(error: ErrorCode) -> None:
            self._saving -= 1
            done(error)

        self._save(self, members, saved)

    def save_again(self, now: float) -> None:
        """It could not be written down. Where somebody waits for that, he hears it; who is gone cannot."""
        if self.stage is Stage.EMPTY:
            self._save_again = now + SAVE_AGAIN_S

    def drop(self, error: ErrorCode) -> None:
        """This node coordinates it no more."""
        for member in tuple(self.members.values()):
            self._refuse(member, error)
