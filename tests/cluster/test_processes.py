"""One node as a process: how it starts, refuses, survives nonsense, fails and stops."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from quorate.bench.cluster_load import Ledger
from quorate.bench.cluster_processes import NodeProcess, free_ports
from quorate.node.client import OutcomeUnknown, Unreachable
from quorate.node.codec import Hello, Welcome, decode_greeting, encode_greeting
from quorate.node.letters import LETTER_BYTES_MAX, PREFACE, seal
from tests.cluster.support import (
    batch_of,
    cluster_of,
    expect_no_traceback,
    expect_nothing_lost,
    run,
    until,
    until_acknowledged,
)

pytestmark = pytest.mark.cluster

FAILING_NODE = Path(__file__).with_name("failing_node.py")
FULL_NODE = Path(__file__).with_name("full_node.py")


def start_again(process: NodeProcess, /, **changes: object) -> subprocess.CompletedProcess[str]:
    """Another process with this node's configuration, but for what is changed; it is expected to end."""
    config = msgspec.json.decode(process.config.read_bytes()) | changes
    other = process.config.with_name("other.json")
    other.write_bytes(msgspec.json.encode(config))
    command = [sys.executable, "-m", "quorate.node", "--config", str(other)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_second_process_on_a_directory_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=1, nodes=1) as cluster:
            cluster.start()
            node = cluster.nodes[1]
            async with cluster.client() as client:
                await cluster.leaders(client)
                second = start_again(node, listen=f"127.0.0.1:{free_ports(1)[0]}")
                assert second.returncode == 2
                assert node.process is not None
                assert f"in use by process {node.process.pid}" in second.stderr
                assert "Traceback" not in second.stderr
                await client.propose(cluster.partitions[0], [batch_of(b"still here")])

    run(main())


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    with cluster_of(tmp_path, partitions=1, nodes=1) as cluster:
        node = cluster.nodes[1]
        assert "make it with `quorate format`" in start_again(node).stderr
        node.format()
        wrong = {
            "of cluster": start_again(node, cluster="another"),
            "of node 1, not 2": start_again(node, node=2, topics=[]),
            "not a node's": start_again(node, directory="."),
        }
        shutil.rmtree(node.directory / "store")
        wrong["is gone"] = start_again(node)
        for words, refused in wrong.items():
            assert words in refused.stderr
            assert refused.returncode == 2
            assert refused.stderr.count("\n") == 1


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with (
        cluster_of(tmp_path, partitions=1, nodes=1) as cluster,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        cluster.nodes[1].format()
        port = taken.getsockname()[1]
        refused = start_again(cluster.nodes[1], listen=f"127.0.0.1:{port}")
        assert refused.returncode == 2
        assert str(port) in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_node_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=3, nodes=1) as cluster:
            cluster.start()
            node = cluster.nodes[1]
            async with cluster.client() as client:
                await cluster.leaders(client)
                settled = await client.propose(cluster.partitions[0], [batch_of(b"kept")])
                assert node.process is not None
                node.process.send_signal(number)
                assert node.wait(10) == 0
                node.start()
                await cluster.leaders(client)
                await cluster.converged(client)  # It leads, and has settled that it does.
                frames, _ = await client.fetch(1, cluster.partitions[0], settled.offset)
                assert frames[0].header.offset == settled.offset
            expect_no_traceback(node)

    run(main())


def test_a_node_that_was_started_in_the_background_stops_when_it_is_told_to(tmp_path: Path) -> None:
    """Of a shell's `&` it inherits that Ctrl-C is not for it."""
    with cluster_of(tmp_path, partitions=1, nodes=1) as cluster:
        node = cluster.nodes[1]
        node.command = ("sh", "-c", 'trap "" INT; exec "$@"', "sh", *node.command)
        cluster.start()

        async def main() -> None:
            async with cluster.client() as client:
                await cluster.leaders(client)

        run(main())
        assert node.stop() == 0


def nonsense(cluster: str) -> list[bytes]:
    """What a port may hear: other protocols, lies about lengths, our own protocol with something wrong."""
    chance = Random(5)
    client = encode_greeting(Hello(cluster))
    others = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(1000),
        b"\xff" * 1000,
        chance.randbytes(100_000),
    ]
    letters = [
        bytes(1000),
        chance.randbytes(100_000),
        struct.pack(">I", LETTER_BYTES_MAX) + bytes(100),
        struct.pack(">III", 100, 0xFFFFFFFF, 0) + bytes(92),
        seal(b"\x81"),
        seal(b"\xc1" * 10),
        encode_greeting(Welcome(1)),
        encode_greeting(Hello("another cluster")),
        encode_greeting(Hello(cluster, node=9)),
        encode_greeting(Hello(cluster, node=1)),
        encode_greeting(Hello(cluster, to=7)),
        encode_greeting(Hello(cluster, version=99)),
        client + client,
        client + chance.randbytes(100_000),
        client + struct.pack(">I", LETTER_BYTES_MAX + 1),
        client + seal(chance.randbytes(50), 1 << 20) + bytes(1 << 20),
        encode_greeting(Hello(cluster, node=2)) + seal(chance.randbytes(50)),
    ]
    return others + [PREFACE + letter for letter in letters]


