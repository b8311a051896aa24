"""Known bugs of real systems, planted into a twin of this package and hunted with the simulator.

A mutant is a patch under `mutants/`: a preamble for people and for the hunt, then a unified diff against the
package. Production code has no switches for any of them; each lives only in a temporary twin, which runs in
processes of its own. A mutant that survives is news: an invariant, a fault or the workload is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

import quorate
from quorate.sim import patching
from quorate.sim.happening import Happening
from quorate.sim.prey import Found, Request

PACKAGE = Path(quorate.__file__).parent
MUTANTS = Path(__file__).parent / "mutants"
SEEDS_MAX = 1000
"""A mutant that lives through so many seeds survives."""
CHUNK_SEEDS = 10
"""Seeds that one process runs: starting it costs as much as a seed does."""


class NoSuchMutant(Exception):
    """There is no patch of that name."""


class HuntFailed(Exception):
    """The mutated code could not be run at all."""


class Mutant(msgspec.Struct, frozen=True):
    """What a patch says about itself."""

    name: str
    does: str
    """What the code does wrong, in a sentence."""
    origin: str
    """Who had the bug, or which promise it breaks."""
    caught_by: tuple[str, ...]
    """The invariants that should catch it."""
    seed: int
    """The killing seed."""
    faults: str
    nodes: int
    learners: int | None
    """None: drawn."""
    overrides: dict[str, int | float]
    """Tunables by name."""
    changes: tuple[patching.Change, ...]
    protocol: str = "raft"
    """In whose worlds it is hunted."""


class Caught(msgspec.Struct, frozen=True):
    seed: int
    invariant: str
    detail: str
    seconds: float
    """How long the hunt took."""
    seeds_count: int
    """Seeds up to and including this one, in the order of the hunt."""


# ---- what there is ----


def names(where: Path | None = None) -> list[str]:
    return sorted(path.stem for path in (where or MUTANTS).glob("*.patch"))


def describe(name: str, where: Path | None = None) -> Mutant:
    """Raises NoSuchMutant or BadPatch, with a line for a person. `where`: patches that lie elsewhere."""
    known = names(where)
    if name not in known:
        raise NoSuchMutant(f"there is no mutant {name!r}; there are: {', '.join(known)}")
    path = (where or MUTANTS) / f"{name}.patch"
    preamble, changes = patching.parse(path.read_text(encoding="utf-8"), where=path.name)
    return _described(path.name, preamble, changes)


NEEDED = ("mutant", "does", "origin", "caught by", "seed", "faults", "nodes")
OPTIONAL = ("learners", "set", "protocol")


def _described(where: str, preamble: str, changes: tuple[patching.Change, ...]) -> Mutant:
    head, _, _ = preamble.strip().partition("\n\n")  # Behind an empty line there is prose.
    fields: dict[str, str] = {}
    for line in head.split("\n"):
        key, colon, value = line.partition(":")
        if not colon or key not in NEEDED + OPTIONAL or key in fields or not value.strip():
            raise patching.BadPatch(f"{where}: the preamble has no line such as {line!r}")
        fields[key] = value.strip()
    missing = [key for key in NEEDED if key not in fields]
    if missing:
        raise patching.BadPatch(f"{where}: the preamble lacks: {', '.join(missing)}")
    if fields["mutant"] != where.removesuffix(".patch"):
        raise patching.BadPatch(f"{where}: it says that it is {fields['mutant']}")
    try:
        learners = int(fields["learners"]) if "learners" in fields else None
        overrides = dict(map(_setting, fields["set"].split(", "))) if "set" in fields else {}
        seed, nodes = int(fields["seed"]), int(fields["nodes"])
    except ValueError as error:
        raise patching.BadPatch(f"{where}: {error}") from error
    return Mutant(
        fields["mutant"],
        fields["does"],
        fields["origin"],
        tuple(fields["caught by"].split(", ")),
        seed,
        fields["faults"],
        nodes,
        learners,
        overrides,
        changes,
        fields.get("protocol", "raft"),
    )


def _setting(text: str) -> tuple[str, int | float]:
    name, _, value = text.partition("=")
    return name, float(value) if "." in value else int(value)


def record_seed(name: str, seed: int) -> None:
    """Make this the killing seed that the patch names: worlds change with the code that they are made of."""
    path = MUTANTS / f"{name}.patch"
    text, count = re.subn(
        r"^seed: \d+$", f"seed: {seed}", path.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert count == 1
    path.write_text(text, encoding="utf-8")


PAGE_HEAD = """\
<!-- Written by `.venv/bin/pytest tests/unit/sim/test_mutate.py --rewrite` from the patches. -->

# Mutants

Known bugs of real systems, and wrong turns of our own. Each is a patch under `src/quorate/sim/mutants/`,
which is planted into a copy of the code, never into the code itself; then the simulator must catch it, by
the invariant that should. `quorate mutants NAME` does that. [CONTRIBUTING.md](../CONTRIBUTING.md) says how to
add one.

