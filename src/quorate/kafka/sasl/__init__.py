"""Who is there? SASL for Kafka clients: two requests, and three ways to show that a password is known.

`session.py` is one connection's way from nobody to somebody; `scram.py` and `plain.py` are what is said on it,
`credentials.py` what it is compared with.
"""

from quorate.kafka.sasl.session import Session, handle_authenticate, handle_handshake

__all__ = ["Session", "handle_authenticate", "handle_handshake"]
