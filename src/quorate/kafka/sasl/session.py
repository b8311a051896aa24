"""One connection's way from nobody to somebody.

SaslHandshake chooses how; then come tokens, in SaslAuthenticate requests, or after the oldest handshake
(version 0) as they are, each behind its size. Until somebody is known, nothing else is served but ApiVersions.
Whoever fails once is told no more than that, and disconnected.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from quorate.kafka.call import Call
from quorate.kafka.sasl import plain
from quorate.kafka.sasl.credentials import Known, NotAuthenticated, find
from quorate.kafka.sasl.scram import ScramServer
from quorate.machine.metadata import Metadata
from quorate.machine.users import KEY_BYTES
from quorate.wire.cursor import BadMessage
from quorate.wire.messages import Api, decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", plain.PLAIN)
BEFORE = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})
"""What is served to nobody in particular."""
REQUEST_BYTES_MAX = 64 << 10
"""Of those."""
TIMEOUT_S = 10.0
"""By then somebody must be known."""
OUT_OF_TURN = "not now: first SaslHandshake, then SaslAuthenticate, once"
_SIZE = struct.Struct(">i")

Answer = Callable[[bytes], None]


class Session:
    def __init__(self, broker: Broker) -> None:
        self.wants_bare = False
        """What comes next is a token without a header (after version 0 of the handshake)."""
        self._broker = broker
        self._mechanism = ""
        self._scram: ScramServer | None = None
        self._is_judging = False
        self._known: Known | None = None

    @property
    def is_authenticated(self) -> bool:
        return self._known is not None

    @property
    def user(self) -> str:
        return self._known.name if self._known is not None else ""

    def is_still_good(self) -> bool:
        """False: the user was removed since, or has another password."""
        if self._known is None:
            return True
        return self._is_current(self._known)

    def _is_current(self, known: Known) -> bool:
        user = self._image().users.get(known.name)
        return user is not None and user.at == known.at

    def _image(self) -> Metadata:
        return self._broker.node.metadata.image

    @property
    def wants_handshake(self) -> bool:
        return not self._mechanism

    @property
    def wants_token(self) -> bool:
        return bool(self._mechanism) and not self.is_authenticated and not self._is_judging

    def begin(self, mechanism: str, *, bare: bool) -> None:
        self._mechanism = mechanism
        self.wants_bare = bare
        if mechanism != plain.PLAIN:
            self._scram = ScramServer(mechanism, lambda name: find(self._image(), name, mechanism))

    def step(self, call: Call, token: bytes, answer: Answer, refuse: Callable[[str], None]) -> None:
        """The next token; `answer` is called now or later, or `refuse`, with what the log is told."""
        if self._scram is None:
            self._is_judging = True
            call.door.run(self._judge_plain(call, token, answer, refuse))
            return
        try:
            said = self._scram.step(token)
            if self._scram.is_done:
                self._let_in(call, self._scram.known)
        except NotAuthenticated as no:
            refuse(str(no))
        else:
            answer(said)

    async def _judge_plain(
        self, call: Call, token: bytes, answer: Answer, refuse: Callable[[str], None]
    ) -> None:
        image = self._image()
        try:
            name, password = plain.parse(token)
            # Any of the user's credentials will do.
            known = max((find(image, name, each) for each in KEY_BYTES), key=lambda each: each.at)
            async with self._broker.judging:
                if not await asyncio.to_thread(plain.is_right, known, password):
                    raise NotAuthenticated("a wrong password, or no such user")
            self._let_in(call, known)
        except NotAuthenticated as no:
            why = str(no)
            self._broker.in_turn(lambda: refuse(why))
        else:
            self._broker.in_turn(lambda: answer(b""))

    def _let_in(self, call: Call, known: Known) -> None:
        """Unless that was changed while it was being asked."""
        if not self._is_current(known):
            raise NotAuthenticated("its password was changed, or it was removed, just now")
        self._known = known
        self.wants_bare = self._is_judging = False
        call.door.authenticated(known.name)


# ---- requests ----


def handle_handshake(_: Broker, call: Call) -> None:
    session = call.door.session
    mechanism: str = decode_request(call.frame).body.mechanism
    if session is None or not session.wants_handshake:
        call.answer_with({"error_code": ErrorCode.illegal_sasl_state, "mechanisms": MECHANISMS})
    elif mechanism not in MECHANISMS:
        call.answer_with({"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": MECHANISMS})
        call.door.turn_away(f"wants to authenticate with {mechanism[:50]!r}, which is not offered")
    else:
        session.begin(mechanism, bare=call.head.version == 0)
        call.answer_with({"error_code": ErrorCode.none, "mechanisms": MECHANISMS})


def handle_authenticate(_: Broker, call: Call) -> None:
    session = call.door.session

    def refuse(code: ErrorCode, message: str) -> None:
        values = {"error_code": code, "error_message": message, "auth_bytes": b""}
        call.answer_with(values | {"session_lifetime": timedelta(0)})

    def refuse_token(why: str) -> None:
        refuse(
            ErrorCode.sasl_authentication_failed, "authentication failed: a wrong password, or no such user"
        )
        call.door.turn_away(f"not authenticated: {why}")

    def answer(token: bytes) -> None:
        values = {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": token}
        call.answer_with(values | {"session_lifetime": timedelta(0)})

    token: bytes = decode_request(call.frame).body.auth_bytes
    if session is None or not session.wants_token:
        refuse(ErrorCode.illegal_sasl_state, OUT_OF_TURN)
    else:
        session.step(call, token, answer, refuse_token)


def handle_bare(call: Call) -> None:
    """A token without a header; where it does not do, all that the client hears is that the connection ends."""

    def refuse(why: str) -> None:
        call.door.turn_away(f"not authenticated: {why}")

    def answer(token: bytes) -> None:
        call.answer([_SIZE.pack(len(token)) + token], _SIZE.size + len(token))

    session = call.door.session
    if session is None or not session.wants_token:
        raise BadMessage(OUT_OF_TURN)
    session.step(call, bytes(call.frame), answer, refuse)
