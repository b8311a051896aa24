"""Expectations: what a line says the world is like, and what is found instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.batch import decode_records
from quorate.core import isr
from quorate.core.entry import Kind, Member
from quorate.sim.scenario_acts import Play, choose
from quorate.sim.scenario_log import admits, log_items, read_entries, write_items
from quorate.sim.scenario_notes import PADDING
from quorate.sim.scenario_script import EXPECT_TRACE, UNANSWERED, Said
from quorate.sim.scenario_stage import Stage, content, is_called, letter_name
from quorate.sim.scenario_words import Mistake, Word
from quorate.storage.frame import Frame

READ_BYTES = 1 << 20

Found = str | None
"""What is there instead; None if everything is as expected."""


def expect_log(play: Play, said: Said) -> Found:
    return _logs(play, said, lambda replica: None)


def expect_flushed(play: Play, said: Said) -> Found:
    return _logs(play, said, lambda replica: replica.durable.offset)


def _logs(play: Play, said: Said, upto: Callable[[Any], int | None]) -> Found:
    stage = play.stage
    for number in said.nodes():
        replica = stage.up(number)
        found = log_items(replica.log, stage.narrator.entries, upto(replica))
        if not admits(said.items(), found):
            written = write_items(found, stage.cast.origin)
            return f"{written} on {stage.name(number)}" if len(said.nodes()) > 1 else written
    return None


def each(play: Play, said: Said, wanted: str, look: Callable[[Any], str]) -> Found:
    """The same of every node named."""
    for number in said.nodes():
        found = look(play.stage.up(number))
        if found != wanted:
            return f"{found} on {play.stage.name(number)}" if len(said.nodes()) > 1 else found
    return None


def expect_role(play: Play, said: Said) -> Found:
    for number in said.nodes():
        hosted = play.stage.hosted(number, 0)
        found = _role(hosted.replica) if hosted is not None else "down"
        if found != said.word("ROLE"):
            return f"{found} on {play.stage.name(number)}" if len(said.nodes()) > 1 else found
    return None


def _role(replica: Any) -> str:
    """Whoever stands or leads does so, even if it is on its way out; who does not count, learns at most."""
    role = str(replica.role.name)
    if role != "follower" or not hasattr(replica, "membership") or replica.is_voter:
        return role
    nodes = {member.node for member in replica.membership.members}
    return "learner" if replica.me.node in nodes else "outsider"


def expect_epoch(play: Play, said: Said) -> Found:
    return each(play, said, str(said.number("EPOCH")), lambda replica: str(replica.epoch))


def expect_vote(play: Play, said: Said) -> Found:
    stage = play.stage
    vote = stage.up(said.node()).vote
    found = stage.name(vote.node) if vote is not None else "none"
    return None if found == (stage.name(said.node("VOTER")) if "VOTER" in said else "none") else found


def expect_commit(play: Play, said: Said) -> Found:
    teller = play.stage.teller
    wanted = teller.offset(said.number("OFFSET"))
    return each(play, said, wanted, lambda replica: teller.offset(replica.commit))


def expect_applied(play: Play, said: Said) -> Found:
    stage = play.stage
    for number in said.nodes():
        stage.up(number)
        hosted = stage.hosted(number, 0)
        assert hosted is not None
        if hosted.applied.offset != said.number("OFFSET"):
            return f"{stage.teller.offset(hosted.applied.offset)} on {stage.name(number)}"
    return None


def expect_leader(play: Play, said: Said) -> Found:
    """Old leaders may not know yet: whoever leads the highest epoch."""
    stage = play.stage
    leaders = stage.leaders(0)
    newest = max(leaders, key=lambda number: int(stage.up(number).epoch), default=0)
    wanted = said.node() if "NODE" in said else 0
    return None if newest == wanted else (stage.name(newest) if newest else "none")


def expect_snapshot(play: Play, said: Said) -> Found:
    stage = play.stage
    wanted = stage.teller.offset(said.number("OFFSET"))

    def look(replica: Any) -> str:
        return stage.teller.offset(replica.snapshot.last.offset) if replica.snapshot is not None else "none"

    return each(play, said, wanted, look)


def expect_cuts(play: Play, said: Said) -> Found:
    found = play.stage.narrator.cuts[said.node()]
    return None if found == said.number("NUMBER") else str(found)


def expect_at_rest(play: Play, said: Said) -> Found:
    wanted = "rest" in said
    for number in said.nodes():
        if (play.stage.up(number).deadline() is None) is not wanted:
            return f"{play.stage.name(number)} {'waiting for a timer' if wanted else 'at rest'}"
    return None


def expect_answer(play: Play, said: Said) -> Found:
    reply = play.answers[said.word("PROPOSAL")]
    wanted = " ".join(said.words("ANSWER"))
    if reply is None:
        return None if wanted == UNANSWERED else UNANSWERED
    right = wanted == reply.outcome and ("OFFSET" not in said or said.number("OFFSET") == reply.offset)
    return None if right else play.stage.teller.reply(reply)


def expect_reason(play: Play, said: Said) -> Found:
    """Not only what was answered, but why."""
    found = expect_answer(play, said)
    reply = play.answers[said.word("PROPOSAL")]
    if found is not None or reply is None or said.word("TEXT") in reply.why:
        return found
    return play.stage.teller.reply(reply)


def expect_timestamp(play: Play, said: Said) -> Found:
    later, earlier = (play.answers[said.word(place)] for place in ("PROPOSAL", "EARLIER"))
    if later is not None and earlier is not None and later.timestamp > earlier.timestamp > 0:
        return None
    return " and ".join(str(reply.timestamp) if reply is not None else "none" for reply in (later, earlier))


def expect_membership(play: Play, said: Said) -> Found:
    """In force, settled or not, as the replica's own log says."""
    teller = play.stage.teller
    places = (("", "MEMBER"), (" from ", "OUTGOING"), (" learners ", "LEARNER"), (" to be ", "WANTED"))
    wanted = "".join(
        word + " ".join(map(teller.node, sorted(said.nodes(place))))
        for word, place in places
        if place in said
    )
    return each(play, said, wanted, lambda replica: teller.membership(replica.membership))


