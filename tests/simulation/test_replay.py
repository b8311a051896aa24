"""Same seed, same bytes: in every run, in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from quorate.sim.run import run_seed

SEEDS = (0, 1, 2)


def story(seed: int, *, hash_seed: int, nodes: int = 3, protocol: str = "raft") -> bytes:
    """What another process tells of a seed."""
    command = [sys.executable, "-m", "quorate.sim.run", str(seed), "--nodes", str(nodes), "--trace"]
    command += ["--protocol", protocol]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    finished = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert finished.returncode in (0, 1), finished.stderr.decode()
    return finished.stdout


@pytest.mark.parametrize("seed", SEEDS)
def test_story_is_the_same_in_processes_that_hash_differently(seed: int) -> None:
    told = story(seed, hash_seed=1)
    assert told == story(seed, hash_seed=2)
    assert told.count(b"\n") > 500


def test_story_of_confirm_is_the_same_in_processes_that_hash_differently() -> None:
    told = story(3, hash_seed=1, protocol="confirm")
    assert told == story(3, hash_seed=2, protocol="confirm")
    assert told.count(b"\n") > 500


def test_story_of_a_larger_world_is_the_same_in_processes_that_hash_differently() -> None:
    told = story(3, hash_seed=3, nodes=5)
    assert told == story(3, hash_seed=4, nodes=5)
    assert told.count(b"\n") > 500


def test_story_is_the_same_whatever_ran_before_it_in_the_process() -> None:
    first = run_seed(5, trace=True)
    run_seed(6)
    again = run_seed(5, trace=True)
    assert first.happenings == again.happenings
    assert first.happenings


def test_run_is_the_same_whether_or_not_it_is_told() -> None:
    told, silent = run_seed(4, trace=True), run_seed(4)
    assert silent.happenings is None
    assert (told.events, told.acknowledged, told.seconds) == (
        silent.events,
        silent.acknowledged,
        silent.seconds,
    )


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(10, 40))
def test_story_is_the_same_in_processes_that_hash_differently_for_many_seeds(seed: int) -> None:
    told = story(seed, hash_seed=11)
    assert told == story(seed, hash_seed=12)
    assert told
