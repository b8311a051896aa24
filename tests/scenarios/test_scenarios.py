"""Every scenario file, and every example of docs/SCENARIOS.md, runs and ends as it says.

With --rewrite, expected traces are written anew, for a person to read the diff.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.sim.mutate import describe, names, planted
from quorate.sim.scenario import PATTERNS, run_scenario, run_text
from quorate.sim.scenario_script import EXPECT_ERROR, GIVEN
from quorate.sim.scenario_words import Form, split, understand

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DOCUMENT = ROOT / "docs" / "SCENARIOS.md"
FILES = sorted(HERE.rglob("*.txt"))
RARE = HERE / "mutants"
"""Patches with bugs that chance would hardly ever show: a story does."""
FENCE = "```"


def name_of(path: Path) -> str:
    return path.relative_to(HERE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_scenario(path: Path, rewrite: bool) -> None:
    result = run_scenario(path, rewrite=rewrite)
    assert not result.problems, "\n" + "\n".join(result.lines())
    assert result.expectations_count, "a scenario that expects nothing proves nothing"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_scenario_tells_its_story_and_names_what_it_proves(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    story = text.split("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in story), "a file begins with a comment that tells its story"
    assert len(story) >= 3
    assert re.match(r"# (behaviour|rule): \S", story[-1]), "and ends with `# behaviour: …` (or `# rule: …`)"


WARNINGS: dict[str, dict[str, str]] = {
    "confirm-ack-races-rollback": {
        "an-acknowledgement-races-a-rollback": "expected answer w2 = none, found settled at 2"
    },
    "confirm-async-overtakes": {
        "asynchronous-ones-wait-behind": "async-overtakes is broken: R1 answered 3 early"
    },
    "confirm-aye-unheard": {"a-nominee-that-came-in-since": "expected answer p2 = settled, found timed out"},
    "confirm-demoted-with-one-behind": {
        "demote-waits-for-whoever-keeps-up": "expected answer d1 = none, found settled"
    },
    "confirm-demoted-with-waiting": {"demote": "expected answer w1 = settled, found unknown"},
    "confirm-late-confirm": {
        "a-late-confirm": "state-machine-safety is broken: R1 settled 1-1 where 2-1 was settled"
    },
    "confirm-loose-counts": {"a-replica-cuts-itself-loose": "loose-counts is broken: R3 is loose"},
    "confirm-loose-said-late": {"a-vote-that-waited": "loose-counts is broken: R3 is loose, and votes"},
    "confirm-not-set-aside": {"the-documents-table": "expected set aside ID1 = 1, found 0"},
    "confirm-orders-hold-up": {
        "ordered-in-vain-again-and-again": "expected answer p5 = settled, found refused"
    },
    "confirm-quorum-early": {"quorum-sizes": "change-unsafe is broken: R1 put"},
    "confirm-promote-minority": {"quorum-sizes": "could elect two leaders at once"},
    "confirm-rollback-early": {
        "a-rollback-below-quorum-meets-a-successor": "rollback-early is broken: R1 says that 1 was rolled back"
    },
    "confirm-settle-before-promote": {"figure-8-with-promote": "settled-old-epoch is broken: S1 settled 2-1"},
    "confirm-two-ayes": {"two-ayes": "vote-once is broken: R3 voted in e1 for R1 and for R2"},
    "confirm-void-acknowledged": {
        "an-acknowledgement-races-a-rollback": "expected answer w2 = rolled back at 2, found settled"
    },
    "confirm-void-served": {"a-forced-rollback": 'expected visible R2 = "a", found "a" "b"'},
    "confirm-writable-demoting": {"demote": "writable-closed is broken: R1 took 1-2"},
    "confirm-writable-early": {"failover-by-voting": "writable-early is broken: R2 took 2-4"},
    "confirm-writable-read-only": {"a-forced-rollback": "writable-closed is broken: R1 took 1-3"},
    "coordinated-contract-unchecked": {"a-contraction-waits": "contract-unsafe is broken"},
    "coordinated-fence-stored": {"split-brain": "fenced-minority is broken: O2 chose R2"},
    "isr-below-minimum": {"below-the-minimum": "settled-below-minimum is broken: R1 settled 3"},
    "isr-expand-late": {
        "an-expansion-counts-from-the-asking": "isr-missing is broken: R1 settled 1-2, and {R3/1} do not have it"
    },
    "isr-hw-unclamped": {"high-watermark-is-clamped": "commit-above-log is broken: R3"},
    "isr-last-standing": {"last-one-standing": "state-machine-safety is broken: R1 cut to 1-1 below 2"},
    "isr-leader-outside": {"unclean-election": "leader-outside is broken: v3 e2 (v3) led by R3"},
    "isr-old-incarnation": {
        "wiped-replica": "isr-missing is broken: R3 settled 2-3, and {R2/1} do not have it"
    },
    "isr-one-truncation": {
        "kip-279": "found 1-0 1-1 1-2 3-3 on R1",
        "one-truncation-is-not-enough": "found 1-0* 3-1* on R1",
    },
    "isr-shrink-early": {
        "a-shrink-counts-once-agreed": "isr-missing is broken: R1 settled 1-1, and {R3/1} do not have it"
    },
    "isr-stale-report": {"a-stale-report": 'found "e2 (v3) led by R2'},
    "isr-truncate-to-hw": {"kip-101-loss": "1-2 is settled, and {R2/1} do not have it"},
    "raft-keep-conflicts": {"conflicts-are-deleted": "log-matching is broken: R3 appended 3-1"},
    "raft-delete-after-prev": {
        "skip-what-is-there": "leader-completeness is broken: R2 leads e2",
        "network-loses-doubles-reorders": "settled-minority is broken",
    },
    "raft-commit-unclamped": {"commit-is-clamped": "state-machine-safety is broken: R1 settled 2-2"},
    "raft-commit-old-epoch": {"figure-8-overwritten": "settled-old-epoch is broken: S1 settled 2-1"},
    "raft-ack-before-flush": {"acknowledge-after-flush": "ack-unflushed is broken: R2"},
    "raft-ack-on-heartbeat": {"acknowledge-after-flush": "ack-unflushed is broken: R2 acknowledged 1"},
    "raft-stale-io": {"stale-completion": "durable-early is broken: N1 counts 1-1 as flushed"},
    "raft-vote-unsaved": {"vote-is-flushed-first": "vote-unsaved is broken: R2 voted"},
    "raft-saw-vote-granted": {"conflicts-are-deleted": "leader-completeness is broken: R5 leads e6"},
    "raft-learner-counts": {"learner-never-counts": "settled-minority is broken: R1 settled 1-1"},
    "raft-wiped-counts": {"wiped-node-learns": "settled-minority is broken: R2"},
    "raft-joint-new-only": {
        "change-at-once-splits": "found R3 R4 R5 on R1",
        "change-crash-while-joint": "found R1 R4 R5",
    },
    "raft-change-unsettled": {
        "change-before-own-epoch": "change-unsafe is broken: R2 put {R1,R2,R3,R4}+{R2,R3,R4}"
    },
    "raft-config-uncut": {"change-is-cut-with-its-entry": "config-uncut is broken: R1"},
    "raft-joiner-uncaught": {"change-waits-for-newcomers": "joiner-counts-early is broken: R1 lets R4 count"},
    "raft-removed-leader-counts": {"change-removes-the-leader": "settled-minority is broken: R1 settled 1-3"},
    "raft-change-while-joint": {"change-one-at-a-time": "change-unsafe is broken: R1 put"},
    "raft-snapshot-without-standing": {
        "change-travels-with-a-snapshot": "config-uncut is broken: R3 installs",
        "timestamps-survive-a-snapshot": "expected answer w4 = busy, found none",
    },
    "raft-settled-not-flushed": {"change-survives-a-full-disk": "config-uncut is broken: R2"},
    "raft-read-before-noop": {"read-waits-for-own-epoch": "found append-entries still-request"},
    "raft-read-old-round": {"read-of-an-old-round": "expected answer r2 = none, found settled at 0"},
    "raft-lease-after-hand-over": {
        "lease-ends-with-a-transfer": "expected answer r3 = none, found settled at 0"
    },
    "raft-lease-forgets-promise": {"lease-survives-a-restart": "has not gone, found epoch 1 and gone"},
    "raft-lease-equal-epoch": {"lease-holds-in-an-adopted-epoch": "found vote-response"},
    "raft-heir-behind": {"transfer": "heir-behind is broken: R1 lets R2 take over"},
    "raft-prospect-takes-epoch": {"leader-gone-is-asked-first": "epoch-inflated is broken: R1 took e1"},
    "raft-gone-old-answer": {"leader-gone-is-asked-first": "epoch-inflated is broken: R5 took e2"},
    "raft-read-at-rest": {"read-wakes-a-leader-at-rest": "expected answer r2 = settled at 0, found none"},
    "raft-rest-without-leader": {"rest-ends-when-the-leader-asks": "expected awake R2 R3, found R2 at rest"},
    "raft-ceiling-ignored": {"timestamps-rise-with-the-log": "expected answer w3 = busy, found none"},
}
"""Mutants, the stories that warn of them, and how those end then."""


@pytest.mark.behaviour(
    "OR-5", "OR-7", "OR-10", "OR-20", "YB-5", "YB-7", "YB-12", "YB-14", "YB-15", "YB-16", "YB-19"
)
@pytest.mark.behaviour("D1", "LB-10", "LB-15", "LB-16", "LB-21", "LB-22", "LB-24")
@pytest.mark.behaviour("TT-10", "TT-20", "TT-21", "TT-24", "TT-37", "D6", "D8", "D9", "D10")
@pytest.mark.parametrize("mutant", WARNINGS)
def test_scenario_fails_where_the_code_is_broken(mutant: str) -> None:
    """The documents' own wrong turns, planted: the story that warns of each ends as the document says."""
    stories = WARNINGS[mutant]
    paths = [str(HERE / mutant.split("-")[0] / f"{name}.txt") for name in stories]
    program = "import sys; from quorate.sim.scenario import run_files; sys.exit(run_files(sys.argv[1:]))"
    with planted(describe(mutant, RARE if mutant in names(RARE) else None)) as directory:
        ran = subprocess.run(
            [sys.executable, "-c", program, *paths],
            env=os.environ | {"PYTHONPATH": str(directory)},
            cwd=directory,
            check=False,
            text=True,
            capture_output=True,
        )
    assert ran.returncode == 1, ran.stderr
    for said in stories.values():
        assert said in ran.stderr


