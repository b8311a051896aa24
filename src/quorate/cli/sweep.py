"""Many plans, one verdict each, in this process or in several: the verdicts are the same.

A worker process is this module run by the same Python. It reads a plan a line, and answers with a verdict a
line, both as JSON; it ends when its input does.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from threading import Lock, Thread

import msgspec

from quorate.sim.run import Plan, Verdict, run_plan

JOBS_MAX = 256


class WorkerLost(Exception):
    """A worker process ended before its work did."""


def verdicts(plans: Iterable[Plan], jobs: int = 1) -> Iterator[Verdict]:
    """In the order in which they are reached."""
    if jobs == 1:
        return map(run_plan, plans)
    return _in_processes(plans, jobs)


def _in_processes(plans: Iterable[Plan], jobs: int) -> Iterator[Verdict]:
    waiting = _Shared(plans)
    answers: SimpleQueue[Verdict | Exception | None] = SimpleQueue()
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker()) for _ in range(jobs)]
        for worker in workers:
            Thread(target=_feed, args=(worker, waiting, answers), daemon=True).start()
        running = len(workers)
        while running:
            answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                running -= 1
            else:
                yield answer


@contextmanager
def _worker() -> Iterator[subprocess.Popen[bytes]]:
    """A worker that is gone afterwards, whatever it was doing."""
    command = [sys.executable, "-m", "quorate.cli.sweep"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        try:
            yield worker
        finally:
            worker.kill()


class _Shared:
    """Hands out plans to several threads."""

    def __init__(self, plans: Iterable[Plan]) -> None:
        self._plans = iter(plans)
        self._lock = Lock()

    def next(self) -> Plan | None:
        with self._lock:
            return next(self._plans, None)


def _feed(
    worker: subprocess.Popen[bytes], waiting: _Shared, answers: SimpleQueue[Verdict | Exception | None]
) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        while (plan := waiting.next()) is not None:
            worker.stdin.write(msgspec.json.encode(plan) + b"\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            if not line:
                raise WorkerLost(f"the process that ran seed {plan.seed} ended with {worker.wait()}")
            answers.put(msgspec.json.decode(line, type=Verdict))
        answers.put(None)
    except Exception as error:  # told to whoever waits for the answers
        answers.put(error)


def work() -> None:
    """The worker's side."""
    for line in sys.stdin.buffer:
        plan = msgspec.json.decode(line, type=Plan)
        sys.stdout.buffer.write(msgspec.json.encode(run_plan(plan)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):  # the parent has said what there is to say
        work()
