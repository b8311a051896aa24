"""Keeps a cluster's processes running, and knows how they are.

A node that ended is started again, after a pause that doubles while it keeps ending and is forgotten once it
has run steadily. One that ends again and again before it ever answers is left down, and so is one whose directory
is gone, until that is there again; the others go on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from enum import StrEnum
from time import monotonic

from quorate.node.child import NodeChild, how_it_ended
from quorate.node.client import Client, Unreachable
from quorate.node.requests import Status

TICK_S = 0.05
ASK_EVERY_S = 0.5
ASK_TIMEOUT_S = 3.0
RESTART_FIRST_S = 0.5
RESTART_MAX_S = 15.0
STEADY_S = 30.0
"""A node that has run for so long begins with a short pause again."""
LOOK_FOR_DIRECTORY_S = 1.0
FAILED_STARTS_MAX = 4
"""So often in a row a node may end before it has answered."""
STOP_TIMEOUT_S = 20.0

Tell = Callable[[str], None]


class State(StrEnum):
    STARTING = "starting"
    UP = "up"
    SILENT = "does not answer"
    DOWN = "down"
    LEFT_DOWN = "left down"


class Watched:
    """One node: its process, and what is known of it."""

    def __init__(self, child: NodeChild) -> None:
        self.child = child
        self.state = State.DOWN
        self.status: Status | None = None
        """What it answered last, while it runs."""
        self.restart_due = 0.0
        self.failed_starts_count = 0
        self.has_no_directory = False
        """That is why it is left down."""
        self._pause_s = RESTART_FIRST_S
        self._started = 0.0

    @property
    def pid(self) -> int | None:
        return self.child.process.pid if self.child.process is not None else None

    def knows(self, nodes: set[int]) -> bool:
        """It answers, follows the metadata group's leader and has all these in its image."""
        return (
            self.state is State.UP
            and self.status is not None
            and self.status.metadata_leader != 0
            and nodes.issubset(self.status.registered)
        )

    @property
    def is_due(self) -> bool:
        """It is time to start it, or to look whether that is possible again."""
        return (self.state is State.DOWN or self.has_no_directory) and monotonic() >= self.restart_due

    def start(self) -> None:
        self.has_no_directory = False
        self.state = State.STARTING
        self._started = monotonic()
        self.child.start()

    def answered(self, status: Status | None) -> None:
        """What it says; None: nothing, in time."""
        if self.state not in (State.STARTING, State.UP, State.SILENT):
            return
        self.status = status
        if status is not None:
            self.state = State.UP
            self.failed_starts_count = 0
        elif self.state is State.UP:
            self.state = State.SILENT

    def ended(self) -> None:
        """Its process is gone: when it starts again."""
        if self.state is State.STARTING:
            self.failed_starts_count += 1
        self.status = None
        if monotonic() - self._started >= STEADY_S:
            self._pause_s = RESTART_FIRST_S
        self.restart_due = monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, RESTART_MAX_S)
        self.state = State.LEFT_DOWN if self.failed_starts_count >= FAILED_STARTS_MAX else State.DOWN

    def has_lost_its_directory(self) -> bool:
        """Whether that is news; it is looked for again after a while."""
        is_news = not self.has_no_directory
        self.has_no_directory = True
        self.failed_starts_count = 0
        self._pause_s = RESTART_FIRST_S
        self.restart_due = monotonic() + LOOK_FOR_DIRECTORY_S
        self.state = State.LEFT_DOWN
        return is_news


