"""The frozen copy of the first version: it is what it was, it reads what is said to it, nothing else (TT-41)."""

from __future__ import annotations

import typing
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorate.core import confirm
from quorate.core.confirm import messages as live
from quorate.core.confirm.voting import Row, Says
from quorate.core.entry import (
    Ceiling,
    Confirm,
    Control,
    EntryId,
    Header,
    Kind,
    Member,
    Membership,
    NoOp,
    Promote,
    Quorums,
    Rollback,
    Snapshot,
    Span,
    Standing,
    Wanted,
    partition_of,
)
from quorate.core.invariant import Violated
from quorate.host import Parcel
from quorate.sim import first_version
from quorate.sim.old_node import as_old
from quorate.storage.frame import Frame, build, control_payload

pytestmark = pytest.mark.behaviour("TT-41")

FIELDS_HASH = "486eebfb0a1a36b79099a93c7dde0b39c982664387ff8a43dcd8dfbab7d4b15d"
"""Of everything that the first version can say. It was released: this never changes."""

N1, N2, N3, N4 = (Member(node, 1) for node in range(1, 5))
AT = EntryId(3, 7)
MEMBERSHIP = Membership((N1, N2, N4), (N3,), (N1, N2, N3), Wanted((N1, N2, N4), (N3,), 5), 5)
SNAPSHOT = Snapshot(AT, 99, 1_000, Standing(MEMBERSHIP, 17))
SPAN = Span(EntryId(2, 3), AT)
QUORUMS = Quorums(3, 2)

CONTROLS: tuple[Control, ...] = (
    NoOp(1),
    MEMBERSHIP,
    Membership((N1,)),
    Ceiling(12),
    Promote(1, 2),
    Confirm(AT),
    Rollback(4),
)
MESSAGES: tuple[live.Message, ...] = (
    live.GoneRequest(3, AT, 2),
    live.GoneResponse(3, 2, True),
    live.StillRequest(3, 1),
    live.StillResponse(3, 1, 0.5),
    live.TakeOver(3),
    Says(3, Row()),
    Says(3, Row(3, 1, True, 2, 1, 2), AT, True, True, True),
    live.AppendEntries(3, AT, 6),
    live.AppendEntries(3, AT, 6, (), True, True, 2),
    live.AppendResponse(3, True, 7, 7, 6),
    live.AppendResponse(3, False, 7, 6, 5, AT, SPAN, 4, True, 0),
    live.SnapshotChunk(3, SNAPSHOT, 64, 16),
    live.SnapshotResponse(3, SNAPSHOT, 64),
    live.WantEntries(3, SPAN),
    live.HaveEntries(3, SPAN),
    live.HaveEntries(3, SPAN, (), "damaged"),
)


def parcel(message: Any, *controls: Control) -> Parcel:
    return Parcel(partition_of(bytes(16), 0), N1, message, tuple(map(frame, controls)))


def frame(control: Control) -> Frame:
    header = Header(3, 8, kind=Kind.CONTROL, control=control)
    return build(partition_of(bytes(16), 0), header, control_payload(header), AT, 0)


def sent_to_old(message: Any, *controls: Control) -> Any:
    return as_old(parcel(message, *controls)).message


SINCE = {"Barrier"}
"""Control records that came later: no node writes one before the cluster's feature level says so."""


def fields_of(kind: type[msgspec.Struct]) -> str:
    config = kind.__struct_config__
    fields = ", ".join(
        f"{field.encode_name}: {kind.__annotations__[field.name]} = {field.default}"
        for field in msgspec.structs.fields(kind)
    )
    return f"{kind.__name__} {config.tag} {config.omit_defaults} {config.forbid_unknown_fields}: {fields}"


# ---- it is what it was ----


def test_the_copy_is_frozen() -> None:
    kinds = [
        kind
        for kind in vars(first_version).values()
        if isinstance(kind, type) and issubclass(kind, first_version.Copied)
    ]
    text = "\n".join(sorted(map(fields_of, kinds)))
    assert sha256(text.encode()).hexdigest() == FIELDS_HASH, f"the first version never said:\n{text}"


def test_the_copy_does_not_change_with_what_it_was_copied_from() -> None:
    source = Path(first_version.__file__).read_text(encoding="utf-8")
    imports = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert imports == ["from __future__ import annotations", "import msgspec"]