def test_nonsense_on_the_port_is_survived(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=3) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.leaders(client)
                address = cluster.nodes[1].address
                for garbage in nonsense(cluster.name):
                    reader, writer = await asyncio.open_connection(address.host, address.port)
                    writer.write(garbage)
                    answer = b""
                    try:
                        answer = await asyncio.wait_for(reader.read(), 20)  # It closes, by itself.
                    except ConnectionResetError:
                        pass
                    if answer:
                        decode_greeting(answer[4 : 4 + struct.unpack_from(">I", answer)[0]])
                    writer.close()
                for partition in cluster.partitions:
                    await client.propose(partition, [batch_of(b"as if nothing had been")])
                await cluster.converged(client)
            assert cluster.nodes[1].stop() == 0
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def test_a_failed_flush_ends_the_node_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=6) as cluster:
            sign = tmp_path / "fail now"
            victim = cluster.nodes[3]
            sound = victim.command
            victim.command = (sys.executable, str(FAILING_NODE), str(sign))
            cluster.start()
            async with cluster.client() as client:
                await cluster.leaders(client)
                async with Ledger(client, cluster.partitions, seed=6, value_bytes=500) as ledger:
                    await until_acknowledged(ledger, 200)
                    sign.touch()
                    await until(lambda: not victim.is_running, "the node whose flush failed to end")
                    assert victim.wait(1) == 1
                    assert "fatal" in victim.said()
                    await until_acknowledged(ledger, 200)
                    sign.unlink()
                    victim.command = sound
                    victim.start()
                    await until_acknowledged(ledger, 200)
                await cluster.converged(client)
                await expect_nothing_lost(cluster, ledger)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.parametrize("is_put_back_empty", [False, True])
def test_a_node_whose_directory_is_removed_says_so_and_ends_and_the_others_go_on(
    tmp_path: Path, is_put_back_empty: bool
) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=3) as cluster:
            victim = cluster.nodes[3]
            cluster.start()
            async with cluster.client() as client:
                await cluster.leaders(client)
                # Moved, not removed file by file: the node is to find out by looking, not because a write fails.
                victim.directory.rename(tmp_path / "elsewhere")
                if is_put_back_empty:
                    victim.format(replaces=True)
                await until(lambda: not victim.is_running, "the node to end")
                assert victim.wait(1) == 1
                what = "is another directory than the one that was opened" if is_put_back_empty else "is gone"
                (line,) = [line for line in victim.said().splitlines() if "fatal" in line]
                assert f"{victim.directory} {what}: somebody removed or moved it" in line
                assert line == victim.said().splitlines()[-1]
                assert "quorate cluster replace 3" in line
                for partition in cluster.partitions:
                    await client.propose(partition, [batch_of(b"still here")])
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def test_a_node_whose_directory_is_removed_while_it_writes_ends_without_a_traceback(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=3) as cluster:
            victim = cluster.nodes[3]
            cluster.start()
            async with cluster.client() as client:
                await cluster.leaders(client)
                async with Ledger(client, cluster.partitions, seed=6, value_bytes=500) as ledger:
                    await until_acknowledged(ledger, 200)
                    shutil.rmtree(victim.directory)
                    await until(lambda: not victim.is_running, "the node whose directory is gone to end")
                    assert victim.wait(1) == 1
                    await until_acknowledged(ledger, 200)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def test_a_full_disk_is_said_and_ends_by_itself(tmp_path: Path) -> None:
    sign = tmp_path / "full"

    async def main() -> None:
        with cluster_of(tmp_path, partitions=1, nodes=1) as cluster:
            node = cluster.nodes[1]
            node.command = (sys.executable, str(FULL_NODE), str(sign))
            cluster.start()
            async with cluster.client() as client:
                await cluster.leaders(client)
                large = batch_of(bytes(100_000))
                await client.propose(cluster.partitions[0], [large])
                sign.touch()
                with pytest.raises((OutcomeUnknown, Unreachable)):
                    await client.propose(cluster.partitions[0], [large], timeout_s=1.0)
                await until(lambda: "the disk is full" in node.said(), "the node to say so")
                await client.propose(cluster.partitions[0], [batch_of(b"small")])
                sign.unlink()
                await client.propose(cluster.partitions[0], [large], timeout_s=30.0)
                await until(lambda: "the disk has room again" in node.said(), "the node to say so")
            expect_no_traceback(node)

    run(main())


def strace_works() -> bool:
    strace = shutil.which("strace")
    if strace is None:
        return False
    probe = subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True, check=False)
    return probe.returncode == 0


@pytest.mark.skipif(not strace_works(), reason="needs strace, and the right to trace")
def test_an_error_of_the_kernel_on_flush_ends_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=2, nodes=1) as cluster:
            node = cluster.nodes[1]
            node.format()
            sound = node.command
            # Without its own flushes the kernel is asked for ours, and those can be made to fail.
            no_aio = ("-e", "inject=io_setup:error=ENOSYS")
            inject = ("-e", "inject=fdatasync:error=EIO:when=50+")  # Counted for each thread.
            strace = ("strace", "-f", "--seccomp-bpf", "-o", os.devnull, "-e", "trace=fdatasync,io_setup")
            node.command = (*strace, *no_aio, *inject, *sound)
            node.start()
            async with cluster.client() as client:
                await cluster.leaders(client)
                acknowledged: list[int] = []
                with pytest.raises((OutcomeUnknown, Unreachable)):
                    while True:
                        settled = await client.propose(
                            cluster.partitions[0], [batch_of(b"%d" % len(acknowledged))]
                        )
                        acknowledged.append(settled.offset)
                assert node.wait(20) == 1
                assert "fatal" in node.said()
                node.command = sound
                node.start()
                await cluster.leaders(client)
                frames, _ = await client.fetch(1, cluster.partitions[0], 0)
                assert {frame.header.offset for frame in frames}.issuperset(acknowledged)
                assert acknowledged
            expect_no_traceback(node)

    run(main())
