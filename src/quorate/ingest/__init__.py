"""Messages from a NATS server into topics: each node subscribes to the subjects of what it leads.

`Ingest(node, …)` is made once in a node that serves clients. See docs/NATS.md for what is promised, feed.py for a
message's way into the log, ingest.py for connections and leadership.
"""

from quorate.ingest.ingest import Ingest
from quorate.ingest.subjects import SUBJECT, why_bad_subject

__all__ = ["SUBJECT", "Ingest", "why_bad_subject"]
