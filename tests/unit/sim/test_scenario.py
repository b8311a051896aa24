"""Scenarios that end otherwise than they say: every failure has a line and what was found."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from quorate.core.raft import follower
from quorate.core.raft.follower import Follower
from quorate.sim.scenario import run_files, run_scenario, run_text

CAST = "nodes R1 R2 R3\n"


def problems(text: str) -> list[str]:
    result = run_text(CAST + text, "x.txt")
    assert not result.misunderstood, result.lines()
    return result.lines()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("elect R1\nexpect log R1 = 1-1", "x.txt:3: expected log R1 = 1-1, found 1-0*"),
        ("elect R1\nexpect log R1 R2 = 1-0", "x.txt:3: expected log R1 R2 = 1-0, found empty on R2"),
        ("elect R1\nexpect flushed R2 = 1-0", "x.txt:3: expected flushed R2 = 1-0, found empty"),
        ("expect role R1 = leader", "x.txt:2: expected role R1 = leader, found follower"),
        ("crash R1\nexpect role R1 R2 = down", "x.txt:3: expected role R1 R2 = down, found follower on R2"),
        ("elect R1\nexpect no leader", "x.txt:3: expected no leader, found R1"),
        ("expect leader = R1", "x.txt:2: expected leader = R1, found none"),
        ("expect epoch R1 = 3", "x.txt:2: expected epoch R1 = 3, found 0"),
        ("elect R1\nexpect vote R2 = R3", "x.txt:3: expected vote R2 = R3, found R1"),
        ("expect commit R1 = 0", "x.txt:2: expected commit R1 = 0, found none"),
        ("expect applied R1 = 0", "x.txt:2: expected applied R1 = 0, found none on R1"),
        ("expect cuts R1 = 1", "x.txt:2: expected cuts R1 = 1, found 0"),
        ("expect snapshot R1 = 3", "x.txt:2: expected snapshot R1 = 3, found none"),
        ("expect at rest R1", "x.txt:2: expected at rest R1, found R1 waiting for a timer"),
        (
            "propose R2 as w\nexpect answer w = settled",
            "x.txt:3: expected answer w = settled, found not leader",
        ),
        (
            "elect R1\npropose R1 as w\nexpect answer w = unknown",
            "x.txt:4: expected answer w = unknown, found none",
        ),
        ('elect R1\nexpect visible R1 = "x"', 'x.txt:3: expected visible R1 = "x", found nothing'),
        (
            "campaign R1\nexpect messages = none",
            "x.txt:3: expected messages = none, found gone-request gone-request",
        ),
        (
            "campaign R1 with R1 R2\nexpect message vote R1 -> R2 has epoch 2",
            "x.txt:3: expected message vote R1 -> R2 has epoch 2, found epoch 1 and last nothing",
        ),
        (
            "campaign R1\nexpect message gone R1 -> R2 has epoch 2",
            "x.txt:3: expected message gone R1 -> R2 has epoch 2, found epoch 0 and last nothing",
        ),
        (
            "expect membership R1 R2 = R1 R2",
            "x.txt:2: expected membership R1 R2 = R1 R2, found R1 R2 R3 on R1",
        ),
        (
            'elect R1\nchange R1 to R1 R2 as c\nexpect answer c = refused because "x"',
            'x.txt:4: expected answer c = refused because "x", found busy',
        ),
        (
            "propose R1 as w1\npropose R2 as w2\nexpect timestamp w2 after w1",
            "x.txt:4: expected timestamp w2 after w1, found 0 and 0",
        ),
        ('expect report R1 "x"', 'x.txt:2: expected report R1 "x", found none'),
        (
            "elect R1\nexpect trace\n    R1 leads",
            "x.txt:3: expected `R1 leads` in line 4 of the trace, found ",
        ),
        ("expect trace\n    R1 leads", "x.txt:2: expected the trace to go on with `R1 leads`, found its end"),
        ("wake R1\nexpect trace", "x.txt:3: expected the trace to end, found `R1 misses its leader`"),
    ],
)
def test_what_is_not_as_expected_is_said_with_what_was_found(lines: str, said: str) -> None:
    (line,) = problems(lines)
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("deliver append R1 -> R2", "no append waits on R1 -> R2; waiting there: nothing"),
        ("campaign R1\ndeliver append R1 -> R2", "no append waits on R1 -> R2; waiting there: gone-request"),
        ("crash R1\npropose R1 as w", "R1 is down"),
        ("pause R1\nwake R1", "R1 is paused"),
        ("resume R1", "R1 is not paused"),
        ("crash R2 R3\nelect R1", "R2 is down"),
        ("flush R1", "R1 waits for nothing of its disk"),
        ("reorder R1 -> R2 = 1 2", "0 messages wait on R1 -> R2"),
        ("damage R1 offset 7", "nothing on the disk of R1 covers 7"),
        ("expect log R1 = empty\ncrash R1\ncrash R1", "R1 is down"),
        ("campaign R1\ncut R1 -> R2\ndeliver gone R1 -> R2", "the link R1 -> R2 is cut"),
        ("send append R1 -> R2 with prev nothing", "write the whole name: append-entries or append-response"),
        ("send append-entries R1 -> R2 with prev nothing", "has the fields epoch, prev, commit, entries"),
        (
            "send append-entries R1 -> R2 with prev nothing and entries 1-0 and commit none",
            "1-0 is not in that log",
        ),
        ("send append-entries R1 -> R2 with prev 5", "`5` is no entry"),
        ("send append-entries R1 -> R2 with speed high", "`speed high` is not a field of AppendEntries"),
    ],
)
def test_a_command_that_cannot_be_carried_out_ends_the_scenario(lines: str, said: str) -> None:
    (line,) = problems(lines + "\nexpect log R1 = 9-9\n")
    number, command = len(lines.splitlines()) + 1, lines.splitlines()[-1]
    assert line.startswith(f"x.txt:{number}: `{command}` failed: ")
    assert said in line


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("expect isr = R1", "expected isr = R1, found R1 R2 R3"),
        ("expect eligible = R1", "expected eligible = R1, found none"),
        ("expect maximal isr R1 = R2", "expected maximal isr R1 = R2, found R1 R2 R3"),
        ("expect maximal isr R2 = R2", "expected maximal isr R2 = R2, found none: it is follower"),
        ("expect high watermark R1 = 0", "expected high watermark R1 = 0, found none"),
        ("order C1 call off as off", "`order C1 call off as off` failed: nothing that a controller does"),
        ("elect R1", "`elect R1` failed: in isr controllers choose leaders"),
    ],
)
def test_what_is_not_as_expected_of_an_isr_is_said(lines: str, said: str) -> None:
    begun = "protocol isr\nnodes R1 R2 R3\ncontrollers C1\nrestart C1\nsettle\n"
    result = run_text(begun + lines, "x.txt")
    assert [line.partition(": ")[2][: len(said)] for line in result.lines()] == [said]


def test_whoever_chooses_by_heads_cannot_be_told_whom() -> None:
    text = "protocol coordinated\nnodes R1 R2\noperators O1\nrestart O1\norder O1 move leader to R2 as m"
    (line,) = run_text(text).lines()
    assert "an operator chooses whoever has the highest head" in line


def test_all_expectations_that_are_not_met_are_reported() -> None:
    found = problems("expect epoch R1 = 1\nexpect epoch R2 = 0\nexpect role R3 = leader\n")
    assert [line.split(":")[1] for line in found] == ["2", "4"]


def test_a_command_may_be_expected_to_fail() -> None:
    assert not problems('flush R1\nexpect error "waits for nothing"\n')
    assert problems('flush R1\nexpect error "no disk"\n') == [
        'x.txt:2: expected `flush R1` to fail with "no disk", found "R1 waits for nothing of its disk"'
    ]
    assert problems('elect R1\nexpect error "too few"\n') == [
        'x.txt:2: expected `elect R1` to fail with "too few", and it did not'
    ]


# ---- broken code ----


def test_a_broken_protocol_fails_with_the_name_of_the_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a follower acknowledged what is not on its disk."""
    honest = Follower._answer

    def answer(self: Follower, **said: object) -> None:
        self.replica.flushed_agreement = lambda: self.replica.verified.offset  # type: ignore[method-assign]
        honest(self, **said)  # type: ignore[arg-type]

    monkeypatch.setattr(Follower, "_answer", answer)
    monkeypatch.setattr(follower.Follower, "_may_rest", lambda self, message: False)
    found = problems("elect R1\nsettle\nhold flushes R2\npropose R1 as w\nsettle R1 R2\nwake R1\nsettle\n")
    assert len(found) == 1
    assert "invariant ack-unflushed is broken: R2 acknowledged 1" in found[0]


