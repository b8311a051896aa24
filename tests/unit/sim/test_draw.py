"""The story diagram: whatever happens in a world, the picture is valid, says it, and stays the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import msgspec
import pytest

from quorate.sim.draw import draw
from quorate.sim.draw_lanes import looks
from quorate.sim.draw_links import deafness
from quorate.sim.draw_moments import Sort, State, plain, sort_of, state_of
from quorate.sim.draw_sheet import Sheet
from quorate.sim.draw_story import choose_partition, tell
from quorate.sim.happening import Happening

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"


class Teller:
    """Makes up the story of a small raft group, from a script rather than from a protocol."""

    def __init__(self, seed: int = 1, nodes: int = 3, partition: int = 0) -> None:
        self.random = Random(seed)
        self.nodes = range(1, nodes + 1)
        self.partition = partition
        self.now = 0.0
        self.numbers = 0
        self.happenings: list[Happening] = []
        self.roles = dict.fromkeys(self.nodes, "follower")
        self.epochs = dict.fromkeys(self.nodes, 1)
        self.heads = dict.fromkeys(self.nodes, -1)
        self.commits = dict.fromkeys(self.nodes, -1)
        self.down: dict[int, bool] = {}

    def state(self, node: int) -> str:
        head = self.heads[node]
        log = f"0..{head}" if head >= 0 else "empty"
        return f"n{node} {self.roles[node]} e{self.epochs[node]} log {log} commit {self.commits[node]}"

    def tell(self, node: int, what: str, text: str = "", *, message: int = 0, peer: int = 0) -> None:
        state = self.state(node) if node and not self.down.get(node) else ""
        partition = self.partition if state else -1
        self.happenings.append(Happening(self.now, node, what, partition, text, message, peer, state))

    def wait(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)

    def send(self, node: int, peer: int, text: str) -> int:
        self.numbers += 1
        self.tell(node, "sent", text, message=self.numbers, peer=peer)
        return self.numbers

    def receive(self, node: int, peer: int, text: str, message: int) -> None:
        self.wait(self.random.uniform(0.0004, 0.002))
        self.tell(node, "received", text, message=message, peer=peer)

    def lose(self, node: int, peer: int, text: str, message: int) -> None:
        self.tell(node, "lost", text, message=message, peer=peer)

    def peers(self, node: int) -> list[int]:
        return [peer for peer in self.nodes if peer != node]

    def elect(self, node: int, *, deaf: tuple[int, ...] = ()) -> None:
        epoch = max(self.epochs.values()) + 1
        self.wait(self.random.uniform(0.15, 0.3))
        self.roles[node], self.epochs[node] = "candidate", epoch
        self.tell(node, "woke", f"-> save ballot epoch {epoch} (order 1)")
        text = f"vote-request epoch {epoch} last {epoch - 1}-{self.heads[node]}"
        asked = {peer: self.send(node, peer, text) for peer in self.peers(node)}
        for peer, message in asked.items():
            if peer in deaf or self.down.get(peer):
                self.lose(node, peer, text, message)
                continue
            self.roles[peer], self.epochs[peer] = "follower", epoch
            self.receive(peer, node, text, message)
            self.wait(0.0007)
            self.tell(peer, "flushed", "vote")
            answer = self.send(peer, node, f"vote-response epoch {epoch} granted yes")
            if self.roles[node] == "candidate":
                self.roles[node] = "leader"
                self.heads[node] += 1
            self.receive(node, peer, f"vote-response epoch {epoch} granted yes", answer)
        self.replicate(node, deaf=deaf)

    def replicate(self, leader: int, *, deaf: tuple[int, ...] = ()) -> None:
        head, epoch = self.heads[leader], self.epochs[leader]
        text = f"append-entries epoch {epoch} prev {epoch}-{head - 1} commit {self.commits[leader]}"
        text += f" headers {epoch}-{head} 120B +1 frames"
        sent = {peer: self.send(leader, peer, text) for peer in self.peers(leader)}
        for peer, message in sent.items():
            if peer in deaf or self.down.get(peer):
                self.lose(leader, peer, text, message)
                continue
            if self.heads[peer] > head - 1:
                self.heads[peer] = head - 1
            self.heads[peer] = head
            self.epochs[peer] = epoch
            self.roles[peer] = "follower"
            self.receive(peer, leader, text, message)
            self.wait(0.0011)
            self.tell(peer, "flushed", f"order {head}")
            answer = self.send(peer, leader, f"append-response epoch {epoch} accepted yes matched {head}")
            self.commits[leader] = head
            self.receive(leader, peer, f"append-response epoch {epoch} accepted yes matched {head}", answer)

    def write(self, leader: int, *, deaf: tuple[int, ...] = ()) -> None:
        self.wait(self.random.uniform(0.002, 0.02))
        self.heads[leader] += 1
        self.tell(leader, "proposed", f"request {self.heads[leader] * 7}: 1x120B <a & b>")
        self.replicate(leader, deaf=deaf)
        if self.commits[leader] == self.heads[leader]:
            self.tell(
                leader, "answered", f"request {self.heads[leader] * 7}: settled at {self.heads[leader]}"
            )

    def beat(self, leader: int, times: int) -> None:
        for _ in range(times):
            self.wait(0.03)
            text = f"append-entries epoch {self.epochs[leader]} commit {self.commits[leader]}"
            sent = {peer: self.send(leader, peer, text) for peer in self.peers(leader)}
            for peer, message in sent.items():
                if not self.down.get(peer):
                    self.commits[peer] = min(self.commits[leader], self.heads[peer])
                    self.receive(peer, leader, text, message)

    def fault(self, node: int, what: str, text: str = "", *, peer: int = 0) -> None:
        self.wait(0.004)
        if what in ("crashed", "power lost"):
            self.down[node] = True
        if what == "restarted":
            self.down[node] = False
            self.roles[node] = "follower"
        self.tell(node, what, text, peer=peer)


def short_story() -> list[Happening]:
    """Every fault once, and a violation at the end."""
    teller = Teller()
    teller.elect(1)
    teller.write(1)
    teller.beat(1, 6)
    teller.fault(0, "partitioned", "n1>n2 n2>n1 n1>n3 n3>n1")
    teller.write(1, deaf=(2, 3))
    teller.elect(3, deaf=(1,))
    teller.write(3, deaf=(1,))
    teller.fault(0, "healed", "n1>n2 n2>n1 n1>n3 n3>n1")
    teller.heads[1] -= 1
    teller.write(3)
    teller.fault(2, "crashed")
    teller.write(3)
    teller.fault(2, "restarted")
    teller.fault(1, "paused", "for 0.020s")
    teller.write(3, deaf=(1,))
    teller.fault(1, "damaged", "partitions/0.log at 1234")
    teller.fault(1, "disk filled")
    teller.fault(3, "power lost")
    teller.elect(2, deaf=(3,))
    teller.heads[3] = 2
    teller.fault(3, "wiped")
    teller.fault(3, "restarted")
    teller.roles[3] = "learner"
    teller.write(2)
    teller.wait(0.001)
    teller.tell(0, "violated", "settled-minority: p0 n3 settled 4-6, flushed on: n2")
    return teller.happenings


def long_story(writes: int = 400) -> list[Happening]:
    """An election, an age of writing, a crash in the middle of it, and a violation."""
    teller = Teller(seed=2, nodes=5)
    teller.elect(4)
    for number in range(writes):
        teller.write(4)
        if number == writes // 2:
            teller.fault(2, "crashed")
            teller.fault(2, "restarted")
    teller.tell(1, "violated", "durable-lost")
    return teller.happenings


def parse(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture.encode())


def texts(picture: str) -> list[str]:
    return ["".join(found.itertext()) for found in parse(picture).iter(f"{SVG}text")]


def tips(picture: str) -> list[str]:
    return ["".join(found.itertext()) for found in parse(picture).iter(f"{SVG}title")]


def says(picture: str, words: str) -> bool:
    return words in re.sub(r"\s+", " ", " ".join(texts(picture)))


# ---- the picture ----


def test_a_story_with_every_fault_is_valid_and_explains_itself() -> None:
    picture = draw(short_story(), title="raft, seed 7", subtitle="a & b", violation="offset 6 is gone")
    assert parse(picture).tag == f"{SVG}svg"
    for words in (
        "raft, seed 7",
        "a & b · partition 0",
        "How to read this",
        "epoch 3",
        "n2 crashed",
        "n2 restarted",
        "n1 paused",
        "n3 wiped",
        "power lost",
        "cut off from n2 n3",
        "became leader in epoch 3",
        "heartbeats",
        "disk filled",
        "How they stood at the end",
        "VIOLATION",
        "offset 6 is gone",
    ):
        assert says(picture, words), words


def test_nothing_outside_the_file_is_referred_to() -> None:
    picture = draw(short_story(), title="t", violation="v").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in picture
    assert "href" not in picture
    assert "@import" not in picture


def test_an_empty_story_is_a_picture_too() -> None:
    assert says(draw([], title="nothing"), "nothing")
    assert says(draw([], title="nothing", violation=""), "VIOLATION")


def test_texts_are_escaped_and_what_xml_cannot_carry_is_replaced() -> None:
    evil = "<script>&\"' \x00\x1b \ud800 ]]> \ufffe"
    story = [
        Happening(0.0, 1, "sent", 0, evil, 1, 2, evil),
        Happening(0.1, 2, "received", 0, evil, 1, 1, evil),
        Happening(0.2, 1, evil, 0, evil),
    ]
    picture = draw(story, title=evil, subtitle=evil, violation=evil)
    assert says(picture, "<script>&\"' \ufffd\ufffd")
    assert not list(parse(picture).iter(f"{SVG}script"))


def test_the_same_story_gives_the_same_bytes_whatever_the_hash_seed() -> None:
    program = (
        "import hashlib; from quorate.sim.draw import draw; from tests.unit.sim.test_draw import short_story;"
        "print(hashlib.sha256(draw(short_story(), title='t', violation='v').encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_no_two_labels_overlap() -> None:
    """Words on one line keep off each other, as far as their width can be told without a font."""
    picture = draw(short_story(), title="t")
    lines: dict[float, list[tuple[float, float, str]]] = {}
    for found in parse(picture).iter(f"{SVG}text"):
        text = "".join(found.itertext())
        x, y, style = float(found.attrib["x"]), float(found.attrib["y"]), found.attrib["class"].split()
        wide = 5.5 * len(text)
        left = x - wide if "end" in style else x - wide / 2 if "middle" in style else x
        lines.setdefault(y, []).append((left, left + wide, text))
    for line in lines.values():
        line.sort()
        for (_, end, text), (start, _, after) in pairwise(line):
            assert end <= start + 8, (text, after)


def test_a_violation_is_explained_by_whoever_checks_it() -> None:
    picture = draw(short_story(), title="t", violation="settled-minority: p0 n3 settled 4-6")
    assert says(picture, "What is checked: settled-minority: what is settled is flushed on a majority of")


def test_a_pause_ends_when_it_said_it_would() -> None:
    happenings = [
        Happening(0.0, 1, "woke", 0, state="n1 follower e1 log 0..3 commit 3"),
        Happening(0.1, 1, "paused", text="for 0.250s"),
        Happening(0.2, 2, "woke", 0, state="n2 candidate e2 log 0..3 commit 3"),
        Happening(0.4, 2, "woke", 0, state="n2 candidate e3 log 0..3 commit 3"),
    ]
    found = looks(Sheet(tell(happenings)), 1)
    assert [(place, look.condition) for place, look in found] == [
        (-1, "up"),
        (0, "up"),
        (1, "paused"),
        (2.5, "up"),
    ]


def test_a_link_cut_twice_is_healed_twice_or_with_everything() -> None:
    texts_in_order = ("n1>n2", "n1>n2 n2>n1", "n1>n2", "n1>n2 n2>n1", "n1>n2", "everything")
    verbs = ("partitioned", "partitioned", "healed", "healed", "partitioned", "healed")
    lanes = [Happening(0.0, node, "woke", 0) for node in (1, 2)]
    told = [
        Happening(1.0 + number, 0, verb, text=text)
        for number, (verb, text) in enumerate(zip(verbs, texts_in_order, strict=True))
    ]
    found = deafness(Sheet(tell(lanes + told)), 1)
    assert found == [(-1, ()), (2, (2,)), (5, ()), (6, (2,)), (7, ())]


# ---- messages ----


def two_ends(*more: Happening) -> str:
    sent = Happening(0.0, 1, "sent", 0, "vote? 3", 7, 2, "n1 candidate e3 log empty commit -1")
    return draw([sent, *more], title="t")


def test_an_arrow_joins_both_ends_of_a_message() -> None:
    picture = two_ends(Happening(0.1, 2, "received", 0, "vote? 3", 7, 1, "n2 follower e3 log 0..4 commit 2"))
    assert "n1 → n2: vote? 3 (#7), received" in tips(picture)


def test_a_lost_message_is_drawn_as_lost_and_said_to_be() -> None:
    picture = two_ends(Happening(0.1, 1, "lost", 0, "vote? 3", 7, 2))
    assert "n1 → n2: vote? 3 (#7), lost on the way" in tips(picture)
    assert says(picture, "sent vote? 3 → n2 (lost)")


def test_a_doubled_message_arrives_twice() -> None:
    arrival = Happening(0.1, 2, "received", 0, "vote? 3", 7, 1)
    picture = two_ends(arrival, msgspec.structs.replace(arrival, at=0.2))
    assert tips(picture).count("n1 → n2: vote? 3 (#7), received") == 2


def test_a_message_still_on_its_way_is_drawn() -> None:
    assert "n1 → n2: vote? 3 (#7), still on its way" in tips(two_ends())


def test_a_message_sent_before_the_story_is_drawn_from_above() -> None:
    received = Happening(0.1, 2, "received", 0, "vote? 3", 9, 1)
    assert "n1 → n2: vote? 3 (#9), received" in tips(draw([received], title="t"))


# ---- what is told ----


def test_a_long_story_keeps_its_end_and_the_turns_before_it() -> None:
    happenings = long_story()
    story = tell(happenings, violation="v", rows_max=60)
    assert len(story.rows) <= 60
    assert story.rows[0].first == 0
    assert story.rows[-1].last == len(story.moments) - 1
    for row, following in pairwise(story.rows):
        assert following.first == row.last + 1
    shown = [story.moments[row.first] for row in story.rows if not row.gap]
    assert any(moment.has(Sort.CRASHED) for moment in shown)
    picture = draw(happenings, title="t", violation="v")
    assert says(picture, "happenings left out")
    assert len(picture) < 400_000


def test_heartbeats_collapse_into_one_row_with_their_count() -> None:
    teller = Teller()
    teller.elect(1)
    teller.beat(1, 2)
    before = len(tell(teller.happenings).rows)
    teller.beat(1, 200)
    story = tell(teller.happenings)
    assert len(story.rows) <= before + 1
    assert sum(row.quiet for row in story.rows) == 1
    assert says(draw(teller.happenings, title="t"), "heartbeats and the answers; nothing changed")


def test_the_partition_is_the_given_or_the_violated_or_the_busiest() -> None:
    busy = [Happening(0.1 * number, 1, "woke", 3) for number in range(5)]
    other = [Happening(1.0, 2, "woke", 1)]
    assert choose_partition(busy + other, None) == 3
    assert choose_partition(busy + other, "p1: two leaders") == 1
    assert choose_partition([*busy, Happening(2.0, 2, "violated", 1)], "two leaders") == 1
    assert choose_partition([], None) == -1
    picture = draw(busy + other, title="t", partition=1)
    assert says(picture, "partition 1")
    assert says(picture, "5 happenings of other partitions are not drawn")


def test_only_nodes_that_hold_the_partition_get_a_lane() -> None:
    here = [Happening(0.0, 1, "sent", 0, "x", 1, 2), Happening(0.1, 2, "received", 0, "x", 1, 1)]
    assert tell([*here, Happening(0.2, 5, "crashed")]).nodes == (1, 2)


def test_a_step_is_one_moment_with_its_cause_and_effects() -> None:
    story = tell(
        [
            Happening(0.1, 2, "received", 0, "vote? 3", 7, 1, "n2 follower e3 log empty commit -1"),
            Happening(0.1, 2, "sent", 0, "vote 3", 8, 1),
            Happening(0.1, 2, "received", 0, "vote? 4", 9, 1),
        ]
    )
    assert [len(moment.happenings) for moment in story.moments] == [2, 1]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("n2 leader e7 log 3..19 commit 17", State("leader", 7, 3, 19, 17)),
        ("n2 follower e7 log empty commit none quiet", State("follower", 7, 0, -1, -1)),
        (
            "operator e4 v9 tending {n1,n2} led by n1, add n3 (prepare)",
            State("operator", 4, notes="tending {n1,n2} led by n1, add n3 (prepare)"),
        ),
        ("n2 learner e7 log empty after 3-17 commit 17", State("learner", 7, 18, 17, 17)),
        (
            "n1 follower e2 log 0..9 faulty 4..5 commit 3 owes 2-11",
            State("follower", 2, 0, 9, 3, "faulty 4..5 owes 2-11"),
        ),
        ("something else", State("something")),
        ("", State()),
    ],
)
def test_a_replicas_line_is_taken_apart(line: str, state: State) -> None:
    assert state_of(line) == state


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("append-response epoch 13 accepted yes probe 3", "append-response epoch 13 accepted yes probe 3"),
        ("append-response epoch 13 probe 3", "append-response refused epoch 13 probe 3"),
        ("vote-response epoch 7", "vote-response refused epoch 7"),
        ("vote-response epoch 7 granted yes", "vote-response epoch 7 granted yes"),
        ("snapshot-response epoch 7 at 3", "snapshot-response epoch 7 at 3"),
        ("gone-response epoch 4 asked 29 gone yes", "gone-response epoch 4 asked 29 gone yes"),
        ("gone-response epoch 4 asked 29", "gone-response refused epoch 4 asked 29"),
        ("chunk-response epoch 2 snapshot up to 1-1 at 0", "chunk-response epoch 2 snapshot up to 1-1 at 0"),
        ("fetch-response epoch 1 session 5 number 1", "fetch-response epoch 1 session 5 number 1"),
    ],
)
def test_a_refusal_is_named_and_an_answer_without_a_yes_is_none(text: str, told: str) -> None:
    assert plain(Happening(0, 1, "sent", 0, text)) == told


def test_what_happens_again_and_again_does_not_push_out_the_rest() -> None:
    failing = [
        happening
        for number in range(500)
        for happening in (
            Happening(1.0 + number, 2, "failed", 0, "disk full", state="n2 follower e1 log 0..3 commit 3"),
            Happening(1.5 + number, 2, "flushed", 0, "", state=f"n2 follower e1 log 0..4 commit {number}"),
        )
    ]
    story = tell([Happening(0.5, 1, "crashed"), Happening(0.6, 1, "woke", 0), *failing], rows_max=40)
    shown = [story.moments[row.first] for row in story.rows if not row.gap]
    assert shown[0].has(Sort.CRASHED)


@pytest.mark.parametrize(
    ("happening", "sort"),
    [
        (Happening(0, 1, "cut", peer=2), Sort.LINK_CUT),
        (Happening(0, 0, "partitioned", text="1>2 2>1"), Sort.LINK_CUT),
        (Happening(0, 1, "cut", text="log to 3-4"), Sort.PLAIN),
        (Happening(0, 1, "lost power"), Sort.POWER_LOST),
        (Happening(0, 1, "Crashed"), Sort.CRASHED),
        (Happening(0, 1, "pondered"), Sort.PLAIN),
    ],
)
def test_happenings_are_sorted_by_their_verbs(happening: Happening, sort: Sort) -> None:
    assert sort_of(happening) is sort