| mutant | what it does | origin | caught by | protocol | seed | faults | nodes |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """docs/MUTANTS.md as it should stand."""
    rows = []
    for mutant in map(describe, names()):
        nodes = f"{mutant.nodes}" + (f" + {mutant.learners}" if mutant.learners else "")
        cells = (mutant.name, mutant.does, mutant.origin, ", ".join(mutant.caught_by), mutant.protocol)
        rows.append(f"| {' | '.join(cells)} | {mutant.seed} | {mutant.faults} | {nodes} |\n")
    return PAGE_HEAD + "".join(rows)


# ---- planting ----


@contextmanager
def planted(mutant: Mutant) -> Iterator[Path]:
    """A directory that holds the mutated package while this lasts. Raises DoesNotApply."""
    with TemporaryDirectory(prefix=f"quorate-{mutant.name}-") as directory:
        package = Path(directory).resolve() / "quorate"
        _mirror(PACKAGE, package, {PACKAGE / change.file for change in mutant.changes})
        try:
            patching.apply(mutant.changes, package)
        except patching.DoesNotApply as error:
            raise patching.DoesNotApply(f"{mutant.name}.patch: {error}") from error
        yield package.parent


def _mirror(source: Path, target: Path, changed: set[Path]) -> None:
    """Only what will be changed is copied. The rest are links, also to what the interpreter has compiled already:
    compiling it all again would take longer than most hunts. Who edits the package meanwhile is hunting in that."""
    target.mkdir()
    compiled_again = tuple(f"{file.stem}." for file in changed)
    for entry in source.iterdir():
        twin = target / entry.name
        if entry.name == "__pycache__":
            twin.mkdir()
            for compiled in entry.iterdir():
                if not compiled.name.startswith(compiled_again):
                    (twin / compiled.name).symlink_to(compiled)
        elif entry in changed:
            shutil.copyfile(entry, twin)
        elif any(file.is_relative_to(entry) for file in changed):
            _mirror(entry, twin, changed)
        else:
            twin.symlink_to(entry)


# ---- hunting ----


def hunt(
    name: str,
    seeds: Sequence[int] = range(SEEDS_MAX),
    *,
    hint: bool = True,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Caught | None:
    """The first of `seeds` that catches the mutant; with `hint`, its killing seed is tried before all others.

    `progress` hears how many seeds it has lived through.
    """
    mutant = describe(name)
    began = time.perf_counter()
    order = [seed for seed in seeds if seed != mutant.seed or not hint]
    chunks = [order[at : at + CHUNK_SEEDS] for at in range(0, len(order), CHUNK_SEEDS)]
    if hint:
        chunks.insert(0, [mutant.seed])
    survived = 0
    with planted(mutant) as directory:
        for findings in _in_turn(directory, mutant, chunks, jobs):
            for found in findings:
                if found.invariant:
                    seconds = time.perf_counter() - began
                    return Caught(found.seed, found.invariant, found.detail, seconds, survived + 1)
                survived += 1
            if progress is not None:
                progress(survived)
    return None


def _in_turn(directory: Path, mutant: Mutant, chunks: list[list[int]], jobs: int) -> Iterator[list[Found]]:
    """What each chunk found, in their order, `jobs` of them at a time; those not begun are given up early."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting = [pool.submit(_run, directory, _request(mutant, chunk)) for chunk in chunks]
        try:
            for future in waiting:
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def story(name: str, seed: int | None = None, *, shrink: bool = False) -> list[Happening]:
    """Everything that happened in the run of one seed, the killing one if none is given.

    With `shrink`, in the shortest run that was found to break the same invariant; that takes many runs.
    """
    mutant = describe(name)
    request = _request(mutant, [mutant.seed if seed is None else seed], trace=True, shrink=shrink)
    with planted(mutant) as directory:
        return list(_run(directory, request)[0].happenings)


def _request(mutant: Mutant, seeds: Sequence[int], *, trace: bool = False, shrink: bool = False) -> Request:
    settings = mutant.faults, mutant.nodes, mutant.learners, mutant.overrides
    return Request(tuple(seeds), *settings, trace, shrink, mutant.protocol)


def _run(directory: Path, request: Request) -> list[Found]:
    """Run seeds in the mutated copy; the last that is answered for is the first with a violation."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(directory), path] if path else [str(directory)])
    process = subprocess.run(
        [sys.executable, "-m", "quorate.sim.prey"],
        input=msgspec.json.encode(request),
        capture_output=True,
        env=environment,
        cwd=directory,
        check=False,
    )
    if process.returncode != 0:
        said = process.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise HuntFailed(f"the mutated code does not run: {said}")
    findings = [msgspec.json.decode(line, type=Found) for line in process.stdout.splitlines()]
    for found in findings:
        assert found.package == str(directory / "quorate"), f"{found.package} is not the mutated copy"
    return findings
