"""The Kafka wire protocol in both directions: framing, schemas, and the hot paths by hand. No server code.

`messages` is every request and response that is served, over kio's schemas. `produce` and `fetch` are the
two that carry records, written by hand so that record batches stay views of the bytes they came in.
`cursor` reads bytes of unknown origin; `entities` reads a whole message by its schema with it.
"""

from quorate.wire import kio_alone as kio_alone  # before anything else imports kio
