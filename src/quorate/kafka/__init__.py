"""The broker side of the Kafka protocol: what a node says to Kafka clients.

`guests(node)` is what a node is started with to serve them; `python -m quorate.kafka --config FILE` runs such a
node. See docs/KAFKA.md for what is served, and door.py for a request's way through these files.
"""

import quorate.wire  # noqa: F401  # before anything here imports kio
from quorate.kafka.broker import Broker
from quorate.kafka.door import Door, guests

__all__ = ["Broker", "Door", "guests"]
