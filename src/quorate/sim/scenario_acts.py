"""Commands: what a line of a scenario does to its world."""

from __future__ import annotations

from collections.abc import Callable

from quorate.batch import encode_records
from quorate.core.effects import Reply
from quorate.core.entry import Quorums
from quorate.core.events import ReadLevel
from quorate.sim.scenario_notes import PADDING
from quorate.sim.scenario_orders import wanted
from quorate.sim.scenario_script import ANYBODY, Said
from quorate.sim.scenario_send import send
from quorate.sim.scenario_stage import Refused, Stage, letter_name
from quorate.sim.world import Letter

ELECTIONS_MAX = 3
"""A node that missed an epoch hears of it in its first election, and wins a later one."""


class Play:
    """A scenario while it runs."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.answers: dict[str, Reply | None] = {}


# ---- leaders ----


def elect(play: Play, said: Said) -> None:
    """Let a node's time-out pass; those named miss their leader too, hear and answer it, until it leads."""
    stage, number = play.stage, said.node()
    _replicas_elect(stage)
    voters = set(said.nodes("VOTER")) if "VOTER" in said else set(stage.nodes)
    _not_leading(stage, number)
    stage.miss_leader(number)
    for _ in range(ELECTIONS_MAX):
        before = _stand(stage, number)
        _hold_election(stage, number, voters, stage.cast.room.elections, before)
        if stage.up(number).role.name == "leader":
            return
    raise Refused(f"{stage.name(number)} does not lead: {_state(stage, number)}")


def campaign(play: Play, said: Said) -> None:
    """Let a node's time-out pass once; with voters, who miss their leader too, until it asks for their votes."""
    stage, number = play.stage, said.node()
    _replicas_elect(stage)
    _not_leading(stage, number)
    before = _stand(stage, number)
    if "VOTER" in said:
        _hold_election(stage, number, set(said.nodes("VOTER")), stage.cast.room.inquiries, before)


def miss_leader(play: Play, said: Said) -> None:
    _replicas_elect(play.stage)
    for number in said.nodes():
        play.stage.miss_leader(number)


def _replicas_elect(stage: Stage) -> None:
    room = stage.cast.room
    if not room.elections:
        raise Refused(f"in {room.name} {room.overseers} choose leaders: tell one that the leader is gone")


def _not_leading(stage: Stage, number: int) -> None:
    replica = stage.acting(number)
    if replica.role.name == "leader":
        raise Refused(f"{stage.name(number)} leads epoch {replica.epoch} already")


def _stand(stage: Stage, number: int) -> int:
    """Returns the number of the last message before those of this election."""
    replica = stage.acting(number)
    epoch, before = replica.epoch, stage.messages_count
    if replica.deadline() is None:
        raise Refused(f"{stage.name(number)} is at rest: it suspects nobody")
    stage.wake(number)
    if replica.role.name == "follower" and replica.epoch == epoch:
        raise Refused(f"{stage.name(number)} does not stand for election: {_state(stage, number)}")
    return before


def _hold_election(
    stage: Stage, number: int, voters: set[int], messages: frozenset[str], before: int
) -> None:
    """These messages arrive between the candidate and those voters, as far as they are of this election; those to
    others are lost."""
    while True:
        letters = [
            letter
            for letter in stage.letters(ANYBODY, ANYBODY)
            if number in (letter.source, letter.target)
            and letter_name(letter) in messages
            and letter.number > before
        ]
        if not letters:
            return
        letter = letters[0]
        other = letter.target if letter.source == number else letter.source
        if other not in voters:
            stage.lose(letter)
        elif stage.hosted(letter.target, 0) is None:
            raise Refused(f"{stage.name(letter.target)} is down")
        else:
            if letter.target != number:
                stage.miss_leader(letter.target)
            stage.hand_over(letter)


def _state(stage: Stage, number: int) -> str:
    described = stage.up(number).describe()
    return str(described.partition(" ")[2])


def appoint(play: Play, said: Said) -> None:
    room = play.stage.cast.room
    _replicas_elect(play.stage)
    raise Refused(f"in {room.name} replicas elect their leaders: elect {play.stage.name(said.node())}")


