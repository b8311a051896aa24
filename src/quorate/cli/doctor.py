"""`quorate doctor`: what is wrong with a running cluster and what to do about it, worst first."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, Json, Servers

if TYPE_CHECKING:
    from rich.console import Console

    from quorate.cli.doctor_facts import Clock, Facts, Finding
    from quorate.cli.orders import Orders
    from quorate.node.requests import Status

EPILOG = """\b
[bold]Examples[/bold]
quorate doctor
quorate doctor --json | jq -r '.findings[].id'

All nodes are looked at twice, a few seconds apart: what passes by itself is not spoken of.

\b
[bold]Exit code[/bold]
0 nothing is wrong, or there are notes only, 1 there are warnings or worse, 2 no node answers.
"""
LOOK_AGAIN_S = 3.0
"""Longer than an election, a restart of a link, or a suspicion takes where times are as by default."""
LOOK_TIMEOUT_S = 5.0
COLOURS = {"critical": "bold red", "warning": "yellow", "note": "cyan"}
FOUND_SOMETHING = 1
TO_A_CLUSTER = ("quorate topic ", "quorate cluster ", "quorate table ", "quorate transaction ")


def register(app: typer.Typer) -> None:
    app.command("doctor", epilog=EPILOG)(doctor)


def doctor(servers: Servers = SERVERS, json: Json = False) -> None:
    """Say what is wrong with a cluster and what to do about it, worst first."""
    from quorate.cli.orders import carry_out

    facts = carry_out(servers, collected)
    findings = [_with_servers(finding, servers) for finding in diagnosed(facts)]
    if json:
        say.print_json(_view(facts, findings))
    else:
        _print(say.console(), facts, findings)
    if any(finding.severity != "note" for finding in findings):
        raise typer.Exit(FOUND_SOMETHING)


# ---- facts ----


async def collected(orders: Orders) -> Facts:
    from quorate.cli.doctor_facts import Facts

    await orders.image(even_old=True)  # All nodes that there are can be asked from then on.
    earlier, _, _ = await _look(orders)
    await asyncio.sleep(LOOK_AGAIN_S)
    image = await orders.image(even_old=True)
    statuses, clocks, silent = await _look(orders)
    return Facts(image, statuses, earlier, clocks, silent, time.time_ns() // 1_000_000)


async def _look(orders: Orders) -> tuple[dict[int, Status], dict[int, Clock], dict[int, str]]:
    """Everybody at once: how they are, the time here around each answer, and why others gave none."""
    from quorate.cli.doctor_facts import Clock
    from quorate.node.client import Unreachable

    statuses: dict[int, Status] = {}
    clocks: dict[int, Clock] = {}
    silent: dict[int, str] = {}

    async def ask(node: int) -> None:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                await orders.client.connect(node)
                asked_ms = time.time_ns() // 1_000_000
                status = await orders.client.status(node)
        except Unreachable as error:
            silent[node] = str(error).removeprefix(f"node {node} at ")
        except TimeoutError:
            silent[node] = f"nothing for {LOOK_TIMEOUT_S:g} s"
        else:
            statuses[node], clocks[node] = status, Clock(asked_ms, time.time_ns() // 1_000_000)

    await asyncio.gather(*map(ask, orders.client.nodes))
    return statuses, clocks, silent


def diagnosed(facts: Facts) -> list[Finding]:
    """All that is wrong, worst first; from facts alone."""
    from quorate.cli.doctor_facts import worst_first
    from quorate.cli.doctor_nodes import node_findings
    from quorate.cli.doctor_partitions import partition_findings
    from quorate.cli.doctor_settings import setting_findings
    from quorate.cli.doctor_transactions import transaction_findings

    of_nodes, of_partitions = node_findings(facts), partition_findings(facts)
    return worst_first((*of_nodes, *of_partitions, *transaction_findings(facts), *setting_findings(facts)))


# ---- words ----


def _with_servers(finding: Finding, servers: str) -> Finding:
    """What is pasted goes to the same cluster."""
    import os

    import msgspec

    from quorate.cli.options import BOOTSTRAP

    if servers in (SERVERS, os.environ.get(BOOTSTRAP)):
        return finding
    commands = tuple(
        f"{command} -b {servers}" if command.startswith(TO_A_CLUSTER) else command
        for command in finding.commands
    )
    return msgspec.structs.replace(finding, commands=commands)


def _view(facts: Facts, findings: list[Finding]) -> dict[str, Any]:
    from quorate.cli.doctor_facts import Severity

    counts = Counter(finding.severity for finding in findings)
    return {
        "is_current": facts.image.is_current,
        "nodes": sorted(facts.infos),
        "silent": sorted(facts.silent_nodes),
        "counts": {severity.value: counts[severity] for severity in Severity},
        "findings": findings,
    }


def _print(out: Console, facts: Facts, findings: list[Finding]) -> None:
    for finding in findings:
        colour = COLOURS[finding.severity]
        out.print(f"[{colour}]{finding.severity.value}[/]  ", end="")
        out.print(f"{finding.where}  ({finding.id})", markup=False, soft_wrap=True)
        say.paragraph(out, _escaped(_sentence(finding.what)), indent=4)
        say.paragraph(out, _escaped(f"→ {finding.do}"), indent=4)
        for command in finding.commands:
            out.print(f"      {command}", markup=False, soft_wrap=True)
        out.print()
    out.print(_sum(facts, findings), markup=False, soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _sentence(text: str) -> str:
    """What begins with the name of a setting (`retention.ms`) keeps it as it is."""
    is_name = "." in text.split(" ")[0].rstrip(".")
    first = text[:1] if is_name else text[:1].upper()
    return first + text[1:] + ("" if text.endswith(".") else ".")


def _sum(facts: Facts, findings: list[Finding]) -> str:
    nodes, topics = len(facts.infos), len(facts.image.topics)
    partitions = len(facts.partitions())
    looked = f"{say.counted(nodes, 'node')}, {say.counted(topics, 'topic')}, {say.counted(partitions, 'partition')}"
    if not findings:
        return f"nothing is wrong: {looked}"
    counts = Counter(finding.severity.value for finding in findings)
    said = [f"{counts['critical']} critical"] if counts["critical"] else []
    said += [say.counted(counts[each], each) for each in ("warning", "note") if counts[each]]
    return f"{', '.join(said)}; looked at {looked}"
