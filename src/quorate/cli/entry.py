"""The `quorate` command: its subcommands, and how each ends.

Only what is needed to parse a command line is imported here; each subcommand imports the rest when it runs,
so that `quorate --help` answers at once.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from quorate import __version__
from quorate.cli import (
    audit,
    backup,
    bench,
    cluster,
    consume,
    demo,
    doctor,
    format,  # noqa: A004
    group,
    mutants,
    produce,
    run_node,
    scenario,
    sim,
    sweep_command,
    table,
    tier,
    topic,
    transaction,
    up,
    user,
)
from quorate.cli.access import Access, choose
from quorate.cli.options import NOT_THERE_YET
from quorate.cli.wrong import NotYet, WrongUsage, in_one_line

WRONG_USAGE, INTERRUPTED, READER_LEFT, ENDED = 2, 130, 141, 143
"""The last three as a shell reports a process that SIGINT, SIGPIPE or SIGTERM ended."""

STDOUT = 1

app = typer.Typer(
    name="quorate",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (
    up,
    topic,
    produce,
    consume,
    group,
    transaction,
    table,
    cluster,
    doctor,
    audit,
    tier,
    backup,
    user,
    format,
    run_node,
    sim,
    sweep_command,
    mutants,
    scenario,
    bench,
    demo,
):
    part.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"quorate {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="A first look: [bold]quorate demo[/bold]. Every command explains itself with [bold]--help[/bold].",
)
def quorate(
    context: typer.Context,
    version: Annotated[  # the callback prints it
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say which version this is."),
    ] = False,
    access: Access = None,
) -> None:
    """A replicated log and table store in which each topic chooses how its copies agree."""
    choose(access)
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Do what a command line says; the exit code."""
    try:
        status = app(args=list(arguments), prog_name="quorate", standalone_mode=False)
    except WrongUsage as wrong:
        _complain(str(wrong))
        return WRONG_USAGE
    except NotYet as not_yet:
        _complain(str(not_yet))
        return NOT_THERE_YET
    except typer.TyperException as wrong:
        _complain(_with_pointer(wrong))
        return WRONG_USAGE
    except (BrokenPipeError, SystemExit) as ended:  # typer turns the one into the other
        return ENDED if isinstance(ended, SystemExit) and ended.code == ENDED else _quietly()
    except OSError as error:  # A full disk, a name that is too long, a place that may not be written.
        _complain(f"{error.filename or 'the output'}: {error.strerror or error}; choose another place")
        return WRONG_USAGE
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:
        _complain("interrupted")
    return status if isinstance(status, int) else 0


def main() -> NoReturn:
    # A polite end (timeout, a supervisor) cleans up like any other: temporary directories can be large.
    signal.signal(signal.SIGTERM, _end)
    _have_streams()
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _quietly()
    except OSError as error:
        _complain(f"the output: {error.strerror}; choose another place")
        _quietly()
        status = WRONG_USAGE
    sys.exit(status)


def _end(*_: object) -> NoReturn:
    # `timeout` says it twice, to the process and to its group: what is cleaned up meanwhile is not left half-way.
    signal.signal(signal.SIGTERM, lambda *_: None)
    sys.exit(ENDED)


def _have_streams() -> None:
    """Somebody may have closed them, or named a character set that cannot show what we say."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _complain(text: str) -> None:
    print(f"quorate: {in_one_line(text)}", file=sys.stderr)


def _with_pointer(wrong: typer.TyperException) -> str:
    """The parser's own words, and where the right ones are listed."""
    message = wrong.format_message().strip().rstrip(".").replace(". Did you mean", "; did you mean")
    context = getattr(wrong, "ctx", None)
    path = context.command_path if context is not None else "quorate"
    pause = "" if message.endswith("?") else ";"
    return f"{message[:1].lower()}{message[1:]}{pause} see `{path} --help`"


def _quietly() -> int:
    """Whoever read our output has left (`| head`): no complaint, now or when Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    return READER_LEFT
