"""A long sweep in parts, each a directory that is whole or not there: what is done stays done when it is killed.

A part is some seeds of one protocol. Spark leaves a mark in its directory when all of it is written, on whatever
file system; a part without the mark is run again, and takes its place. What the sweep is stands beside the parts:
only the same sweep goes on with them. Nothing here imports Spark: the command looks at places before it asks
whether Spark is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quorate.sim.run import Plan
from quorate.spark.session import reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PART_SEEDS = 2000
ABOUT = "_sweep.json"
"""Spark passes over files that begin so."""
DONE = "_SUCCESS"


class SweepFailed(Exception):
    """Spark could not run it to its end; one line."""


class Sweep(msgspec.Struct, frozen=True):
    """All that decides what a sweep's rows are: a plan for each protocol, and the seeds."""

    plans: tuple[Plan, ...]
    first: int
    end: int

    @property
    def seeds(self) -> range:
        return range(self.first, self.end)

    @property
    def worlds_count(self) -> int:
        return len(self.plans) * len(self.seeds)

    def parts(self) -> Iterator[tuple[Plan, range]]:
        """Seeds go before protocols: whenever it is stopped, the same worlds were seen by most."""
        for first in range(self.first, self.end, PART_SEEDS):
            for plan in self.plans:
                yield plan, range(first, min(first + PART_SEEDS, self.end))


def part_name(plan: Plan, seeds: range) -> str:
    """As a directory's name that Spark takes for a column's value."""
    return f"part={plan.protocol}-{seeds.start:09d}-{seeds.stop - 1:09d}"


def is_of(place: Path, sweep: Sweep) -> bool:
    """Whether what lies there was begun by the same sweep."""
    try:
        return _is_about((place / ABOUT).read_bytes(), sweep)
    except OSError:
        return False


def of_another(place: str) -> str:
    return (
        f"{place!r} is there already, and is of another sweep; name another with --out, or replace it "
        f"with --overwrite"
    )


def _is_about(content: bytes, sweep: Sweep) -> bool:
    try:
        return msgspec.json.decode(content, type=Sweep) == sweep
    except msgspec.MsgspecError:
        return False


class Parts:
    """The place of a sweep's rows, on any file system that Spark writes to."""

    def __init__(self, session: SparkSession, place: str) -> None:
        self.place = place
        java: Any = session._jvm
        self._bytes_of = java.org.apache.commons.io.IOUtils.toByteArray
        self._path = java.org.apache.hadoop.fs.Path
        self._files = self._path(place).getFileSystem(session._jsc.hadoopConfiguration())

    def begin(self, sweep: Sweep, *, overwrite: bool) -> None:
        """Raises SweepFailed where something else lies there: names of parts do not say all that a sweep is."""
        place, about = self._path(self.place), self._path(self.place, ABOUT)
        if overwrite:
            self._files.delete(place, True)
        if self._files.exists(about):
            if not _is_about(self._read(about), sweep):
                raise SweepFailed(of_another(self.place))
        elif self._files.exists(place):
            raise SweepFailed(of_another(self.place))
        else:
            stream = self._files.create(about, True)
            try:
                stream.write(bytearray(msgspec.json.encode(sweep)))
            finally:
                stream.close()

    def _read(self, path: Any) -> bytes:
        stream = self._files.open(path)
        try:
            return bytes(self._bytes_of(stream))
        finally:
            stream.close()

    def where(self, plan: Plan, seeds: range) -> str:
        return f"{self.place}/{part_name(plan, seeds)}"

    def is_done(self, plan: Plan, seeds: range) -> bool:
        return bool(self._files.exists(self._path(self.where(plan, seeds), DONE)))

    def undone(self, sweep: Sweep) -> list[tuple[Plan, range]]:
        return [(plan, seeds) for plan, seeds in sweep.parts() if not self.is_done(plan, seeds)]


def begun(session: SparkSession, place: str, sweep: Sweep, *, overwrite: bool) -> Parts:
    """Raises SweepFailed where nothing can be written to, or something else is."""
    try:
        parts = Parts(session, place)
        parts.begin(sweep, overwrite=overwrite)
    except SweepFailed:
        raise
    except Exception as error:  # whatever Java says
        raise SweepFailed(f"{place!r} cannot be written: {reason_of(error)}") from error
    return parts


def plans_of(plan: Plan, protocols: Sequence[str]) -> tuple[Plan, ...]:
    return tuple(msgspec.structs.replace(plan, protocol=protocol) for protocol in protocols)
