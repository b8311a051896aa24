"""`quorate user`: who has a password, for listeners that ask for one.

A password is hashed here; what the cluster gets and keeps is enough to recognise it, and not to repeat it.
"""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, Json, Servers
from quorate.cli.wrong import WrongUsage, in_words, no_such

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.machine.users import PutUser

user_app = typer.Typer(no_args_is_help=True, help="Let users in, or out, where listeners ask for a password.")

PASSWORD_CHARACTERS_MIN, PASSWORD_BYTES_MAX = 8, 1000
ITERATIONS = 8192
SALT_BYTES, SECRET_BYTES = 16, 32

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.")]

ADD_EPILOG = """\b
[bold]Examples[/bold]
quorate user add ann                              asks for the password
quorate user add ann --password-file secret.txt   its first line; - is standard input

A user who is there already has the new password from then on, and is disconnected where it used the old one.
"""


def register(app: typer.Typer) -> None:
    user_app.command("add", epilog=ADD_EPILOG)(add)
    user_app.command("remove")(remove)
    user_app.command("list")(list_)
    app.add_typer(user_app, name="user")


def add(
    name: Name,
    servers: Servers = SERVERS,
    password_file: Annotated[
        str | None, typer.Option("--password-file", metavar="FILE", help="Where the password is; - is stdin.")
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(metavar="N", min=8192, max=200_000, help="How often it is hashed: guessing costs that."),
    ] = ITERATIONS,
    json: Json = False,
) -> None:
    """Give a user a password, for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512."""
    from quorate.cli.orders import carry_out
    from quorate.machine.users import why_not_named

    if why_not := why_not_named(name):
        raise WrongUsage(why_not)
    command = put_user(name, _password(password_file), iterations=iterations)
    was_there = carry_out(servers, lambda orders: _put(orders, command))
    what = "has another password" if was_there else "is added"
    say.result(f"user {name} {what}", {"user": name, "added": not was_there}, json=json)


async def _put(orders: Orders, command: PutUser) -> bool:
    """Whether there was such a user."""
    before = await orders.image(())
    await orders.settle(f"user {command.name}", command)
    if command.name not in (await orders.image(())).users:
        raise WrongUsage(f"user {command.name}: the cluster has too many users; remove some")
    return command.name in before.users


def remove(name: Name, servers: Servers = SERVERS, json: Json = False) -> None:
    """Take a user's password away; its connections are closed."""
    from quorate.cli.orders import carry_out

    carry_out(servers, lambda orders: _remove(orders, name))
    say.result(f"user {name} is removed", {"user": name, "removed": True}, json=json)


async def _remove(orders: Orders, name: str) -> None:
    from quorate.machine.users import RemoveUser

    known = (await orders.image(())).users
    if name not in known:
        raise no_such("user", name, known)
    await orders.settle(f"user {name}", RemoveUser(name))


def list_(servers: Servers = SERVERS, json: Json = False) -> None:
    """List the users."""
    from quorate.cli.orders import carry_out

    names = carry_out(servers, _names)
    out = say.console()
    if json:
        say.print_json({"users": names})
    elif names:
        out.print(say.table("Users", ("user",), [(name,) for name in names]))
    else:
        out.print("There are no users; add one: quorate user add NAME")


async def _names(orders: Orders) -> list[str]:
    from quorate.cli.orders import MAY_BE_OLD

    image = await orders.image((), even_old=True)
    if not image.is_current:
        say.progress_line(MAY_BE_OLD)
    return list(image.users)


# ---- passwords ----


def put_user(name: str, password: str, *, iterations: int = ITERATIONS) -> PutUser:
    """The command that gives a user that password."""
    from secrets import token_bytes

    from quorate.machine.users import Credential, PutUser
    from quorate.wire.scram import HASHES, derived

    credentials = []
    for mechanism, hash_name in HASHES.items():
        salt = token_bytes(SALT_BYTES)
        keys = derived(hash_name, password.encode(), salt, iterations)
        credentials.append(Credential(mechanism, salt, iterations, keys.stored, keys.server))
    return PutUser(name, tuple(credentials), token_bytes(SECRET_BYTES))


def _password(file: str | None) -> str:
    """Never an argument: those are shown to everybody on this machine."""
    if file is None and sys.stdin.isatty():
        password = getpass("Password: ")
        if getpass("Again: ") != password:
            raise WrongUsage("that was not the same twice; order it again")
    else:
        password = _first_line(file)
    if len(password) < PASSWORD_CHARACTERS_MIN or len(password.encode()) > PASSWORD_BYTES_MAX:
        raise WrongUsage(
            f"a password has at least {PASSWORD_CHARACTERS_MIN} characters and at most {PASSWORD_BYTES_MAX} bytes"
        )
    if not password.isprintable():
        raise WrongUsage("a password is made of characters that can be printed")
    return password


def _first_line(file: str | None) -> str:
    try:
        if file in (None, "-"):
            return sys.stdin.readline().removesuffix("\n")
        with Path(str(file)).open(encoding="utf-8") as opened:
            return opened.readline(2 * PASSWORD_BYTES_MAX).removesuffix("\n")
    except OSError as error:
        raise WrongUsage(
            f"--password-file {file!r}: {in_words(error)}; name a file that can be read"
        ) from error
    except UnicodeDecodeError as error:
        raise WrongUsage(f"--password-file {file or '-'!r}: it is not text in UTF-8") from error
