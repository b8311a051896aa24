"""Any orders, any end of the process or the power, any single harm to a file: what a store must be like then."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import store_harm
from tests.properties.store_harm import Files, Rest
from tests.properties.store_model import PARTITIONS, Model

KINDS = 88
"""As many as `Model.act` tells apart."""


def live(model: Model, rng: Random, turns: int) -> None:
    for _ in range(turns):
        for _ in range(rng.choice((1, 1, 3, 10))):
            model.act(rng.randrange(KINDS), rng.choice(PARTITIONS), rng.getrandbits(16))
        model.steps(rng.choice((0, 1, 2, 5, 20)))


@given(st.integers(0, 1 << 32))
def test_every_durable_order_survives_crashes_and_power_losses(seed: int) -> None:
    """After each end, every replica is as one of its orders since the last durable one left it."""
    rng = Random(seed)
    model = Model(seed)
    for _ in range(rng.randint(1, 3)):
        live(model, rng, rng.choice((5, 30)))
        if rng.random() < 0.3:
            model.settle()
        model.end(power=rng.random() < 0.6)


def at_rest(seed: int) -> Rest:
    rng = Random(seed)
    model = Model(seed)
    live(model, rng, 20)
    model.settle()
    model.world.crash()
    files = {name: model.world.disk.content(name) for name in model.world.disk.files()}
    pictures = {partition: model.now(partition) for partition in PARTITIONS}
    return Rest(files, pictures, model.written, model.world.settings)


def harmed(rng: Random, files: Files) -> Files:
    name = rng.choice(sorted(name for name in files if files[name]))
    content = files[name]
    at = rng.randrange(len(content.rstrip(b"\0")) or 1)
    length = rng.choice((8, 64, 512))
    choice = rng.randrange(5)
    if choice == 0:
        return store_harm.flipped(files, name, at, rng.randrange(8))
    if choice == 1:
        return store_harm.zeroed(files, name, at, length)
    if choice == 2:
        return store_harm.swapped(files, name, at, rng.randrange(len(content)), length)
    if choice == 3:
        return store_harm.truncated(files, name, rng.randrange(len(content)))
    return store_harm.removed(files, name)


@pytest.mark.parametrize("seed", range(4))
def test_one_harm_to_one_file_is_found_out_and_put_right(seed: int) -> None:
    """Never a wrong read, never a shorter log or an older state without a word; and peers can make it whole."""
    rest = at_rest(seed)
    rng = Random(seed)
    for _ in range(25):
        store_harm.examine(rest, harmed(rng, rest.files))
