"""A node as a process.

    python -m quorate.node --config FILE --format [--replaces]    make its directory, once
    python -m quorate.node --config FILE                          run it, until SIGTERM or SIGINT
    python -m quorate.node --config FILE --stop-with-stdin        … or until standard input is closed
    python -m quorate.node --config FILE --set KEY=VALUE          … with a setting in place of the one in FILE
    python -m quorate.node --config FILE --nats URL               … with messages from this NATS server
    python -m quorate.node --config FILE --insecure               … open to others, without TLS and passwords

Exit status: 0 stopped as asked; 1 it failed (a flush, a bug of ours), or its cluster does not want it; 2 it could
not start. Its last line says why.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import signal
import sys
from pathlib import Path
from random import Random
from time import time

import uvloop

from quorate.node import settings
from quorate.node.config import BadConfig, NodeConfig, load_config
from quorate.node.directory import WrongDirectory, format_directory
from quorate.node.entrance import Guests
from quorate.node.listeners import check_exposure
from quorate.node.logs import ERROR, JSON, Event, to_stderr
from quorate.node.node import Node, NodeFailed
from quorate.node.ports import PortTaken
from quorate.storage.disk import DiskFailed, DiskFull
from quorate.storage.errors import StoreError
from quorate.storage.real_disk import DirectoryInUse

EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_NOT_STARTED = 2
NOT_STARTED = (
    BadConfig,
    WrongDirectory,
    DirectoryInUse,
    PortTaken,
    DiskFull,
    DiskFailed,
    StoreError,
    OSError,
)
DESCRIPTORS_COUNT = 10_000
GARBAGE_COUNT = 20_000
"""So many objects more than before, and cycles are looked for. Hardly any are made; but what is under way is many
objects for a moment.
"""
NO_ASSERTIONS = "a node does not run without its assertions; start python without -O and PYTHONOPTIMIZE"


def main(
    arguments: list[str] | None = None,
    *,
    guests: Guests | None = None,
    program: str = "python -m quorate.node",
) -> int:
    """`guests` serves connections that carry another protocol than the nodes' own."""
    parser = argparse.ArgumentParser(prog=program, description="Run one node.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="JSON or TOML")
    parser.add_argument("--format", action="store_true", help="make the node's directory and exit")
    parser.add_argument("--replaces", action="store_true", help="with --format: the old directory is lost")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="in place of what FILE says"
    )
    parser.add_argument("--nats", metavar="URL", help="the NATS server, in place of the one in FILE")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input is closed")
    parser.add_argument(
        "--insecure", action="store_true", help="let other machines in without TLS and passwords"
    )
    chosen = parser.parse_args(arguments)
    try:
        given = [one for pair in chosen.set for one in settings.from_pair(pair, "--set", NodeConfig)]
        if chosen.nats is not None:
            given += settings.from_text(("nats",), chosen.nats, "--nats", NodeConfig)
        if chosen.insecure:
            given += settings.from_text(("insecure",), "true", "--insecure", NodeConfig)
        config = load_config(chosen.config, given)
    except BadConfig as bad:
        print(f"{program}: {bad}", file=sys.stderr)
        return EXIT_NOT_STARTED
    if not chosen.format:
        return start(
            config,
            str(chosen.config),
            guests=guests,
            program=program,
            stop_with_stdin=chosen.stop_with_stdin,
        )
    try:
        format_directory(config, replaces=chosen.replaces, rng=Random())
    except NOT_STARTED as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_NOT_STARTED
    return EXIT_STOPPED


def start(
    config: NodeConfig, place: str, *, guests: Guests | None, program: str, stop_with_stdin: bool
) -> int:
    """Run a node until it ends; the exit status. `place`: the file that most of `config` comes from."""
    if not __debug__:
        print(f"{program}: {NO_ASSERTIONS}", file=sys.stderr)
        return EXIT_NOT_STARTED
    try:
        run_node(_made_node(config, place, guests), stop_with_stdin=stop_with_stdin)
    except NodeFailed:
        return EXIT_FAILED  # It has said why, with its last line.
    except NOT_STARTED as error:
        if config.log_format == JSON:
            to_stderr(JSON)(Event(time(), ERROR, config.node, f"not started: {error}"))
        else:
            print(f"{program}: {error}", file=sys.stderr)
        return EXIT_NOT_STARTED
    return EXIT_STOPPED


def _made_node(config: NodeConfig, place: str, guests: Guests | None) -> Node:
    """What is wrong with its listeners is told with the file that says so."""
    try:
        if not config.insecure:
            check_exposure(config.all_listeners())
        return Node(config, guests=guests)
    except BadConfig as bad:
        raise BadConfig(f"{place}: {bad}") from bad


def run_node(node: Node, *, stop_with_stdin: bool = False) -> None:
    """Until it is asked to stop; raises NodeFailed.

    Whoever starts nodes, and may die before they do, holds the other end of their standard input.
    """

    async def until_signalled() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, node.stop)
        if stop_with_stdin:
            loop.add_reader(sys.stdin, lambda: None if os.read(sys.stdin.fileno(), 4096) else node.stop())
        await node.run()

    have_descriptors()
    gc.freeze()
    gc.set_threshold(GARBAGE_COUNT, *gc.get_threshold()[1:])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(until_signalled())


def have_descriptors() -> None:
    """Connections and files need more of them than a shell gives by itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_COUNT if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_COUNT, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