def test_the_copy_has_everything_that_was_there() -> None:
    def names(union: Any) -> set[str]:
        return {kind.__name__ for kind in typing.get_args(union)}

    assert names(first_version.Message) == names(live.Message) == {type(each).__name__ for each in MESSAGES}
    there = names(Control) - SINCE
    assert names(first_version.Control) == there == {type(each).__name__ for each in CONTROLS}


# ---- what is said at the first level is understood, both ways ----


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_an_old_node_reads_every_message_and_is_understood(message: Any) -> None:
    assert sent_to_old(message) == message


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: type(control).__name__)
def test_an_old_node_reads_every_control_record(control: Control) -> None:
    as_old(parcel(live.AppendEntries(3, AT, 6), control))
    record = msgspec.msgpack.encode(control)
    assert first_version.read_control(record) == record, "the same bytes in every log"


def test_what_an_old_node_leaves_out_is_what_nobody_said() -> None:
    def said(old: Any) -> Any:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=live.Message)

    at, row = first_version.EntryId(3, 7), first_version.Row(3, 1, True)
    assert said(first_version.AppendResponse(3, True, 7, 7, 6)).loose is False
    assert said(first_version.Says(3, row, at)).commit is None
    chunk = first_version.SnapshotChunk(
        3,
        first_version.Snapshot(
            at, 9, 10, first_version.Standing(first_version.Membership((first_version.Member(1, 1),)))
        ),
        0,
        10,
    )
    assert said(chunk).snapshot.standing.membership == Membership((N1,), quorums=None)


@pytest.mark.parametrize(
    "state",
    [confirm.SavedState(), confirm.SavedState(4, N2, AT, Row(4, 2, True, 1, 2, 3), 3)],
    ids=["new", "used"],
)
def test_what_is_saved_at_the_first_level_can_be_read_by_either_version(state: confirm.SavedState) -> None:
    written = msgspec.msgpack.encode(state)
    old = msgspec.msgpack.decode(written, type=first_version.SavedState)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=confirm.SavedState) == state


# ---- what came later is not ----


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (live.AppendResponse(3, True, 7, 7, 6, loose=True), "AppendResponse: .*`loose`"),
        (Says(3, Row(), commit=-1), "Says: .*`commit`"),
        (
            live.SnapshotChunk(3, Snapshot(AT, 9, 10, Standing(Membership((N1,), quorums=QUORUMS))), 0, 10),
            r"SnapshotChunk: .*`quorums` - at `\$.snapshot.standing.membership`",
        ),
        (
            live.SnapshotResponse(
                3, Snapshot(AT, 9, 10, Standing(Membership((N1,), outgoing_quorums=QUORUMS))), 0
            ),
            "SnapshotResponse: .*`outgoing_quorums`",
        ),
    ],
)
def test_an_old_node_that_is_told_more_is_confused(message: Any, named: str) -> None:
    with pytest.raises(Violated, match=f"old-node-confused: {named}"):
        sent_to_old(message)


@pytest.mark.parametrize(
    ("control", "named"),
    [
        (Rollback(4, forced=True), "Rollback at 3-8: .*`forced`"),
        (Membership((N1,), quorums=QUORUMS), "Membership at 3-8: .*`quorums`"),
        (Membership((N1,), outgoing=(N2,), outgoing_quorums=QUORUMS), "Membership .*`outgoing_quorums`"),
        (
            Membership((N1,), wanted=Wanted((N2,), quorums=QUORUMS)),
            r"Membership .*`quorums` - at `\$.wanted`",
        ),
    ],
)
def test_an_old_node_that_is_sent_a_newer_entry_is_confused(control: Control, named: str) -> None:
    with pytest.raises(Violated, match=f"old-node-confused: {named}"):
        as_old(parcel(live.AppendEntries(3, AT, 6), control))


def test_what_is_said_between_nodes_is_no_business_of_the_copy() -> None:
    ping = Parcel(None, N1, object())
    assert as_old(ping) is ping


def test_everything_that_is_new_waits_for_a_level() -> None:
    """Whatever is added to a message is left out as long as it says nothing: else old nodes could not read it."""
    for kind in typing.get_args(live.Message) + typing.get_args(Control) + (Wanted,):
        if kind.__name__ in SINCE:
            continue
        old = getattr(first_version, kind.__name__)
        newer = set(kind.__struct_fields__) - set(old.__struct_fields__)
        assert not newer or kind.__struct_config__.omit_defaults, f"{kind.__name__}: {newer}"
        assert set(old.__struct_fields__) <= set(kind.__struct_fields__)
