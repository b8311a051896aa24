"""Patches: read, applied exactly or not at all, planted into a copy of the package and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.sim import mutate, patching
from quorate.sim.patching import BadPatch, Change, DoesNotApply, Hunk

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "MUTANTS.md"

PATCH = """\
mutant: raft-example
does: something wrong
origin: OR-7
caught by: log-matching, order
seed: 12
faults: network,crash
nodes: 5
learners: 1
set: snapshot_every=5, reads_share=0.5

Why that is wrong.

--- core/one.py
+++ core/one.py
@@ -2,3 +2,2 @@
 two
-three
-four
+3
@@ -7,2 +6,3 @@
 seven
+seven and a half
 eight
--- two.py
+++ two.py
@@ -1 +1 @@
-here
+there
"""

ONE = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "one.py").write_text(ONE)
    (tmp_path / "two.py").write_text("here\n")
    return tmp_path


def changes_of(text: str) -> tuple[Change, ...]:
    return patching.parse(text, where="x.patch")[1]


# ---- diffs ----


def test_a_diff_is_read_with_what_stands_above_it() -> None:
    preamble, changes = patching.parse(PATCH, where="x.patch")
    assert preamble.startswith("mutant: raft-example")
    assert changes == (
        Change(
            "core/one.py",
            (
                Hunk(1, 2, ("two", "three", "four"), ("two", "3")),
                Hunk(2, 7, ("seven", "eight"), ("seven", "seven and a half", "eight")),
            ),
        ),
        Change("two.py", (Hunk(1, 1, ("here",), ("there",)),)),
    )


def test_a_diff_is_applied(root: Path) -> None:
    patching.apply(changes_of(PATCH), root)
    assert (
        root / "core" / "one.py"
    ).read_text() == "one\ntwo\n3\nfive\nsix\nseven\nseven and a half\neight\n"
    assert (root / "two.py").read_text() == "there\n"


def test_lines_may_have_moved(root: Path) -> None:
    (root / "core" / "one.py").write_text("zero\n" + ONE.replace("six\n", "six\nsix and a half\n"))
    patching.apply(changes_of(PATCH), root)
    assert (root / "core" / "one.py").read_text() == (
        "zero\none\ntwo\n3\nfive\nsix\nsix and a half\nseven\nseven and a half\neight\n"
    )


def test_lines_that_stand_there_twice_are_found_at_the_line_that_the_diff_says(root: Path) -> None:
    (root / "core" / "one.py").write_text(ONE + "seven\neight\n")
    patching.apply(changes_of(PATCH), root)
    assert (root / "core" / "one.py").read_text().endswith("seven and a half\neight\nseven\neight\n")


def test_lines_that_moved_to_two_places_do_not_apply(root: Path) -> None:
    (root / "core" / "one.py").write_text(ONE.replace("seven", "between\nseven") + "seven\neight\n")
    with pytest.raises(
        DoesNotApply, match=r"core/one.py: hunk 2 does not apply: its lines stand at 2 places"
    ):
        patching.apply(changes_of(PATCH), root)


def test_changed_lines_do_not_apply_and_nothing_is_changed(root: Path) -> None:
    (root / "two.py").write_text("here \n")
    with pytest.raises(DoesNotApply, match=r"two.py: hunk 1 does not apply: its lines are not there"):
        patching.apply(changes_of(PATCH), root)
    assert (root / "core" / "one.py").read_text() == ONE


def test_a_file_that_is_gone_is_named(root: Path) -> None:
    (root / "two.py").unlink()
    with pytest.raises(DoesNotApply, match=r"two.py: there is no such file"):
        patching.apply(changes_of(PATCH), root)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a diff was expected"),
        ("mutant: x\n", "a diff was expected"),
        (PATCH + "and more\n", "expected '--- FILE'"),
        (PATCH.replace("+++ two.py", "+++ three.py"), "expected '--- FILE'"),
        (PATCH.replace(" two.py", " ../two.py"), "expected '--- FILE'"),
        (PATCH.replace(" two.py", " /two.py"), "expected '--- FILE'"),
        (PATCH.replace(" two.py", " two.txt"), "expected '--- FILE'"),
        (PATCH.replace("@@ -1 +1 @@\n-here\n+there\n", ""), "nothing is changed in two.py"),
        (PATCH.replace("-here", "?here"), "this one does not"),
        (PATCH.removesuffix("+there\n"), "it announces 1 and 1 lines"),
        (PATCH.replace("-here\n", "-here\n-too\n"), "it announces 1 and 1 lines"),
        (PATCH.replace("@@ -1 +1 @@\n-here\n", "@@ -0,0 +1 @@\n"), "nobody knows where it goes"),
    ],
)
def test_what_is_no_diff_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadPatch) as wrong:
        patching.parse(text, where="x.patch")
    assert why in str(wrong.value)
    assert str(wrong.value).startswith("x.patch:")


# ---- what a patch says about itself ----


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutate, "MUTANTS", tmp_path)
    return tmp_path


def test_a_preamble_says_what_to_run(zoo: Path) -> None:
    (zoo / "raft-example.patch").write_text(PATCH)
    assert mutate.names() == ["raft-example"]
    mutant = mutate.describe("raft-example")
    assert mutant.does == "something wrong"
    assert mutant.caught_by == ("log-matching", "order")
    assert (mutant.seed, mutant.faults, mutant.nodes, mutant.learners) == (12, "network,crash", 5, 1)
    assert mutant.overrides == {"snapshot_every": 5, "reads_share": 0.5}
    assert mutant.protocol == "raft"


def test_a_preamble_says_in_whose_worlds_to_hunt(zoo: Path) -> None:
    (zoo / "raft-example.patch").write_text(PATCH.replace("seed: 12\n", "seed: 12\nprotocol: coordinated\n"))
    assert mutate.describe("raft-example").protocol == "coordinated"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("does: something wrong\n", "", "lacks: does"),
        ("does: something wrong\n", "does:\n", "no line such as 'does:'"),
        ("seed: 12", "seed: twelve", "twelve"),
        ("learners: 1", "colour: red", "no line such as 'colour: red'"),
        ("nodes: 5", "nodes: 5\nnodes: 3", "no line such as 'nodes: 3'"),
        ("raft-example", "raft-other", "it says that it is raft-other"),
        ("snapshot_every=5", "snapshot_every", "invalid literal"),
    ],
)
def test_a_wrong_preamble_is_refused(zoo: Path, old: str, new: str, why: str) -> None:
    (zoo / "raft-example.patch").write_text(PATCH.replace(old, new))
    with pytest.raises(BadPatch) as wrong:
        mutate.describe("raft-example")
    assert why in str(wrong.value)
    assert str(wrong.value).startswith("raft-example.patch:")


def test_an_unknown_name_is_refused_and_the_known_ones_are_told(zoo: Path) -> None:
    (zoo / "raft-example.patch").write_text(PATCH)
    with pytest.raises(mutate.NoSuchMutant, match=r"'../raft-example'; there are: raft-example"):
        mutate.describe("../raft-example")


# ---- the mutants that there are ----

TABLE = """
    raft-delete-after-prev raft-keep-conflicts raft-commit-unclamped raft-commit-old-epoch
    raft-ack-before-flush raft-stale-io raft-vote-unsaved raft-learner-counts raft-saw-vote-granted
    raft-joint-new-only raft-config-uncut raft-read-before-noop
    coordinated-fence-stored coordinated-one-truncation coordinated-highest-offset coordinated-serve-early
    coordinated-gap-on-empty coordinated-commit-reset coordinated-contract-unchecked
    coordinated-contract-completed coordinated-no-noop coordinated-zombie-operator
    disk-cut-damage disk-mark-early disk-retry-fsync disk-no-dirsync disk-no-identity disk-nack-damage
    confirm-ack-races-rollback confirm-async-overtakes confirm-snapshot-unconfirmed confirm-writable-early
    confirm-quorum-early confirm-dirty-read confirm-two-ayes confirm-settle-before-promote confirm-rollback-early
    producer-survives-cut producer-survives-rollback
    joint-append-after-commit joint-orphan-published joint-repeat-published joint-commit-after-timeout
    lso-passes-open
""".split()


def test_every_mutant_that_was_promised_is_there() -> None:
    assert set(TABLE) <= set(mutate.names())


@pytest.mark.parametrize("name", mutate.names())
def test_every_patch_applies_to_a_copy_and_leaves_the_code_alone(name: str) -> None:
    mutant = mutate.describe(name)
    before = {change.file: (mutate.PACKAGE / change.file).read_text() for change in mutant.changes}
    with mutate.planted(mutant) as directory:
        for file, text in before.items():
            mutated = (directory / "quorate" / file).read_text()
            assert mutated != text
            compile(mutated, file, "exec")
    assert not directory.exists()
    assert before == {change.file: (mutate.PACKAGE / change.file).read_text() for change in mutant.changes}


def test_a_patch_that_no_longer_applies_is_named(zoo: Path) -> None:
    (zoo / "raft-example.patch").write_text(PATCH)
    with pytest.raises(DoesNotApply, match=r"raft-example.patch: core/one.py: there is no such file"):
        mutate.hunt("raft-example")


def test_the_page_of_mutants_is_current(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(mutate.page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == mutate.page(), (
        "docs/MUTANTS.md is stale: run .venv/bin/pytest tests/unit/sim/test_mutate.py --rewrite"
    )
