"""Transactions of others, from outside: that they end, and how they ended."""

from __future__ import annotations

from datetime import timedelta
from secrets import token_hex
from typing import Any

from kio.schema.errors import ErrorCode

from quorate.client.cluster import Cluster
from quorate.client.errors import BadAnswer, Refused
from quorate.client.groups import NOBODY, TRANSACTION, of_coordinator
from quorate.wire import joint
from quorate.wire.messages import Api

INIT_VERSION, DESCRIBE_VERSION = 4, 0
TIMEOUT = timedelta(milliseconds=1)
"""Of transactions that nobody begins here; one that is longer than the cluster allows would be refused."""
COMMITTED_STATES = ("PrepareCommit", "CompleteCommit")
"""As Kafka calls them."""


def abort_plain(cluster: Cluster, name: str) -> bool:
    """As if a producer began under this transactional id: who has it is fenced, and what that has open is aborted.

    False: it was committed just before. Markers may still be on their way. Raises Refused, Unreachable.
    """

    def errors(answer: Any) -> list[int]:
        # "Concurrent transactions" says that the end is decided, and that markers are being written.
        wrong = ErrorCode(answer.error_code)
        return [] if wrong is ErrorCode.concurrent_transactions else [wrong]

    values = {
        "transactional_id": name,
        "transaction_timeout": TIMEOUT,
        "producer_id": NOBODY,
        "producer_epoch": NOBODY,
    }
    of_coordinator(cluster, name, Api.INIT_PRODUCER_ID, INIT_VERSION, values, errors, key_type=TRANSACTION)
    return _state_of(cluster, name) not in COMMITTED_STATES


def _state_of(cluster: Cluster, name: str) -> str:
    _, answer = of_coordinator(
        cluster,
        name,
        Api.DESCRIBE_TRANSACTIONS,
        DESCRIBE_VERSION,
        {"transactional_ids": [name]},
        lambda answer: [answer.transaction_states[0].error_code],
        key_type=TRANSACTION,
    )
    return str(answer.transaction_states[0].transaction_state)


def abort_joint(cluster: Cluster, app: str, number: int) -> bool:
    """As if the app were started again: its run is fenced, and everything that it has open is aborted.

    False: this number was committed just before. Markers may still be on their way. Raises Refused, Unreachable.
    """
    answer = cluster.ask_joint(joint.Abort(app, number, f"abort-{token_hex(8)}"))
    if isinstance(answer, joint.Refused | joint.Failed):
        raise Refused(f"{app}: {answer.why}")
    if not isinstance(answer, joint.Aborted):
        raise BadAnswer(f"{app}: a node answered {type(answer).__name__}")
    return not answer.already_in
