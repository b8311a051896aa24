"""Stories of a consumer group that nobody thought of: whatever clients do, in any order, the group stays sound.

Every answer is given once. Nobody hears a share that is not written down, no two members have one instance, and
when everybody falls silent the group ends empty.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from quorate.kafka.group_live import LiveGroup
from quorate.kafka.group_member import Join, Joined, Limits, Stage, Sync, Synced
from quorate.machine.groups import Group, Member

STEPS_COUNT = 400
INSTANCES = (None, None, None, "i", "j")
PROTOCOLS = ((("range", b"1"),), (("range", b"2"), ("sticky", b"3")), (("sticky", b"4"),))


class Story:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.ids = ["", "stranger"]
        self.unanswered: dict[int, str] = {}
        self.waiting: list[Callable[[Any], None]] = []
        self.saves: list[tuple[int, tuple[Member, ...], Callable[[ErrorCode], None]]] = []
        self.settled = Group()
        self.numbers = 0
        limits = Limits(initial_delay_s=self.rng.choice((0.0, 0.5)), members_max=self.rng.choice((2, 5, 100)))
        self.group = LiveGroup("g", limits, self.save, self.new_id)

    def save(self, group: LiveGroup, members: tuple[Member, ...], done: Callable[[ErrorCode], None]) -> None:
        self.saves.append((group.generation, members, done))

    def new_id(self, _: Join) -> str:
        self.numbers += 1
        self.ids.append(f"m{self.numbers}")
        return self.ids[-1]

    def expect(self, what: str) -> Callable[[Any], None]:
        """A function that takes one answer, and no second one."""
        self.numbers += 1
        number = self.numbers
        self.unanswered[number] = what

        def answer(said: Joined | Synced) -> None:
            assert self.unanswered.pop(number, None) == what, f"{what} was answered twice"
            if isinstance(said, Synced) and not said.error and said.assignment:
                shares = {member.assignment for member in self.settled.members.values()}
                assert said.assignment in shares, "a share that is not written down"

        self.waiting.append(answer)
        return answer

    # --- what can happen ---

    def step(self) -> None:
        acts = (self.join, self.join, self.sync, self.sync, self.heartbeat, self.leave, self.commit)
        self.rng.choice((*acts, self.gone, self.saved, self.saved, self.pass_time))()
        self.expect_sound()

    def join(self) -> None:
        rng = self.rng
        wanted = Join(
            rng.choice(self.ids[-6:]),
            rng.choice(INSTANCES),
            "c",
            "/h",
            "consumer",
            rng.choice(PROTOCOLS),
            rng.choice((2.0, 5.0)),
            rng.choice((1.0, 10.0)),
            needs_id=rng.random() < 0.6,
            can_skip=rng.random() < 0.5,
        )
        self.group.join(self.now, wanted, self.expect("join"))

    def sync(self) -> None:
        group, rng = self.group, self.rng
        member_id = rng.choice([*group.members, group.leader, *self.ids[-3:]])
        member = group.members.get(member_id)
        shares = tuple((each, b"%d-%s" % (group.generation, each.encode())) for each in group.members)
        generation = group.generation - (rng.random() < 0.1)
        instance = member.instance if member is not None else rng.choice(INSTANCES)
        group.sync(self.now, Sync(member_id, instance, generation, None, None, shares), self.expect("sync"))

    def heartbeat(self) -> None:
        for member in tuple(self.group.members.values()):
            if self.rng.random() < 0.7:
                self.group.heartbeat(self.now, member.id, member.instance, self.group.generation)

    def leave(self) -> None:
        member_id, instance = self.rng.choice(self.ids[-6:]), self.rng.choice(INSTANCES)
        self.group.leave(self.now, member_id, instance)

    def commit(self) -> None:
        instance = self.rng.choice(INSTANCES)
        self.group.may_commit(self.now, self.rng.choice(self.ids[-6:]), instance, self.group.generation)

    def gone(self) -> None:
        if self.waiting:
            self.group.gone(self.now, self.rng.choice(self.waiting[-4:]))

    def saved(self) -> None:
        """The oldest of what is to be written down is, or is not."""
        if not self.saves:
            return
        generation, members, done = self.saves.pop(0)
        if self.rng.random() < 0.8:
            assert generation >= self.settled.generation
            self.settled = Group("consumer", generation, members={member.id: member for member in members})
            done(ErrorCode.none)
        else:
            self.group.save_again(self.now)
            done(ErrorCode.coordinator_not_available)

    def pass_time(self, seconds: float | None = None) -> None:
        end = self.now + (self.rng.choice((0.1, 0.6, 3.0, 12.0)) if seconds is None else seconds)
        ticks = 0
        while (due := self.group.deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.group.tick(self.now)
            ticks += 1
            assert ticks < 1000, "it has something to do again and again, and does nothing"
        self.now = end

    # --- what must be ---

    def expect_sound(self) -> None:
        group = self.group
        instances = [each.instance for each in group.members.values() if each.instance is not None]
        assert len(set(instances)) == len(instances)
        assert len(group.members) <= group.limits.members_max
        assert (group.stage is Stage.EMPTY) <= (not group.members)
        assert all(each.join is None for each in group.members.values()) or group.stage is Stage.PREPARING
        assert all(each.sync is None for each in group.members.values()) or group.stage is Stage.COMPLETING
        if group.stage in (Stage.COMPLETING, Stage.STABLE):
            assert group.leader in group.members


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_whatever_clients_do_the_group_stays_sound(first: int) -> None:
    for seed in range(first, first + 50):
        story = Story(seed)
        for _ in range(STEPS_COUNT):
            story.step()
        for _ in range(40):  # Everybody is silent from now on.
            while story.saves:
                story.saved()
            for answer in story.waiting:
                story.group.gone(story.now, answer)
            story.pass_time(20.0)
            story.expect_sound()
        assert (story.group.stage, story.group.members) == (Stage.EMPTY, {}), seed
        while story.saves:
            story.saved()
        assert story.unanswered == {}, seed
