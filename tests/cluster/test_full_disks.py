"""A file system that is really full: what the kernel refuses is refused, and nothing that was acknowledged is lost.

(test_faults.py says "no room" inside of a node, which needs no right to mount anything.)
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest

from quorate.node.fullness import DISK_FULL, DISK_HAS_ROOM
from tests.cluster.fault_support import go_on, written_to
from tests.cluster.file_systems import file_system, fill, make_room, why_not
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import run, until
from tests.cluster.test_faults import LARGE_BYTES, SMALL_SEGMENTS, killed, leading, says_last

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]

DISK_BYTES = 512 << 20


def lay(cluster: ProxiedCluster, node: int, at: Path) -> None:
    """Let that node have its directory there."""
    process = cluster.nodes[node]
    process.directory = at / "data"
    config = msgspec.json.decode(process.config.read_bytes())
    config["directory"] = str(process.directory)
    process.config.write_bytes(msgspec.json.encode(config))


@pytest.mark.proof
@pytest.mark.parametrize("dies", [False, True])
def test_a_file_system_without_room_holds_up_nobody_but_its_node(tmp_path: Path, *, dies: bool) -> None:
    """Also where the node is killed while there is no room, and comes back before there is."""

    async def main(disks: dict[int, Path]) -> None:
        cluster = ProxiedCluster(tmp_path, store=SMALL_SEGMENTS)
        for node, at in disks.items():
            lay(cluster, node, at)
        async with (
            written_to(tmp_path, cluster, value_bytes=LARGE_BYTES, more_count=60) as (_, writers),
            cluster.client() as client,
        ):
            first = await leading(cluster, client)
            for node in (first, next(each for each in cluster.nodes if each != first)):
                process = cluster.nodes[node]
                fill(disks[node])
                await go_on(writers)
                await until(partial(says_last, process, DISK_FULL), "the node to say so")
                await go_on(writers)
                if dies:
                    await killed(cluster, writers, node)
                    await cluster.until_registered(client)
                    await go_on(writers)
                make_room(disks[node])
                if not dies:  # Else it may not have found out again that there was none.
                    await until(partial(says_last, process, DISK_HAS_ROOM), "the node to say so")
                await go_on(writers)

    with ExitStack() as stack:
        disks = {node: tmp_path / f"disk-{node}" for node in (1, 2, 3)}
        for node, at in disks.items():
            stack.enter_context(file_system(tmp_path / f"image-{node}", at, size=DISK_BYTES))
        run(main(disks))