# ---- clients ----


def propose(play: Play, said: Said) -> None:
    """One entry with a record per text; without one, the proposal's name is its only record."""
    name = said.word("NAME")
    texts = said.words("TEXT") if "TEXT" in said else (name,)
    _propose(play, said.node(), name, [text.encode() for text in texts])


def propose_bytes(play: Play, said: Said) -> None:
    name = said.word("NAME")
    _propose(play, said.node(), name, [name.ljust(said.number("NUMBER"), PADDING).encode()])


def _propose(play: Play, number: int, name: str, values: list[bytes]) -> None:
    payload = encode_records([(None, value) for value in values])
    answer = ask(play, number, name)
    play.stage.propose(number, 0, [payload], answer)
    play.stage.calm()


def ask(play: Play, number: int, name: str) -> Callable[[Reply], None]:
    """Somebody asks something of a node, and waits."""
    stage = play.stage
    stage.acting(number)
    play.answers[name] = None
    stage.narrator.say(f"{name} -> {stage.name(number)}")

    def answer(reply: Reply) -> None:
        if play.answers[name] is not None:
            raise Refused(f"{name} was answered twice")
        play.answers[name] = reply
        stage.narrator.say(f"{stage.name(number)} -> {name} {stage.teller.reply(reply)}")

    return answer


def read(play: Play, said: Said) -> None:
    """Ask a node up to where one may read there."""
    level = next((level for level in (ReadLevel.LINEARIZABLE, ReadLevel.LEASE) if level in said), None)
    offset = said.number("OFFSET") if level is None else -1
    answer = ask(play, said.node(), said.word("NAME"))
    play.stage.read(said.node(), 0, level or ReadLevel.AT_OFFSET, answer, offset)
    play.stage.calm()


# ---- commands ----


def change(play: Play, said: Said) -> None:
    """Command a node to change who counts. A node that was wiped is meant as it is now."""
    stage = play.stage
    ensemble = tuple(map(stage.member, said.nodes("MEMBER")))
    learners = tuple(map(stage.member, said.nodes("LEARNER"))) if "LEARNER" in said else ()
    quorums = Quorums(said.number("COMMIT"), said.number("PROMOTE")) if "COMMIT" in said else None
    answer = ask(play, said.node(), said.word("NAME"))
    stage.change(said.node(), 0, answer, ensemble=ensemble, learners=learners, quorums=quorums)
    stage.calm()


def transfer(play: Play, said: Said) -> None:
    """Command a node to let another one lead."""
    answer = ask(play, said.node(), said.word("NAME"))
    play.stage.transfer(said.node(), 0, answer, to=said.node("HEIR"))
    play.stage.calm()


def tell_gone(play: Play, said: Said) -> None:
    """Whoever knows tells operators that a node is gone, or does not lead though it should."""
    for number in said.nodes("OPERATOR"):
        play.stage.acting(number)
        play.stage.narrator.say(
            f"{play.stage.name(number)} hears that {play.stage.name(said.node())} is gone"
        )
        play.stage.oversight().suspect(number, 0, said.node())
    play.stage.calm()


def order(play: Play, said: Said) -> None:
    """Order something of an operator, or of a controller."""
    stage, number = play.stage, said.node("OPERATOR")
    oversight = stage.oversight()
    answer = ask(play, number, said.word("NAME"))
    oversight.command(number, 0, wanted(stage, said, len(play.answers)), answer)
    stage.calm()


def hold_store(play: Play, _: Said) -> None:
    play.stage.oversight().store.is_held = True


def release_store(play: Play, _: Said) -> None:
    play.stage.oversight().store.release()
    play.stage.calm()


# ---- messages ----


