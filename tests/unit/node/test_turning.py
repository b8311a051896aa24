"""What the keeper of turns remembers, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quorate.core.entry import EntryId, Member, partition_of
from quorate.machine.metadata import Topic
from quorate.machine.turning import Turning as Wanted
from quorate.node.turning import Turning

ID = bytes(16)
P0 = partition_of(ID, 0)
ME = Member(1, 1)
TOPIC = Topic("t", ID, "isr", ((ME,),), turning=Wanted("raft", 9))


class Leading:
    """A node that leads the only copy of a partition."""

    def __init__(self) -> None:
        role = SimpleNamespace(name="leader", whole_at=lambda _: (ME,))
        replica = SimpleNamespace(barrier=None, role=role, epoch=3, me=ME, commit=5)
        self.hosted = SimpleNamespace(partition=P0, record=SimpleNamespace(turn=0), replica=replica)
        self.host = SimpleNamespace(hosted={P0: self.hosted}, command=self._command)
        image = SimpleNamespace(version=1, by_id={ID: TOPIC})
        self.metadata = SimpleNamespace(image=image, is_current=True)
        self.ordered: list[int] = []

    def _command(self, now: float, partition: bytes, make: Any, answer: Any) -> None:
        self.ordered.append(make(1).at)

    def is_leader(self, partition: bytes) -> bool:
        return True

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None: ...


def test_nothing_is_remembered_of_a_topic_that_is_deleted() -> None:
    node = Leading()
    turning = Turning(node)  # type: ignore[arg-type]
    assert turning._look() == []
    assert node.ordered == [9]
    node.hosted.replica.barrier = SimpleNamespace(at=9, entry=EntryId(3, 5))
    assert [note.at for note in turning._look()] == [9]
    assert (set(turning._orders), set(turning._noted)) == ({P0}, {P0})
    node.metadata.image.by_id.clear()
    node.metadata.image.version += 1
    turning._look()
    assert (turning._orders, turning._noted) == ({}, {})