def expect_visible(play: Play, said: Said) -> Found:
    """What a client can read on a node: settled records, nothing else."""
    found = _records(play, said.node())
    if found == (list(said.words("TEXT")) if "TEXT" in said else []):
        return None
    return " ".join(f'"{value}"' for value in found) or "nothing"


def _records(play: Play, number: int) -> list[str]:
    stage = play.stage
    at = stage.acting(number).log.base.offset + 1
    values: list[str] = []
    while True:
        frames = _read(stage, number, at)
        if not frames:
            return values
        for frame in frames:
            if frame.header.kind == Kind.RECORDS:
                values += [
                    (record.value or b"").decode().rstrip(PADDING) for record in decode_records(frame.payload)
                ]
        at = frames[-1].header.last + 1


def _read(stage: Stage, number: int, offset: int) -> list[Frame]:
    answers: list[list[Frame]] = []
    stage.fetch(number, 0, offset, READ_BYTES, lambda frames, commit, base: answers.append(frames))
    stage.calm()
    return answers[0] if answers else []


def expect_messages(play: Play, said: Said) -> Found:
    stage = play.stage
    ends = (said.node("FROM"), said.node("TO")) if "FROM" in said else (0, 0)
    waiting = stage.letters(*ends)
    wanted = said.words("MESSAGE")
    if wanted == ("none",):
        wanted = ()
    if len(wanted) == len(waiting) and all(map(is_called, waiting, wanted)):
        return None
    return " ".join(map(letter_name, waiting)) or "none"


def expect_message(play: Play, said: Said) -> Found:
    """The message that `deliver` would deliver has these fields: `prev 1-1 and entries 1-2 1-3`."""
    letter = choose(play, said)[0]
    fields = play.stage.teller.fields(content(letter))
    for wanted in " ".join(said.words("FIELD")).split(" and "):
        name = wanted.removeprefix("not ").split(" ")[0]
        found = fields.get(name, f"not {name}")
        if found != wanted and not (name == "entries" and _same_entries(play, wanted, found)):
            return " and ".join(fields.values())
    return None