def test_every_rare_mutant_has_its_story() -> None:
    assert set(names(RARE)) <= set(WARNINGS)


def examples() -> Iterator[tuple[int, str]]:
    """(line of the fence, text) of every example, padded so that line numbers are those of the page."""
    language: str | None = None
    began = 0
    body: list[str] = []
    for number, line in enumerate(DOCUMENT.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.startswith(FENCE):
            body.append(line)
            continue
        if language == "scenario":
            yield began, "\n" * began + "\n".join(body) + "\n"
        language = line.removeprefix(FENCE) if language is None else None
        began, body = number, []


@pytest.mark.parametrize("text", [pytest.param(text, id=f"line {line}") for line, text in examples()])
def test_example_of_the_document(text: str) -> None:
    result = run_text(text, f"docs/{DOCUMENT.name}")
    assert not result.problems, "\n" + "\n".join(result.lines())


def test_the_document_describes_every_form() -> None:
    page = DOCUMENT.read_text(encoding="utf-8").replace("\\|", "|")
    missing = [pattern for pattern in PATTERNS if f"`{pattern}`" not in page]
    assert not missing, f"docs/SCENARIOS.md has no row for: {missing}"


def test_the_document_shows_every_form_in_an_example() -> None:
    forms = [Form(pattern) for pattern in PATTERNS]
    shown = {
        understand(words, forms)[0].pattern
        for _, text in examples()
        for line in text.splitlines()
        if (words := split(line)) and not line[:1].isspace()
    }
    assert not set(PATTERNS) - shown
    assert EXPECT_ERROR in shown
    assert set(GIVEN) <= shown


def test_the_document_names_no_form_that_is_not_there() -> None:
    page = DOCUMENT.read_text(encoding="utf-8").replace("\\|", "|")
    rows = re.findall(r"^\| `([a-z-]+ [^`]*[A-Z][^`]*)` \|", page, flags=re.MULTILINE)
    assert len(rows) > 50
    assert not set(rows) - set(PATTERNS)