def choose(play: Play, said: Said) -> list[Letter]:
    """The waiting messages that a line means; never none."""
    stage = play.stage
    source, target = said.node("FROM"), said.node("TO")
    called = said.word("MESSAGE") if "MESSAGE" in said else None
    letters = stage.letters(source, target, called)
    if "all" in said:
        return letters
    if not letters:
        waiting = " ".join(map(letter_name, stage.letters(source, target))) or "nothing"
        raise Refused(f"no {called or 'message'} waits on {_link(stage, said)}; waiting there: {waiting}")
    kinds = sorted({letter_name(letter) for letter in letters})
    if called is not None and len(kinds) > 1:
        raise Refused(f"{called} may be {' or '.join(kinds)} there: write the whole name")
    return letters[-1:] if "last" in said else letters[:1]


def _link(stage: Stage, said: Said) -> str:
    ends = (said.node("FROM"), said.node("TO"))
    return " -> ".join(stage.name(end) if end else "*" for end in ends)


def deliver(play: Play, said: Said) -> None:
    for letter in choose(play, said):
        play.stage.hand_over(letter)


def deliver_all(play: Play, _: Said) -> None:
    """One round: what waits now, not what comes of it."""
    for letter in play.stage.letters(ANYBODY, ANYBODY):
        play.stage.hand_over(letter)


def drop(play: Play, said: Said) -> None:
    for letter in choose(play, said):
        play.stage.lose(letter)


def drop_all(play: Play, _: Said) -> None:
    for letter in play.stage.letters(ANYBODY, ANYBODY):
        play.stage.lose(letter)


def duplicate(play: Play, said: Said) -> None:
    for letter in choose(play, said):
        play.stage.duplicate(letter.number)


def send_by_hand(play: Play, said: Said) -> None:
    called, fields = said.word("MESSAGE"), said.words("FIELD")
    send(play.stage, said.node("FROM"), said.node("TO"), called, fields)


def reorder(play: Play, said: Said) -> None:
    play.stage.reorder(said.node("FROM"), said.node("TO"), said.numbers("NUMBER"))


def settle(play: Play, said: Said) -> None:
    play.stage.flow(said.nodes("WHO") if "WHO" in said else play.stage.setup.everybody)


def cut(play: Play, said: Said) -> None:
    stage = play.stage
    links = [(said.node("FROM"), said.node("TO"))]
    if "<->" in said:
        links.append((said.node("TO"), said.node("FROM")))
    links = [
        (source, target)
        for source, target in stage.network.links
        if any(one in (ANYBODY, source) and other in (ANYBODY, target) for one, other in links)
        and (source, target) not in stage.broken
    ]
    stage.note(0, "partitioned", " ".join(f"n{source}>n{target}" for source, target in links))
    stage.broken.update(links)
    stage.network.cut(links)


def trace_from_here(play: Play, _: Said) -> None:
    play.stage.narrator.take()


def heal(play: Play, _: Said) -> None:
    play.stage.note(0, "healed", "everything")
    play.stage.network.mend(sorted(play.stage.broken))
    play.stage.broken.clear()


# ---- time ----


def wake(play: Play, said: Said) -> None:
    play.stage.wake(said.node("WHO"))


def set_clock(play: Play, said: Said) -> None:
    for number in said.nodes():
        play.stage.set_wall(number, said.seconds())


def run(play: Play, said: Said) -> None:
    play.stage.pass_time(said.seconds())


# ---- disks ----


def hold_flushes(play: Play, said: Said) -> None:
    for number in said.nodes():
        play.stage.acting(number)
        play.stage.holding.add(number)


def flush(play: Play, said: Said) -> None:
    play.stage.flush(said.node())


def release_flushes(play: Play, said: Said) -> None:
    for number in said.nodes():
        play.stage.holding.discard(number)
        play.stage.let_go(number)


def fail_flush(play: Play, said: Said) -> None:
    play.stage.nodes[said.node()].disk.fail_next_flush()


def fill_disk(play: Play, said: Said) -> None:
    play.stage.nodes[said.node()].disk.set_full(True)


def free_disk(play: Play, said: Said) -> None:
    play.stage.nodes[said.node()].disk.set_full(False)


def damage(play: Play, said: Said) -> None:
    play.stage.narrator.say(f"{play.stage.name(said.node())}'s disk decays")
    play.stage.damage(said.node(), said.number("OFFSET"))