def test_a_failed_assertion_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(self: Follower) -> None:
        raise AssertionError("our bug")

    monkeypatch.setattr(Follower, "suspected", enter)
    monkeypatch.setattr(Follower, "woke", enter)
    (line,) = problems("wake R1")
    assert line.startswith("x.txt:2: `wake R1` failed: assertion failed in test_scenario.py:")
    assert line.endswith("our bug")


# ---- files ----


def test_exit_codes_tell_unmet_from_misunderstood(tmp_path: Path) -> None:
    good, wrong, odd = (tmp_path / name for name in ("good.txt", "wrong.txt", "odd.txt"))
    good.write_text(CAST + "expect no leader\n")
    wrong.write_text(CAST + "expect leader = R1\n")
    odd.write_text(CAST + "expect ladder = R1\n")
    for paths, code in [([good], 0), ([good, wrong], 1), ([wrong, odd, good], 2), ([tmp_path / "no.txt"], 2)]:
        out, err = io.StringIO(), io.StringIO()
        assert run_files(paths, out=out, err=err) == code
        assert ("as expected (0 commands, 1 expectations)" in out.getvalue()) == (good in paths)
        assert bool(err.getvalue()) == (code > 0)


def test_files_that_cannot_be_read_get_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    err = io.StringIO()
    assert run_files([tmp_path / "none.txt", tmp_path, binary], err=err) == 2
    lines = err.getvalue().splitlines()
    assert len(lines) == 3
    assert "No such file" in lines[0]
    assert "not a text in UTF-8" in lines[2]


def test_rewriting_fills_in_traces_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    head = "# A story.\n" + CAST + "campaign R1\n\n"
    path.write_text(
        head + "expect trace\n    nonsense\n    more of it\nexpect trace\n\nexpect role R1 = prospect\n"
    )
    assert not run_scenario(path).passed
    assert run_scenario(path, rewrite=True).passed
    lines = "    R1 misses its leader\n"
    told = head + "expect trace\n" + lines + "expect trace\n\nexpect role R1 = prospect\n"
    assert path.read_text() == told
    assert run_scenario(path).passed
    assert run_scenario(path, rewrite=True).rewritten == told


def test_nothing_is_rewritten_where_an_expectation_is_not_met(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    text = CAST + "campaign R1\nexpect trace\nexpect role R1 = leader\n"
    path.write_text(text)
    assert not run_scenario(path, rewrite=True).passed
    assert path.read_text() == text


def test_a_scenario_is_the_same_in_every_run() -> None:
    text = CAST + "elect R1\npropose R1 as w\nrun 2s\ncrash R1\nrun 5s\nexpect trace\n"
    first, second = (run_text(text, rewrite=True).rewritten for _ in range(2))
    assert first == second
    assert len(first.splitlines()) > 30
