"""Lines that only `confirm` has: orders for its replicas, `_voting`, what is decided, and what is applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.batch import encode_records
from quorate.core import commands
from quorate.core.confirm.voting import Row
from quorate.core.entry import Kind
from quorate.sim.scenario_acts import Act, Play, ask
from quorate.sim.scenario_expect import Expectation, Found, each
from quorate.sim.scenario_notes import ASYNCHRONOUS, Notes
from quorate.sim.scenario_script import Said
from quorate.sim.scenario_stage import Refused, Stage
from quorate.storage.aside import ASIDE_PREFIX

# ---- orders ----


def _order(play: Play, said: Said, make: Callable[[int], commands.Command]) -> None:
    stage = play.stage
    if stage.cast.room.name != "confirm":
        raise Refused(
            f"in {stage.cast.room.name} nobody can order that of a replica; write `protocol confirm` above"
        )
    answer = ask(play, said.node(), said.word("NAME"))
    stage.command(said.node(), 0, make, answer)
    stage.calm()


def promote(play: Play, said: Said) -> None:
    rolling_back = "rolling" in said
    _order(play, said, lambda request: commands.Promote(request, rolling_back))


def demote(play: Play, said: Said) -> None:
    _order(play, said, commands.Demote)


def roll_back(play: Play, said: Said) -> None:
    _order(play, said, commands.RollBack)


def set_read_only(play: Play, said: Said) -> None:
    read_only = "read-only" in said
    _order(play, said, lambda request: commands.SetReadOnly(request, read_only))


def cut_loose(play: Play, said: Said) -> None:
    _order(play, said, commands.CutLoose)


def join_again(play: Play, said: Said) -> None:
    _order(play, said, commands.JoinAgain)


def propose_asynchronously(play: Play, said: Said) -> None:
    """As `propose`, but as a transaction of asynchronous tables only."""
    name = said.word("NAME")
    texts = said.words("TEXT") if "TEXT" in said else (name,)
    payload = encode_records([(ASYNCHRONOUS, text.encode()) for text in texts])
    play.stage.propose(said.node(), 0, [payload], ask(play, said.node(), name))
    play.stage.calm()


# ---- expectations ----


def expect_local(play: Play, said: Said) -> Found:
    """What a replica has applied, settled or not."""
    stage = play.stage
    stage.acting(said.node())
    hosted = stage.hosted(said.node(), 0)
    assert hosted is not None
    if not isinstance(hosted.machine, Notes):
        return "nothing: only in confirm something is applied before it is settled"
    found = hosted.machine.local
    if found == (list(said.words("TEXT")) if "TEXT" in said else []):
        return None
    return " ".join(f'"{value}"' for value in found) or "nothing"


def expect_decisions(play: Play, said: Said) -> Found:
    """The PROMOTEs, CONFIRMs and ROLLBACKs of a log, settled or not."""
    stage = play.stage
    wanted = " ".join(f'"{text}"' for text in said.words("TEXT")) if "TEXT" in said else "none"
    return each(play, said, wanted, lambda replica: _decisions(stage, replica))


def _decisions(stage: Stage, replica: Any) -> str:
    log, known = replica.log, stage.narrator.entries
    told = [
        stage.teller.decision(known[log.epoch_at(offset), offset])
        for offset in range(log.base.offset + 1, log.head.offset + 1)
        if log.span_at(offset) is None
    ]
    return " ".join(f'"{text}"' for text in told if text) or "none"


def expect_void(play: Play, said: Said) -> Found:
    """Settled records that were rolled back."""
    stage = play.stage
    wanted = " ".join(map(stage.teller.offset, said.numbers("OFFSET")))
    return each(play, said, wanted, lambda replica: _void(stage, replica))


def _void(stage: Stage, replica: Any) -> str:
    log = replica.log
    found = [
        stage.teller.offset(offset)
        for offset in range(log.base.offset + 1, replica.published + 1)
        if log.is_void(offset) and stage.narrator.entries[log.epoch_at(offset), offset].kind == Kind.RECORDS
    ]
    return " ".join(found) or "none"


def expect_voting(play: Play, said: Said) -> Found:
    """Who leads and who led, by the rows of `_voting` that a node has; or one of these rows."""
    stage = play.stage
    voting = getattr(stage.up(said.node()), "voting", None)
    if voting is None:
        return f"none: there is no such table in {stage.cast.room.name}"
    if "VOTER" in said:
        found = str(voting.rows.get(said.node("VOTER"), Row()))
    else:
        found = f"leader n{voting.newest.leader}, former n{voting.newest.former}"
    found = stage.teller.named(found.replace("n0", "none"))
    return None if found == said.word("TEXT") else f'"{found}"'


def expect_set_aside(play: Play, said: Said) -> Found:
    """Stretches of a former leader's log that are kept for people."""
    files = play.stage.nodes[said.node()].disk.files()
    found = sum(file.rpartition("/")[2].startswith(ASIDE_PREFIX) for file in files)
    return None if found == said.number("NUMBER") else str(found)


CONFIRM_ACTS: dict[str, Act] = {
    "propose NODE [TEXT...] asynchronously as NAME": propose_asynchronously,
    "promote NODE [rolling back] as NAME": promote,
    "demote NODE as NAME": demote,
    "roll back NODE as NAME": roll_back,
    "set NODE read-only|read-write as NAME": set_read_only,
    "cut loose NODE as NAME": cut_loose,
    "join again NODE as NAME": join_again,
}

CONFIRM_EXPECTATIONS: dict[str, Expectation] = {
    "expect local NODE = nothing": expect_local,
    "expect local NODE = TEXT...": expect_local,
    "expect decisions NODE... = none": expect_decisions,
    "expect decisions NODE... = TEXT...": expect_decisions,
    "expect void NODE... = OFFSET...": expect_void,
    "expect voting NODE = TEXT": expect_voting,
    "expect voting NODE of VOTER = TEXT": expect_voting,
    "expect set aside NODE = NUMBER": expect_set_aside,
}