def _same_entries(play: Play, *texts: str) -> bool:
    """Whether `entries 1-1 1-2` means what was found: a `*` may be left out, a row written in full."""
    origin = play.stage.cast.origin
    try:
        wanted, found = (read_entries([Word(word) for word in text.split()[1:]], origin) for text in texts)
    except Mistake:
        return False
    return admits(wanted, found)


def expect_report(play: Play, said: Said) -> Found:
    reports = [report.what for node, report in play.stage.reports if node == said.node()]
    wanted = said.word("TEXT")
    return None if any(wanted in report for report in reports) else "; ".join(reports) or "none"


def expect_shard(play: Play, said: Said) -> Found:
    """As the metadata store has it."""
    found = play.stage.teller.named(str(play.stage.oversight().store.newest(0) or "nothing"))
    return None if found == said.word("TEXT") else f'"{found}"'


def expect_isr(play: Play, said: Said) -> Found:
    """Who is in sync, as the metadata store has it."""
    return _members(play, said, lambda stored: stored.isr)


def expect_eligible(play: Play, said: Said) -> Found:
    return _members(play, said, lambda stored: stored.elr)


def _members(play: Play, said: Said, of: Callable[[isr.PartitionState], tuple[Member, ...]]) -> Found:
    stored: Any = play.stage.oversight().store.newest(0)
    found = {member.node for member in of(stored)} if isinstance(stored, isr.PartitionState) else set()
    wanted = set(said.nodes("MEMBER")) if "MEMBER" in said else set()
    return None if found == wanted else " ".join(map(play.stage.name, sorted(found))) or "none"


def expect_maximal_isr(play: Play, said: Said) -> Found:
    """For whom a leader waits."""
    stage = play.stage
    role = stage.up(said.node()).role
    found = {member.node for member in getattr(role, "maximal_isr", ())}
    if found == set(said.nodes("MEMBER")):
        return None
    return " ".join(map(stage.name, sorted(found))) or f"none: it is {role.name}"


def expect_trace(play: Play, said: Said) -> Found:
    raise AssertionError("traces are compared by whoever can rewrite them")


Expectation = Callable[[Play, Said], Found]

EXPECTATIONS: dict[str, Expectation] = {
    "expect log NODE... = ENTRIES...": expect_log,
    "expect flushed NODE... = ENTRIES...": expect_flushed,
    "expect role NODE... = ROLE": expect_role,
    "expect leader = NODE": expect_leader,
    "expect no leader": expect_leader,
    "expect epoch NODE... = EPOCH": expect_epoch,
    "expect vote NODE = none": expect_vote,
    "expect vote NODE = VOTER": expect_vote,
    "expect commit NODE... = OFFSET": expect_commit,
    "expect high watermark NODE... = OFFSET": expect_commit,
    "expect applied NODE... = OFFSET": expect_applied,
    "expect snapshot NODE... = OFFSET": expect_snapshot,
    "expect cuts NODE = NUMBER": expect_cuts,
    "expect at rest NODE...": expect_at_rest,
    "expect awake NODE...": expect_at_rest,
    "expect answer PROPOSAL = ANSWER... at OFFSET": expect_answer,
    "expect answer PROPOSAL = ANSWER... because TEXT": expect_reason,
    "expect answer PROPOSAL = ANSWER...": expect_answer,
    "expect timestamp PROPOSAL after EARLIER": expect_timestamp,
    "expect membership NODE... = MEMBER... [from OUTGOING...] [learners LEARNER...] [to be WANTED...]": (
        expect_membership
    ),
    "expect visible NODE = nothing": expect_visible,
    "expect visible NODE = TEXT...": expect_visible,
    "expect messages = MESSAGE...": expect_messages,
    "expect messages FROM -> TO = MESSAGE...": expect_messages,
    "expect message [last] MESSAGE FROM -> TO has FIELD...": expect_message,
    "expect report NODE TEXT": expect_report,
    "expect shard = TEXT": expect_shard,
    "expect isr = MEMBER...": expect_isr,
    "expect eligible = none": expect_eligible,
    "expect eligible = MEMBER...": expect_eligible,
    "expect maximal isr NODE = MEMBER...": expect_maximal_isr,
    EXPECT_TRACE: expect_trace,
}