class Supervisor:
    """The nodes of one cluster, from their start to their end."""

    def __init__(
        self,
        cluster: str,
        children: dict[int, NodeChild],
        tell: Tell,
        *,
        why_not_there: Callable[[int], str] = lambda node: "",
    ) -> None:
        """`why_not_there`: of a node whose directory is gone, in words that say what to do."""
        self.nodes = {node: Watched(child) for node, child in sorted(children.items())}
        self._client = Client(cluster, {node: child.address for node, child in children.items()})
        self._tell = tell
        self._why_not_there = why_not_there
        self._was_ready = False
        self._stopping = asyncio.Event()
        self._stops_asked_count = 0

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def is_ready(self) -> bool:
        """Every node that is not given up answers, is known to the others and knows who leads the metadata."""
        wanted = {
            node: watched for node, watched in self.nodes.items() if watched.state is not State.LEFT_DOWN
        }
        return bool(wanted) and all(watched.knows(set(wanted)) for watched in wanted.values())

    @property
    def is_lost(self) -> bool:
        return all(watched.state is State.LEFT_DOWN for watched in self.nodes.values())

    def missing(self) -> str:
        """What it still takes to be ready."""
        for node, watched in self.nodes.items():
            if watched.state in (State.STARTING, State.DOWN, State.SILENT):
                return f"node {node} {watched.state}, its last words: {watched.child.last_words()}"
        return "the metadata group has no leader yet, or not every node is known to it"

    def ask_to_stop(self) -> None:
        """Once: politely. Twice: at once."""
        self._stops_asked_count += 1
        self._stopping.set()
        if self._stops_asked_count == 2:
            self._tell("killing what still runs")
            self._signal(signal.SIGKILL)

    async def run(self) -> None:
        """Until asked to stop, or until nothing runs any more."""
        try:
            async with self._client, asyncio.TaskGroup() as tasks:
                asking = [tasks.create_task(self._ask_again_and_again(node)) for node in self.nodes]
                while not self.is_stopping and not self.is_lost:
                    self._look_after()
                    await self._pause(TICK_S)
                for task in asking:
                    task.cancel()
        finally:
            await self._stop()

    async def _pause(self, seconds: float) -> None:
        """Shorter if the end comes."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    # --- processes ---

    def _look_after(self) -> None:
        for node, watched in self.nodes.items():
            status = watched.child.ended()
            if status is not None:
                self._tell_end(node, status)
            elif watched.is_due:
                self._start(node, watched)

    def _start(self, node: int, watched: Watched) -> None:
        if why_not := self._why_not_there(node):
            if watched.has_lost_its_directory():
                self._tell(f"node {node} is left down: {why_not}")
            return
        try:
            watched.start()
        except OSError as error:  # No memory, no room for its output: that may pass.
            self._tell_end(node, f"cannot be started ({error.strerror})")

    def _tell_end(self, node: int, how: int | str) -> None:
        """`how` it ended: its exit status, or why it did not begin."""
        watched = self.nodes[node]
        # Whoever was killed said nothing of it: its last line may be of long ago, and of somebody else.
        has_words = how != -signal.SIGKILL
        last_words = f"; its last words: {watched.child.last_words()}" if has_words else ""
        watched.ended()
        if watched.state is State.LEFT_DOWN:
            what = f"{FAILED_STARTS_MAX} times in a row before it answered; it is left down"
        else:
            what = f"it starts again in {max(0.0, watched.restart_due - monotonic()):.1f} s"
        said = how_it_ended(how) if isinstance(how, int) else how
        self._tell(f"node {node} {said}: {what}{last_words}")

    async def _stop(self) -> None:
        self._signal(signal.SIGTERM)
        deadline = monotonic() + STOP_TIMEOUT_S
        killed = False
        running = {node: watched for node, watched in self.nodes.items() if watched.pid is not None}
        while running:
            for node, watched in tuple(running.items()):
                status = watched.child.ended()
                if status is None:
                    continue
                del running[node]
                watched.state = State.DOWN if status == 0 else State.LEFT_DOWN
                if status and self._stops_asked_count < 2 and not killed:
                    self._tell(f"node {node} {how_it_ended(status)}: {watched.child.last_words()}")
            if running and monotonic() >= deadline and not killed:
                killed = True
                names = ", ".join(f"node {node}" for node in running)
                self._tell(f"{names} did not stop in {STOP_TIMEOUT_S:g} s and is killed")
                self._signal(signal.SIGKILL)
            await asyncio.sleep(TICK_S)

    def _signal(self, number: signal.Signals) -> None:
        for watched in self.nodes.values():
            if watched.child.is_running:
                watched.child.send(number)

    # --- health ---

    async def _ask_again_and_again(self, node: int) -> None:
        while not self.is_stopping:  # Pauses are none from then on: a loop without it would never end.
            await self._ask(node)
            self._was_ready = self._was_ready or self.is_ready
            await self._pause(ASK_EVERY_S if self._was_ready else TICK_S)

    async def _ask(self, node: int) -> None:
        watched = self.nodes[node]
        if watched.pid is None:
            return
        pid = watched.pid
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                status = await self._client.status(node)
        except (Unreachable, TimeoutError):
            status = None
        if watched.pid == pid:
            watched.answered(status)
