"""The server's side of SCRAM (RFC 5802; SHA-256: RFC 7677): two messages in, two answers out.

    client → n,,n=user,r=nonce                  server → r=nonce+ours,s=salt,i=iterations
    client → c=biws,r=nonce+ours,p=proof        server → v=signature

Channel binding is not offered; a client that asks for it is refused, and one that says it would have liked to
is not.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from secrets import token_urlsafe

from quorate.kafka.sasl.credentials import Known, NotAuthenticated
from quorate.wire.scram import HASHES, BadScram, attributes, bytes_in, decoded, text_of, unescaped, xor

NONCE_BYTES = 24
NONCE_CHARACTERS_MAX = 1024

Find = Callable[[str], Known]


class ScramServer:
    """One conversation. Each step raises NotAuthenticated, and then it is over."""

    def __init__(
        self, mechanism: str, find: Find, *, nonce: str | None = None, hash_name: str | None = None
    ) -> None:
        self._hash_name = hash_name or HASHES[mechanism]
        self._find = find
        self._own_nonce = nonce or token_urlsafe(NONCE_BYTES)
        self._header = ""
        self._said = ""
        """Both first messages: what the proofs are about."""
        self._nonce = ""
        self._known: Known | None = None
        self._is_over = False
        self.is_done = False

    def step(self, message: bytes) -> bytes:
        """The answer to the client's next message; when `is_done`, it is who it says."""
        if self._is_over:
            raise NotAuthenticated("this conversation is over")
        self._is_over = self._known is not None
        try:
            return self._first(decoded(message)) if self._known is None else self._final(decoded(message))
        except BadScram as bad:
            self._is_over = True
            raise NotAuthenticated(str(bad)) from bad

    @property
    def known(self) -> Known:
        assert self._known is not None
        return self._known

    def _first(self, message: str) -> bytes:
        binding, _, rest = message.partition(",")
        acting_as, _, bare = rest.partition(",")
        if binding not in ("n", "y"):
            raise BadScram("channel binding is not offered")
        given = attributes(bare)
        if list(given)[:2] != ["n", "r"]:
            raise BadScram("a name and a nonce come first")
        name, nonce = unescaped(given["n"]), given["r"]
        if acting_as and acting_as != f"a={given['n']}":
            raise BadScram("nobody acts for somebody else")
        if not 0 < len(nonce) <= NONCE_CHARACTERS_MAX or not nonce.isascii() or not nonce.isprintable():
            raise BadScram("a nonce that is none")
        self._known = self._find(name)
        self._header = f"{binding},{acting_as},"
        self._nonce = nonce + self._own_nonce
        credential = self._known.credential
        answer = f"r={self._nonce},s={text_of(credential.salt)},i={credential.iterations}"
        self._said = f"{bare},{answer}"
        return answer.encode()

    def _final(self, message: str) -> bytes:
        without_proof, _, proof_text = message.rpartition(",p=")
        given = attributes(without_proof)
        if list(given)[:2] != ["c", "r"] or not hmac.compare_digest(
            given["r"].encode(), self._nonce.encode()
        ):
            raise BadScram("another conversation's nonce")
        if bytes_in(given["c"]) != self._header.encode():
            raise BadScram("its first message was changed on the way")
        proof, credential = bytes_in(proof_text), self.known.credential
        if len(proof) != len(credential.stored_key):
            raise BadScram("a proof of another length")
        said = f"{self._said},{without_proof}".encode()
        client_key = xor(proof, hmac.digest(credential.stored_key, said, self._hash_name))
        stored_key = hashlib.new(self._hash_name, client_key).digest()
        is_right = hmac.compare_digest(stored_key, credential.stored_key)
        signature = hmac.digest(credential.server_key, said, self._hash_name)
        if not is_right or self.known.is_stranger:
            raise NotAuthenticated("a wrong password, or no such user")
        self.is_done = True
        return f"v={text_of(signature)}".encode()
