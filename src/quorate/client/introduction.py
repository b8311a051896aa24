"""What is said on a connection before anything is asked there: who we are, as SASL has it.

The same for both kinds of connection: what is to be said comes out, and what the node answers goes in.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from quorate.client.security import NotLetIn, Security
from quorate.wire.entities import make
from quorate.wire.messages import Api, request_class

HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 1


class Said(NamedTuple):
    api: Api
    version: int
    body: Any


Introduction = Generator[Said, Any, None]


def introduction(security: Security, where: str) -> Introduction:
    """Nothing at all without a user. Raises NotLetIn, which repeats no password."""
    if not security.user:
        return
    answer = yield _said(Api.SASL_HANDSHAKE, HANDSHAKE_VERSION, {"mechanism": security.mechanism})
    if answer.error_code == ErrorCode.illegal_sasl_state:
        raise NotLetIn(f"{where} asks nobody for a password; leave user and password out")
    if answer.error_code != ErrorCode.none:
        raise NotLetIn(f"{where} does not offer {security.mechanism}; it has {', '.join(answer.mechanisms)}")
    tokens = security.tokens()
    token = next(tokens, None)
    while token is not None:
        answer = yield _said(Api.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, {"auth_bytes": token})
        if answer.error_code != ErrorCode.none:
            raise NotLetIn(f"{where} does not let {security.user!r} in: {answer.error_message}")
        token = after(tokens, answer.auth_bytes)


def after(conversation: Generator[Any, Any, None], answer: Any) -> Any:
    """What is said to that; None: it is over."""
    try:
        return conversation.send(answer)
    except StopIteration:
        return None


def _said(api: Api, version: int, values: dict[str, Any]) -> Said:
    return Said(api, version, make(request_class(api, version), values))
