"""Rounds of a consumer group: who is in the next generation, who leads it, who waits, who is fenced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from quorate.kafka.group_live import GROUP_BYTES_MAX, MEMBER_BYTES_MAX, SAVE_AGAIN_S, LiveGroup
from quorate.kafka.group_member import Join, Joined, Limits, Stage, Sync, Synced
from quorate.machine.groups import Group, Member

NONE = ErrorCode.none
AT_ONCE = Limits(initial_delay_s=0.0)
SESSION_S, REBALANCE_S = 10.0, 60.0


class Stand:
    """A group, the log that it is written to, and everything that its members heard."""

    def __init__(self, limits: Limits = AT_ONCE, group: Group | None = None) -> None:
        self.now = 0.0
        self.ids = 0
        self.written: list[tuple[int, tuple[Member, ...]]] = []
        self.unsaved: list[Callable[[ErrorCode], None]] = []
        self.saves_at_once = True
        self.joined: dict[str, list[Joined]] = {}
        self.synced: dict[str, list[Synced]] = {}
        if group is None:
            self.group = LiveGroup("g", limits, self.save, self.new_id)
        else:
            self.group = LiveGroup.revived(self.now, "g", group, limits, self.save, self.new_id)

    def save(self, group: LiveGroup, members: tuple[Member, ...], done: Callable[[ErrorCode], None]) -> None:
        self.written.append((group.generation, members))
        self.unsaved.append(done)
        if self.saves_at_once:
            self.saved()

    def saved(self, error: ErrorCode = NONE) -> None:
        waiting, self.unsaved = self.unsaved, []
        for done in waiting:
            done(error)

    def new_id(self, wanted: Join) -> str:
        self.ids += 1
        return f"{wanted.client_id}-{self.ids}"

    # --- what members do ---

    def join(self, name: str, member_id: str = "", **more: Any) -> Callable[[Joined], None]:
        wanted = msgspec.structs.replace(
            Join(
                member_id,
                None,
                name,
                "/here",
                "consumer",
                (("range", b"r-" + name.encode()),),
                SESSION_S,
                REBALANCE_S,
            ),
            **more,
        )
        heard = self.joined.setdefault(name, [])

        def answer(joined: Joined) -> None:
            heard.append(joined)

        self.group.join(self.now, wanted, answer)
        return answer

    def come(self, name: str, **more: Any) -> str:
        """Join as newer clients do, with an id that is given out first; the id."""
        self.join(name, **more)
        told = self.joined[name].pop()
        assert told.error == ErrorCode.member_id_required
        self.join(name, told.member_id, **more)
        return told.member_id

    def sync(self, name: str, member_id: str, shares: dict[str, bytes] | None = None, **more: Any) -> None:
        wanted = Sync(member_id, None, self.group.generation, None, None, tuple((shares or {}).items()))
        heard = self.synced.setdefault(name, [])
        self.group.sync(self.now, msgspec.structs.replace(wanted, **more), heard.append)

    def heartbeat(self, member_id: str, instance: str | None = None) -> ErrorCode:
        return self.group.heartbeat(self.now, member_id, instance, self.group.generation)

    def stage(self) -> Stage:
        return self.group.stage

    def later(self, seconds: float) -> None:
        """Let time go by, and whatever is due happen when it is."""
        end = self.now + seconds
        while (due := self.group.deadline()) is not None and due <= end:
            assert due >= self.now - 1e-9
            self.now = max(self.now, due)
            self.group.tick(self.now)
        self.now = end


@pytest.fixture
def stand() -> Stand:
    return Stand()


def stable(stand: Stand, *names: str) -> list[str]:
    """A group of these, each with its own name as its share; the first leads."""
    ids: list[str] = []
    for name in names:
        ids.append(stand.come(name))
        for known, member_id in zip(names, ids[:-1], strict=False):
            stand.join(known, member_id)
    shares = {member_id: name.encode() for name, member_id in zip(names, ids, strict=True)}
    for name, member_id in reversed(list(zip(names, ids, strict=True))):
        stand.sync(name, member_id, shares if member_id == stand.group.leader else None)
    assert stand.stage() is Stage.STABLE
    assert [stand.synced[name].pop() for name in names] == [
        Synced(NONE, name.encode(), "consumer", "range") for name in names
    ]
    return ids


# ---- a round ----


def test_an_id_is_given_out_first_and_the_group_waits_for_who_has_it(stand: Stand) -> None:
    stand.join("a")
    (told,) = stand.joined["a"]
    assert (told.error, told.member_id) == (ErrorCode.member_id_required, "a-1")
    assert stand.stage() is Stage.EMPTY
    stand.join("a", "a-1")
    joined = stand.joined["a"][-1]
    assert (joined.error, joined.generation, joined.leader) == (NONE, 1, "a-1")
    assert joined.members == (("a-1", None, b"r-a"),)
    assert stand.stage() is Stage.COMPLETING


def test_old_clients_are_let_in_without_that(stand: Stand) -> None:
    stand.join("a", needs_id=False)
    assert stand.joined["a"][-1].generation == 1


def test_shares_are_told_when_they_are_written_down_and_not_before(stand: Stand) -> None:
    a = stand.come("a")
    stand.saves_at_once = False
    stand.sync("a", a, {a: b"all"})
    assert stand.synced["a"] == []
    assert stand.stage() is Stage.COMPLETING
    stand.saved()
    assert stand.synced["a"] == [Synced(NONE, b"all", "consumer", "range")]
    assert stand.stage() is Stage.STABLE
    ((generation, (member,)),) = stand.written
    assert (generation, member.id, member.assignment) == (1, a, b"all")
    assert member.protocols == (("range", b"r-a"),)


def test_everybody_is_called_back_when_somebody_comes(stand: Stand) -> None:
    (a,) = stable(stand, "a")
    b = stand.come("b")
    assert stand.stage() is Stage.PREPARING
    assert stand.heartbeat(a) == ErrorCode.rebalance_in_progress
    stand.join("a", a)
    assert [stand.joined[name][-1].generation for name in "ab"] == [2, 2]
    leader, other = stand.joined["a"][-1], stand.joined["b"][-1]
    assert (leader.leader, other.leader) == (a, a)
    assert {member_id for member_id, _, _ in leader.members} == {a, b}
    assert other.members == ()


def test_a_member_without_a_share_hears_an_empty_one(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    stand.join("a", a)
    stand.join("b", b)
    stand.sync("b", b)
    stand.sync("a", a, {a: b"all"})
    assert stand.synced["b"] == [Synced(NONE, b"", "consumer", "range")]


def test_shares_for_strangers_are_left_out(stand: Stand) -> None:
    a = stand.come("a")
    stand.sync("a", a, {a: b"mine", "stranger": b"his"})
    ((_, (member,)),) = stand.written
    assert member.assignment == b"mine"


def test_who_does_not_come_in_time_is_left_out(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    stand.join("b", b, protocols=(("range", b"other"),))
    while stand.now < REBALANCE_S:
        stand.later(5)
        stand.heartbeat(a)
    assert (stand.joined["b"][-1].generation, stand.joined["b"][-1].leader) == (3, b)
    assert stand.heartbeat(a) == ErrorCode.unknown_member_id


def test_the_leader_who_asks_again_shares_out_anew_and_others_hear_what_is(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    stand.join("b", b)
    assert stand.stage() is Stage.STABLE
    assert stand.joined["b"][-1].generation == stand.group.generation
    stand.join("a", a)
    assert stand.stage() is Stage.PREPARING


def test_who_lost_the_answer_of_a_join_hears_it_again(stand: Stand) -> None:
    a = stand.come("a")
    first = stand.joined["a"].pop()
    stand.join("a", a)
    assert stand.joined["a"] == [first]


def test_whoever_comes_while_shares_are_awaited_begins_another_round(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    stand.join("a", a)
    stand.join("b", b)
    stand.sync("b", b)
    stand.come("c")
    assert stand.synced["b"] == [Synced(ErrorCode.rebalance_in_progress)]
    stand.sync("a", a, {a: b"late"})
    assert stand.synced["a"] == [Synced(ErrorCode.rebalance_in_progress)]


def test_shares_that_are_written_down_too_late_are_nobodys(stand: Stand) -> None:
    a = stand.come("a")
    stand.saves_at_once = False
    stand.sync("a", a, {a: b"all"})
    stand.come("b")
    assert stand.synced["a"] == [Synced(ErrorCode.rebalance_in_progress)]
    stand.saved()
    assert stand.stage() is Stage.PREPARING
    assert len(stand.synced["a"]) == 1


def test_shares_that_could_not_be_written_down_can_be_said_again(stand: Stand) -> None:
    a = stand.come("a")
    stand.saves_at_once = False
    stand.sync("a", a, {a: b"all"})
    stand.saved(ErrorCode.coordinator_load_in_progress)
    assert stand.synced["a"] == [Synced(ErrorCode.coordinator_load_in_progress)]
    stand.sync("a", a, {a: b"all"})
    stand.saved()
    assert stand.synced["a"][-1] == Synced(NONE, b"all", "consumer", "range")


def test_who_joins_and_never_asks_for_a_share_is_gone_after_a_round(stand: Stand) -> None:
    a, b = stand.come("a"), ""
    stand.sync("a", a, {a: b"all"})
    b = stand.come("b")
    stand.join("a", a)
    stand.sync("a", a, {})
    while stand.now < REBALANCE_S:
        stand.later(5)
        stand.heartbeat(a), stand.heartbeat(b)
    assert list(stand.group.members) == [a]


# ---- the first round ----


def test_the_first_waits_for_others_as_long_as_others_come() -> None:
    stand = Stand(Limits(initial_delay_s=3.0))
    stand.come("a")
    stand.later(2)
    stand.come("b")
    stand.later(2)
    assert stand.joined["b"] == [], "b came since it was looked at"
    stand.later(2)
    assert [len(stand.joined[name][-1].members) for name in "ab"] == [2, 0]
    assert stand.group.generation == 1


def test_but_not_longer_than_a_round_may_last() -> None:
    stand = Stand(Limits(initial_delay_s=3.0))
    for number in range(40):
        stand.join(f"m{number}", needs_id=False)
        stand.later(2)
    assert stand.joined["m0"] != []
    assert stand.now > REBALANCE_S


# ---- coming and going ----


def test_who_is_silent_for_its_session_is_gone(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    stand.later(SESSION_S - 1)
    assert stand.heartbeat(a) == NONE
    stand.later(2)
    assert list(stand.group.members) == [a]
    assert stand.stage() is Stage.PREPARING
    assert stand.heartbeat(b) == ErrorCode.unknown_member_id


def test_who_waits_for_a_round_need_say_nothing(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    stand.join("a", a)
    while stand.now < 3 * SESSION_S:
        stand.later(5)
        assert stand.heartbeat(b) == ErrorCode.rebalance_in_progress
    assert set(stand.group.members) == {a, b}


def test_who_waits_on_a_connection_that_closes_must_be_heard_of_again(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    waiting = stand.join("a", a)
    stand.group.gone(stand.now, waiting)
    stand.later(SESSION_S - 1)
    assert a in stand.group.members
    stand.heartbeat(b)
    stand.later(2)
    assert list(stand.group.members) == [b]


def test_an_old_client_that_never_heard_its_id_is_forgotten_with_its_connection(stand: Stand) -> None:
    (a,) = stable(stand, "a")
    waiting = stand.join("b", needs_id=False)
    assert len(stand.group.members) == 2
    stand.group.gone(stand.now, waiting)
    assert list(stand.group.members) == [a]


def test_who_leaves_is_gone_at_once_and_the_last_leaves_an_empty_group(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    assert stand.group.leave(stand.now, b, None) == NONE
    assert stand.stage() is Stage.PREPARING
    assert stand.group.leave(stand.now, b, None) == ErrorCode.unknown_member_id
    generation = stand.group.generation
    assert stand.group.leave(stand.now, a, None) == NONE
    assert (stand.group.stage, stand.group.generation) == (Stage.EMPTY, generation + 1)
    assert stand.written[-1] == (generation + 1, ())
    assert stand.group.is_idle
    assert stand.group.deadline() is None


def test_that_nobody_is_left_is_written_down_until_it_is(stand: Stand) -> None:
    (a,) = stable(stand, "a")
    stand.saves_at_once = False
    stand.group.leave(stand.now, a, None)
    stand.group.save_again(stand.now)
    stand.saved(ErrorCode.coordinator_not_available)
    assert not stand.group.is_idle
    stand.later(2 * SAVE_AGAIN_S)
    assert len(stand.unsaved) == 1
    stand.saved()
    assert stand.group.is_idle


def test_an_announced_member_that_never_comes_holds_nobody_up_for_long(stand: Stand) -> None:
    (a,) = stable(stand, "a")
    stand.join("b")
    stand.join("a", a)
    assert stand.stage() is Stage.PREPARING
    stand.later(SESSION_S + 1)
    assert stand.joined["a"][-1].generation == 2


def test_an_announced_member_can_leave_before_it_came(stand: Stand) -> None:
    stand.join("b")
    assert stand.group.leave(stand.now, stand.joined["b"][-1].member_id, None) == NONE
    assert stand.group.is_idle


# ---- who is who ----


def test_a_generation_that_is_over_and_a_stranger_are_refused(stand: Stand) -> None:
    (a,) = stable(stand, "a")
    group = stand.group
    assert group.heartbeat(0.0, a, None, group.generation - 1) == ErrorCode.illegal_generation
    assert group.heartbeat(0.0, "x", None, group.generation) == ErrorCode.unknown_member_id
    stand.sync("a", a, generation=7)
    stand.sync("a", "x")
    stand.join("x", "x")
    assert [each.error for each in stand.synced["a"]] == [
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
    ]
    assert stand.joined["x"][-1].error == ErrorCode.unknown_member_id


def test_a_sync_for_another_protocol_is_refused(stand: Stand) -> None:
    a = stand.come("a")
    stand.sync("a", a, protocol="sticky")
    stand.sync("a", a, protocol_type="connect")
    assert [each.error for each in stand.synced["a"]] == [ErrorCode.inconsistent_group_protocol] * 2


def test_the_protocol_is_one_that_all_know_and_most_prefer(stand: Stand) -> None:
    prefer = {
        "a": (("sticky", b"s"), ("range", b"r"), ("own", b"")),
        "b": (("range", b"r"), ("sticky", b"s")),
        "c": (("range", b"r"), ("sticky", b"s")),
    }
    ids = {"a": stand.come("a", protocols=prefer["a"])}
    assert stand.group.protocol == "sticky"
    for name in "bc":
        ids[name] = stand.come(name, protocols=prefer[name])
        for known, member_id in ids.items():
            if known != name:
                stand.join(known, member_id, protocols=prefer[known])
    assert stand.group.protocol == "range"
    assert [said for _, _, said in stand.joined["a"][-1].members] == [b"r"] * 3


def test_who_shares_no_protocol_with_the_others_is_refused(stand: Stand) -> None:
    stable(stand, "a")
    stand.join("b", protocols=(("sticky", b""),))
    stand.join("c", protocol_type="connect")
    stand.join("d", protocols=())
    for name in "bcd":
        assert [each.error for each in stand.joined[name]] == [ErrorCode.inconsistent_group_protocol]


def test_sessions_have_bounds(stand: Stand) -> None:
    for session_s in (0.1, -1.0, 1e6):
        stand.join("a", session_s=session_s)
    assert {each.error for each in stand.joined["a"]} == {ErrorCode.invalid_session_timeout}


def test_a_full_group_takes_nobody_more() -> None:
    stand = Stand(Limits(initial_delay_s=0.0, members_max=2))
    a, b = stable(stand, "a", "b")
    stand.join("c")
    assert stand.joined["c"][-1].error == ErrorCode.group_max_size_reached
    stand.join("a", a)
    stand.join("b", b)
    assert stand.joined["a"][-1].error == NONE


def test_ids_that_were_given_out_count() -> None:
    stand = Stand(Limits(initial_delay_s=0.0, members_max=2))
    for name in "abc":
        stand.join(name)
    assert [stand.joined[name][-1].error for name in "abc"] == [
        ErrorCode.member_id_required,
        ErrorCode.member_id_required,
        ErrorCode.group_max_size_reached,
    ]


def test_members_say_only_so_much(stand: Stand) -> None:
    stand.join("a", protocols=(("range", bytes(MEMBER_BYTES_MAX + 1)),))
    assert stand.joined["a"][-1].error == ErrorCode.invalid_request
    for number in range(GROUP_BYTES_MAX // MEMBER_BYTES_MAX + 1):
        stand.join(f"m{number}", needs_id=False, protocols=(("range", bytes(MEMBER_BYTES_MAX - 100)),))
    assert stand.joined[f"m{number}"][-1].error == ErrorCode.group_max_size_reached


def test_a_share_has_a_size_too(stand: Stand) -> None:
    a = stand.come("a")
    stand.sync("a", a, {a: bytes(MEMBER_BYTES_MAX + 1)})
    assert stand.synced["a"] == [Synced(ErrorCode.record_list_too_large)]
    assert stand.written == []


# ---- static members ----


def static(stand: Stand, name: str, **more: Any) -> None:
    stand.join(name, instance=f"i-{name}", **more)


def test_a_static_member_that_starts_anew_gets_its_share_without_a_round(stand: Stand) -> None:
    static(stand, "a")
    (joined,) = stand.joined["a"]
    stand.sync("a", joined.member_id, {joined.member_id: b"all"}, instance="i-a")
    static(stand, "a", can_skip=True)
    again = stand.joined["a"][-1]
    assert again.member_id != joined.member_id
    assert (again.error, again.generation, again.skip_assignment) == (NONE, joined.generation, True)
    assert stand.stage() is Stage.STABLE
    assert stand.written[-1][1][0].id == again.member_id
    stand.sync("a", again.member_id, instance="i-a")
    assert stand.synced["a"][-1].assignment == b"all"
    assert stand.heartbeat(joined.member_id, "i-a") == ErrorCode.fenced_instance_id
    assert stand.group.may_commit(0.0, joined.member_id, "i-a", 1) == ErrorCode.fenced_instance_id


def test_an_old_client_that_led_is_told_that_the_one_it_was_does(stand: Stand) -> None:
    static(stand, "a")
    (joined,) = stand.joined["a"]
    stand.sync("a", joined.member_id, {joined.member_id: b"all"}, instance="i-a")
    static(stand, "a")
    again = stand.joined["a"][-1]
    assert (again.leader, again.members, again.skip_assignment) == (joined.member_id, (), False)


def test_a_static_member_that_wants_something_else_begins_a_round(stand: Stand) -> None:
    static(stand, "a")
    (joined,) = stand.joined["a"]
    stand.sync("a", joined.member_id, {joined.member_id: b"all"}, instance="i-a")
    static(stand, "a", protocols=(("range", b"other"),))
    assert stand.joined["a"][-1].generation == 2


def test_whoever_waits_under_the_name_of_another_is_fenced(stand: Stand) -> None:
    (a,) = stable(stand, "a")
    static(stand, "b")
    waiting = stand.joined["b"]
    assert waiting == []
    static(stand, "b")
    assert [each.error for each in waiting] == [ErrorCode.fenced_instance_id]
    stand.join("a", a)
    assert [each.error for each in waiting] == [ErrorCode.fenced_instance_id, NONE]


def test_a_static_member_is_not_left_out_of_a_round_before_its_session_ends(stand: Stand) -> None:
    static(stand, "a", session_s=200.0)
    b = stand.come("b")
    a = stand.joined["a"][0].member_id
    while stand.now < REBALANCE_S:
        stand.later(5)
    assert stand.joined["b"][-1].generation == 2
    assert set(stand.group.members) == {a, b}


def test_a_static_member_can_be_made_to_leave_by_its_instance(stand: Stand) -> None:
    static(stand, "a")
    assert stand.group.leave(0.0, "", "i-b") == ErrorCode.unknown_member_id
    assert stand.group.leave(0.0, "wrong", "i-a") == ErrorCode.fenced_instance_id
    assert stand.group.leave(0.0, "", "i-a") == NONE
    assert stand.stage() is Stage.EMPTY


# ---- positions ----


def test_positions_are_taken_from_members_of_the_generation(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    group, generation = stand.group, stand.group.generation
    assert group.may_commit(0.0, a, None, generation) == NONE
    assert group.may_commit(0.0, a, None, generation - 1) == ErrorCode.illegal_generation
    assert group.may_commit(0.0, "", None, -1) == ErrorCode.unknown_member_id, "others share here"
    stand.join("a", a)
    assert group.may_commit(0.0, b, None, generation) == NONE, "called back: now they say how far they are"
    stand.join("b", b)
    assert group.may_commit(0.0, b, None, generation + 1) == ErrorCode.rebalance_in_progress


def test_who_shares_with_nobody_commits_without_a_generation(stand: Stand) -> None:
    assert stand.group.may_commit(0.0, "", None, -1) == NONE


# ---- another coordinator ----


def test_members_of_the_last_round_go_on_with_another_coordinator(stand: Stand) -> None:
    a, b = stable(stand, "a", "b")
    generation, members = stand.written[-1]
    saved = Group("consumer", generation, "range", a, {member.id: member for member in members})
    other = Stand(group=saved)
    assert (other.group.stage, other.group.generation) == (Stage.STABLE, generation)
    assert [other.heartbeat(member_id) for member_id in (a, b)] == [NONE, NONE]
    other.sync("b", b)
    assert other.synced["b"] == [Synced(NONE, b"b", "consumer", "range")]
    other.later(SESSION_S - 1)
    assert other.heartbeat(a) == NONE
    other.later(2)
    assert list(other.group.members) == [a], "each has a whole session to be heard of"


def test_whoever_waits_hears_that_this_node_coordinates_no_more(stand: Stand) -> None:
    a, _ = stable(stand, "a", "b")
    stand.join("a", a)
    stand.group.drop(ErrorCode.not_coordinator)
    assert stand.joined["a"][-1].error == ErrorCode.not_coordinator