def check(play: Play, said: Said) -> None:
    play.stage.scrub(said.node())


# ---- processes ----


def crash(play: Play, said: Said) -> None:
    for number in said.nodes("WHO"):
        play.stage.narrator.say(f"{play.stage.name(number)} crashes")
        play.stage.end(number, losing="losing" in said)


def power_loss(play: Play, said: Said) -> None:
    """Chance decides about every write that was not flushed: `seed` chooses another."""
    for number in said.nodes():
        play.stage.up(number)
        play.stage.narrator.say(f"{play.stage.name(number)} loses its power")
        play.stage.power_loss(number)
        play.stage.forget(number)


def restart(play: Play, said: Said) -> None:
    stage = play.stage
    for number in said.nodes("WHO"):
        if stage.is_up(number):
            stage.end(number, losing=False)
        if number in stage.nodes:
            stage.start(number)
        else:
            stage.oversight().start(number)
    stage.calm()


def wipe(play: Play, said: Said) -> None:
    """The node goes down and its disk is empty: whatever restarts there is another incarnation."""
    stage = play.stage
    for number in said.nodes():
        stage.narrator.say(f"{stage.name(number)} is wiped")
        stage.wipe(number)
        stage.forget(number)
        stage.account.wiped(number)


def pause(play: Play, said: Said) -> None:
    for number in said.nodes("WHO"):
        play.stage.pause_process(number)


def resume(play: Play, said: Said) -> None:
    for number in said.nodes("WHO"):
        play.stage.resume_process(number)


Act = Callable[[Play, Said], None]

ACTS: dict[str, Act] = {
    "elect NODE [with VOTER...]": elect,
    "campaign NODE [with VOTER...]": campaign,
    "miss leader NODE...": miss_leader,
    "appoint NODE": appoint,
    "propose NODE [TEXT...] as NAME": propose,
    "propose NODE NUMBER bytes as NAME": propose_bytes,
    "read NODE linearizable|lease as NAME": read,
    "read NODE offset OFFSET as NAME": read,
    "change NODE to MEMBER... [learners LEARNER...] [quorums COMMIT PROMOTE] as NAME": change,
    "transfer NODE to HEIR as NAME": transfer,
    "tell OPERATOR... that NODE is gone": tell_gone,
    "order OPERATOR swap OLD for NEW as NAME": order,
    "order OPERATOR add NEW as NAME": order,
    "order OPERATOR remove OLD as NAME": order,
    "order OPERATOR call off as NAME": order,
    "order OPERATOR move leader [to HEIR] as NAME": order,
    "order OPERATOR elect HEIR uncleanly as NAME": order,
    "hold store": hold_store,
    "release store": release_store,
    "deliver all": deliver_all,
    "deliver all [MESSAGE] FROM -> TO": deliver,
    "deliver [last] [MESSAGE] FROM -> TO": deliver,
    "drop all": drop_all,
    "drop all [MESSAGE] FROM -> TO": drop,
    "drop [last] [MESSAGE] FROM -> TO": drop,
    "duplicate [last] [MESSAGE] FROM -> TO": duplicate,
    "reorder FROM -> TO = NUMBER...": reorder,
    "send MESSAGE FROM -> TO with FIELD...": send_by_hand,
    "settle [WHO...]": settle,
    "cut FROM ->|<-> TO": cut,
    "heal": heal,
    "wake WHO": wake,
    "run TIME": run,
    "clock NODE... = TIME": set_clock,
    "hold flushes NODE...": hold_flushes,
    "flush NODE": flush,
    "release flushes NODE...": release_flushes,
    "fail flush NODE": fail_flush,
    "fill disk NODE": fill_disk,
    "free disk NODE": free_disk,
    "damage NODE offset OFFSET": damage,
    "check NODE": check,
    "crash WHO... [losing unflushed]": crash,
    "power-loss NODE...": power_loss,
    "restart WHO...": restart,
    "wipe NODE...": wipe,
    "pause WHO...": pause,
    "trace from here": trace_from_here,
    "resume WHO...": resume,
}
