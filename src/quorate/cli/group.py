"""`quorate group`: consumer groups, for people who look after them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, Json, Servers
from quorate.cli.times import as_ms
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.client import Cluster
    from quorate.client.groups import Described, Positions

group_app = typer.Typer(no_args_is_help=True, help="See how far consumer groups have got, and change it.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", metavar="TOPIC[:P,…]", help="A topic, or some partitions of it; repeat for more."
    ),
]

RESET_EPILOG = """\b
[bold]Examples[/bold]
quorate group reset-offsets audit --to-earliest                  all that it has read, once more
quorate group reset-offsets audit -t events:0,3 --to-offset 500
quorate group reset-offsets audit -t events --to-time 2026-11-16T08:00
quorate group reset-offsets audit --shift-by -100 --dry-run      only shows where it would go on

Nobody may be in the group: its members would not know. Offsets before the first record or behind the last become
these.
"""


def register(app: typer.Typer) -> None:
    group_app.command("list")(list_)
    group_app.command("describe")(describe)
    group_app.command("delete")(delete)
    group_app.command("reset-offsets", epilog=RESET_EPILOG)(reset_offsets)
    group_app.command("delete-offsets")(delete_offsets)
    app.add_typer(group_app, name="group")


def list_(servers: Servers = SERVERS, json: Json = False) -> None:
    """List the groups."""
    from quorate.cli.orders import reached
    from quorate.client.groups import list_groups

    with reached(servers) as cluster:
        groups = list_groups(cluster)
    if json:
        say.print_json({"groups": [{"group": each.name, "state": each.state} for each in groups]})
    elif groups:
        rows = [(each.name, each.state) for each in groups]
        say.console().print(say.table("Consumer groups", ("group", "state"), rows))
    else:
        print("There are no consumer groups; one comes about when its first member joins.")


def describe(name: Name, servers: Servers = SERVERS, json: Json = False) -> None:
    """Show who is in a group, how far it has got, and how much lies ahead of it."""
    from quorate.cli.orders import reached
    from quorate.client.groups import describe_group, positions_of

    with reached(servers) as cluster:
        group = describe_group(cluster, name)
        positions = positions_of(cluster, name)
        ends = _ends(cluster, [*positions, *_held(group)])
    lags = {place: max(0, ends[place] - positions[place]) for place in positions if place in ends}
    if json:
        say.print_json(_as_json(group, positions, ends, lags))
        return
    out = say.console()
    members = say.counted(len(group.members), "member")
    protocol = f", shared out by {group.protocol}" * bool(group.protocol)
    print(f"group {name}: {group.state}, {members}{protocol}; coordinated by node {group.coordinator}")
    holders = {place: member for member in group.members for place in _places(member.partitions or {})}
    rows = []
    for place in sorted({*positions, *holders}):
        member = holders.get(place)
        rows.append(
            (
                place[0],
                str(place[1]),
                f"{positions[place]:,}" if place in positions else "–",
                f"{ends[place]:,}" if place in ends else "gone",
                f"{lags[place]:,}" if place in lags else "–",
                "–" if member is None else f"{member.instance or member.client_id}{member.host}",
            )
        )
    if rows:
        columns = ("topic", "partition", "position", "end", "lag", "member")
        out.print(say.table("", columns, rows, right=(1, 2, 3, 4), whole=(0,)))
        print(f"lag: {sum(lags.values()):,} offsets in all")
    else:
        print("It has no positions, and reads nothing.")


def _as_json(group: Described, positions: Positions, ends: Positions, lags: Positions) -> dict[str, object]:
    return {
        "group": group.name,
        "state": group.state,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "members": [
            {
                "id": member.id,
                "instance": member.instance,
                "client_id": member.client_id,
                "host": member.host.removeprefix("/"),
                "partitions": member.partitions,
            }
            for member in group.members
        ],
        "positions": [
            {"topic": place[0], "partition": place[1], "offset": positions[place]}
            | ({"end": ends[place], "lag": lags[place]} if place in ends else {"end": None, "lag": None})
            for place in sorted(positions)
        ],
        "lag": sum(lags.values()),
    }


def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP…", help="Groups that nobody is in.")],
    servers: Servers = SERVERS,
    json: Json = False,
) -> None:
    """Forget groups and their positions."""
    from quorate.cli.orders import reached
    from quorate.client.groups import delete_group

    with reached(servers) as cluster:
        for name in names:
            delete_group(cluster, name)
    lines = [f"group {name} is deleted" for name in names]
    say.result(lines, {"deleted": names}, json=json)


def reset_offsets(
    name: Name,
    topic: Topics = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last record.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="To this offset.")
    ] = None,
    to_time: Annotated[
        datetime | None, typer.Option("--to-time", help="To the first record of that time, or later.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="So many offsets on, or back.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be.")] = False,
    servers: Servers = SERVERS,
    json: Json = False,
) -> None:
    """Let a group go on from somewhere else."""
    from quorate.cli.orders import reached
    from quorate.client.groups import positions_of, set_positions

    given = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift_by is not None]
    if sum(given) != 1:
        raise WrongUsage(
            "where to: one of --to-earliest, --to-latest, --to-offset, --to-time and --shift-by; "
            "see `quorate group reset-offsets --help`"
        )
    with reached(servers) as cluster:
        before = positions_of(cluster, name)
        places = _wanted(cluster, topic, before, name)
        first, last = _firsts(cluster, places), _ends(cluster, places)
        places = [place for place in places if place in first and place in last]
        if to_time is not None:
            after = _at_time(cluster, places, to_time, last)
        elif shift_by is not None:
            unknown = [place for place in places if place not in before]
            if unknown:
                raise WrongUsage(
                    f"--shift-by: group {name} has no position in partition {unknown[0][1]} of {unknown[0][0]}"
                )
            after = {place: before[place] + shift_by for place in places}
        elif to_offset is not None:
            after = dict.fromkeys(places, to_offset)
        else:
            after = first if to_earliest else last
        after = {place: min(max(after[place], first[place]), last[place]) for place in places}
        if not dry_run:
            set_positions(cluster, name, after)
    _say_reset(name, before, after, dry_run=dry_run, json=json)


def _say_reset(name: str, before: Positions, after: Positions, *, dry_run: bool, json: bool) -> None:
    if json:
        moved = [
            {"topic": topic, "partition": number, "before": before.get((topic, number)), "offset": offset}
            for (topic, number), offset in sorted(after.items())
        ]
        say.print_json({"group": name, "dry_run": dry_run, "positions": moved})
        return
    rows = [
        (place[0], str(place[1]), f"{before[place]:,}" if place in before else "–", f"{offset:,}")
        for place, offset in sorted(after.items())
    ]
    columns = ("topic", "partition", "before", "would be" if dry_run else "now")
    say.console().print(say.table(f"Positions of {name}", columns, rows, right=(1, 2, 3), whole=(0,)))


def delete_offsets(name: Name, topic: Topics = None, servers: Servers = SERVERS, json: Json = False) -> None:
    """Forget how far a group has got in some topics."""
    from quorate.cli.orders import reached
    from quorate.client.groups import forget_positions, positions_of

    if not topic:
        raise WrongUsage(
            "name at least one topic with --topic; `quorate group delete` forgets all of a group"
        )
    with reached(servers) as cluster:
        before = positions_of(cluster, name)
        if not before:
            raise WrongUsage(
                f"group {name} has no positions; `quorate group list` shows the groups there are"
            )
        places = [place for place in _wanted(cluster, topic, before, name) if place in before]
        if places:
            forget_positions(cluster, name, places)
    forgotten = [{"topic": place[0], "partition": place[1], "offset": before[place]} for place in places]
    count = say.counted(len(places), "position")
    say.result(f"group {name}: {count} forgotten", {"group": name, "forgotten": forgotten}, json=json)


# ---- places ----

Place = tuple[str, int]


def _wanted(cluster: Cluster, topics: list[str] | None, before: Positions, name: str) -> list[Place]:
    """Those that were named; all that the group has a position in, where none was."""
    if not topics:
        if not before:
            raise WrongUsage(f"group {name} has no positions; name the topics that are meant with --topic")
        return sorted(place for place in before)
    places: list[Place] = []
    for text in topics:
        topic, _, numbers = text.partition(":")
        count = len(cluster.topics([topic])[topic].partitions)
        try:
            wanted = [int(number) for number in numbers.split(",")] if numbers else list(range(count))
        except ValueError:
            raise WrongUsage(f"--topic {text!r}: write TOPIC, or TOPIC:0,2 for partitions 0 and 2") from None
        for number in wanted:
            if not 0 <= number < count:
                raise WrongUsage(f"--topic {text!r}: {topic} has partitions 0 to {count - 1}, not {number}")
            places.append((topic, number))
    return sorted(set(places))


def _held(group: Described) -> list[Place]:
    return [place for member in group.members for place in _places(member.partitions or {})]


def _places(partitions: dict[str, list[int]]) -> list[Place]:
    return [(topic, number) for topic, numbers in partitions.items() for number in numbers]


def _firsts(cluster: Cluster, places: list[Place]) -> Positions:
    from quorate.client import EARLIEST

    return _offsets(cluster, places, EARLIEST)


def _ends(cluster: Cluster, places: list[Place]) -> Positions:
    from quorate.client import LATEST

    return _offsets(cluster, places, LATEST)


def _at_time(cluster: Cluster, places: list[Place], time: datetime, ends: Positions) -> Positions:
    """The end, where nothing is so young."""
    return ends | _offsets(cluster, places, as_ms(time, "--to-time"))


def _offsets(cluster: Cluster, places: list[Place], when: int) -> Positions:
    """By topic: those of topics that are gone are left out."""
    from quorate.client import UnknownPartition, UnknownTopic

    numbers: dict[str, set[int]] = {}
    for topic, number in places:
        numbers.setdefault(topic, set()).add(number)
    found: Positions = {}
    for topic, some in numbers.items():
        try:
            offsets = cluster.offsets(topic, dict.fromkeys(sorted(some), when))
        except (UnknownTopic, UnknownPartition):
            continue
        found |= {(topic, number): offset for number, offset in offsets.items() if offset is not None}
    return found
