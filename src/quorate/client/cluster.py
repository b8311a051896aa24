"""A cluster as a client sees it: topics, who leads their partitions, and how to ask the leader.

Leaders move and nodes die; a call goes on through that. It asks the leader that it knows of. When the node is
gone, or says that it leads no more, it asks any node for the metadata anew and tries again, a little later
each time, until its time is over. Only answers that trying again cannot mend are raised at once. These requests
only read, or do no harm when they are asked twice; what changes something is asked once (`ask_once`).
"""

from __future__ import annotations

import math
import random
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from types import TracebackType
from typing import Any, NamedTuple, Self

from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.client.connection import Connection, left
from quorate.client.errors import (
    AttemptOver,
    BadAnswer,
    OffsetOutOfRange,
    Refused,
    TopicReplaced,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from quorate.client.requests import (
    LIST_OFFSETS_VERSION,
    METADATA_VERSION,
    PRODUCE_VERSION,
    metadata_request,
    offsets_request,
    produce_request,
)
from quorate.client.security import Security
from quorate.wire import joint
from quorate.wire.cursor import BadMessage
from quorate.wire.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchRequest,
    WantedPartition,
    WantedTopic,
)
from quorate.wire.messages import Api

EARLIEST, LATEST = -2, -1
"""In place of a timestamp: the first offset that is kept, and the one behind the last that is settled."""

FETCH_VERSION = 13
"""Fetch from 13 names topics by id: a topic that was created anew is not taken for the old one."""
OVER = (
    ErrorCode.invalid_producer_epoch,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_producer_id_mapping,
)
"""What a partition says of a transaction that timed out, was aborted, fenced or committed."""

TRY_S = 5.0
"""How long one node may take for one answer, beyond what it was told to wait."""
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.02, 0.5
SOON_S = 0.5
"""A node that is well answers by then, so others are asked before one is waited for."""
UNKNOWN_GRACE_S = 1.5
"""What has just changed (a topic was created, perhaps anew, or has more partitions) is not known to every node at
once: for so long an answer that lacks something is not believed, and others are asked."""
NO_LEADER = -1
NO_COUNTS: Mapping[str, int] = {}

Address = tuple[str, int]


class PartitionInfo(NamedTuple):
    number: int
    leader: int
    """-1 while there is none."""
    leader_epoch: int


class TopicInfo(NamedTuple):
    name: str
    id: bytes
    partitions: tuple[PartitionInfo, ...]
    """By number, from 0 on."""


class Fetched(NamedTuple):
    batches: list[memoryview]
    """Whole record batches, the first of which may begin below the offset asked for."""
    high_watermark: int
    """One behind the last settled offset."""
    log_start: int
    aborted: Sequence[tuple[int, int]] = ()
    """Producer and first offset of transactions among the batches that were aborted, if only what is committed was
    asked for."""


class Cluster:
    """Use it as a context manager. For one thread."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "quorate",
        timeout_s: float = 30.0,
        security: Security | None = None,
    ) -> None:
        """`security`: where nodes are spoken to with TLS, or ask for a password. Raises NotLetIn, then, too."""
        self.bootstrap = bootstrap
        self._security = security
        self.timeout_s = timeout_s
        self._client_id = client_id
        self._first = parse_bootstrap(bootstrap)
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._ids: dict[str, bytes] = {}
        """Of every topic that was ever seen here, or is expected."""
        self._connections: dict[Address, Connection] = {}
        self._coordinators: dict[str, int] = {}
        """Who answered for an app last."""
        self._told_by: dict[str, Address] = {}
        """Which node said what is known of a topic."""
        self._asked_last: dict[Address, float] = {}
        """Nodes that did not answer, or whose metadata was no good, by when that was: others are asked before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # ---- what can be asked ----

    def topics(self, names: Sequence[str], counts: Mapping[str, int] = NO_COUNTS) -> dict[str, TopicInfo]:
        """What these topics are now; raises UnknownTopic and TopicReplaced.

        `counts`: how many partitions topics are known to have. Where an answer has fewer, others are asked for a
        while, as for a topic that is not known; then it stands.
        """
        return self._find(names, monotonic() + self.timeout_s, counts)

    def every_topic(self) -> dict[str, TopicInfo]:
        """All that there are now, without those that the cluster keeps for itself; raises TopicReplaced."""
        return self._find(None, monotonic() + self.timeout_s)

    def expect(self, topic: str, topic_id: bytes) -> None:
        """From now on another topic of this name is a TopicReplaced."""
        self._ids[topic] = topic_id

    def expect_any(self, topic: str) -> None:
        """Whichever topic has this name next is the one that is meant."""
        self._ids.pop(topic, None)
        self._topics.pop(topic, None)

    def offsets(
        self, topic: str, wanted: Mapping[int, int], *, committed: bool = False
    ) -> dict[int, int | None]:
        """For each partition the offset that belongs to EARLIEST, LATEST or a timestamp in milliseconds.

        None where no record is as young as the timestamp. `committed`: LATEST is before the first open transaction.
        """
        missing = dict(wanted)
        found: dict[int, int | None] = {}
        tries = self._tries(f"the offsets of {topic}")
        while missing:
            tries.next()
            for leader, numbers in self._by_leader(topic, sorted(missing), tries).items():
                body = offsets_request(topic, {number: missing[number] for number in numbers}, committed)
                try:
                    address = self._address(leader)
                    answer = self._ask(address, Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, body, tries.deadline)
                except (OSError, BadMessage) as error:
                    tries.trouble = f"node {leader}: {in_words(error)}"
                    continue
                for part in (part for each in answer.topics for part in each.partitions):
                    if trouble := self._judge(part.error_code, topic, part.partition_index):
                        tries.trouble = trouble
                    elif missing.pop(part.partition_index, None) is not None:
                        found[part.partition_index] = part.offset if part.offset >= 0 else None
            if missing:
                self._forget(topic)
        return found

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        wait_s: float = 0.0,
        committed: bool = False,
    ) -> Fetched:
        """What is settled from `offset` on; empty if nothing was within `wait_s`. Raises OffsetOutOfRange.

        `committed`: nothing behind the first open transaction, and with it which of the transactions were aborted.
        """
        tries = self._tries(f"{topic}-{partition} from offset {offset}")
        while True:
            tries.next()
            for leader in self._by_leader(topic, [partition], tries):
                asked = WantedPartition(partition, offset, bytes_max)
                wanted = [WantedTopic(topic, self._topics[topic].id, [asked])]
                isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
                request = FetchRequest(round(wait_s * 1000), 1, bytes_max, wanted, isolation)
                deadline = tries.deadline + wait_s
                try:
                    with self._connected(self._address(leader), deadline) as connection:
                        error, topics = connection.fetch(FETCH_VERSION, request, deadline=deadline)
                except (OSError, BadMessage) as trouble:
                    tries.trouble = f"node {leader}: {in_words(trouble)}"
                    continue
                found = next((part for each in topics for part in each.partitions), None)
                code = error_code(found.error if found is not None else error)
                if code == ErrorCode.offset_out_of_range:
                    raise OffsetOutOfRange(topic, partition, offset)
                tries.trouble = self._judge(code, topic, partition)
                if found is not None and not tries.trouble:
                    batches = [memoryview(batch) for batch in found.batches]
                    return Fetched(batches, found.high_watermark, found.log_start, found.aborted)
            self._forget(topic)

    def produce(
        self, topic: str, batches: Mapping[int, batch.Buffer], *, transactional_id: str | None = None
    ) -> dict[int, int]:
        """Append one batch to each of these partitions; their offsets, when a quorum has flushed them all.

        Batches with a producer id may be sent more than once, and count once. Raises Refused, and AttemptOver where
        the transaction that they are of is not open.
        """
        missing = dict(batches)
        offsets: dict[int, int] = {}
        tries = self._tries(f"appending to {topic}")
        while missing:
            tries.next()
            bodies = {
                leader: produce_request(
                    topic, {number: missing[number] for number in numbers}, transactional_id, TRY_S
                )
                for leader, numbers in self._by_leader(topic, sorted(missing), tries).items()
            }
            for answer in self._ask_each(bodies, Api.PRODUCE, PRODUCE_VERSION, tries):
                for part in (part for each in answer.responses for part in each.partition_responses):
                    if part.error_code in OVER and transactional_id is not None:
                        raise AttemptOver(transactional_id, error_code(part.error_code).name)
                    if trouble := self._judge(part.error_code, topic, part.index):
                        tries.trouble = trouble
                    elif missing.pop(part.index, None) is not None:
                        offsets[part.index] = part.base_offset
            if missing:
                self._forget(topic)
        return offsets

    def ask_joint(self, request: joint.Request) -> joint.Answer:
        """Of whoever coordinates the app's transactions; anything but `Again`."""
        tries = self._tries(f"joint transactions of {request.app}")
        leader = self._coordinators.get(request.app, 0)
        while True:
            tries.next()
            try:
                if leader not in self._nodes:
                    self._refresh([], tries.deadline)
                    leader = leader if leader in self._nodes else random.choice(list(self._nodes))
                with self._connected(self._nodes[leader], tries.deadline) as connection:
                    answer = connection.ask_joint(request, deadline=tries.deadline)
            except (OSError, BadMessage) as error:
                # What comes with the end of the time says less than an answer before it.
                is_last_word = tries.trouble and monotonic() >= tries.end
                if not is_last_word:
                    tries.trouble = f"node {leader}: {in_words(error)}"
                self._nodes.pop(leader, None)
                leader = 0
                continue
            if not isinstance(answer, joint.Again):
                self._coordinators[request.app] = leader
                return answer
            tries.trouble = answer.why
            leader = answer.leader or leader

    # ---- asking ----

    def _tries(self, what: str) -> _Tries:
        return _Tries(what, self.bootstrap, self.timeout_s, monotonic() + self.timeout_s)

    def _address(self, node: int) -> Address:
        if node not in self._nodes:
            raise ConnectionError("its address is not known")
        return self._nodes[node]

    def _ask(self, address: Address, api: Api, version: int, body: Any, deadline: float) -> Any:
        with self._connected(address, deadline) as connection:
            return connection.ask(api, version, body, deadline=deadline)

    def _ask_each(self, bodies: Mapping[int, Any], api: Api, version: int, tries: _Tries) -> list[Any]:
        """One request for each of these nodes, all under way together; the answers of those that gave one."""
        answers: list[Any] = []
        sent: dict[int, Address] = {}
        try:
            for node, body in bodies.items():
                with self._noted(node, tries):
                    address = self._address(node)
                    with self._connected(address, tries.deadline) as connection:
                        connection.send(api, version, body, deadline=tries.deadline)
                    sent[node] = address
            for node in list(sent):
                with self._noted(node, tries), self._connected(sent[node], tries.deadline) as connection:
                    answers.append(connection.receive(api, version, deadline=tries.deadline))
                    del sent[node]
        finally:
            for address in sent.values():
                # As in _connected: what nobody waited for must not answer the next request.
                if (left_over := self._connections.pop(address, None)) is not None:
                    left_over.close()
        return answers

    @contextmanager
    def _noted(self, node: int, tries: _Tries) -> Iterator[None]:
        """What goes wrong with one node is its trouble; others are asked all the same."""
        try:
            yield
        except (OSError, BadMessage) as error:
            tries.trouble = f"node {node}: {in_words(error)}"

    def _connect(self, address: Address, deadline: float) -> Connection:
        if address not in self._connections:
            connection = Connection(
                *address, client_id=self._client_id, deadline=deadline, security=self._security
            )
            self._connections[address] = connection
        return self._connections[address]

    @contextmanager
    def _connected(self, address: Address, deadline: float) -> Iterator[Connection]:
        connection = self._connect(address, deadline)
        try:
            yield connection
        except BaseException:
            # Also when interrupted: an answer that nobody waited for must not answer the next request.
            self._connections.pop(address, None)
            connection.close()
            raise

    def _judge(self, code: ErrorCode, topic: str, partition: int) -> str:
        """What is wrong for now, empty if nothing is; raises Refused for what stays wrong."""
        if code == ErrorCode.none:
            return ""
        if not code.retriable:
            raise Refused(f"{topic}-{partition}: the node refuses: {code.name} ({int(code)})")
        return code.name.replace("_", " ")

    # ---- who leads ----

    def _by_leader(self, topic: str, numbers: Sequence[int], tries: _Tries) -> dict[int, list[int]]:
        """Partitions by the node that leads them, without those that nobody leads."""
        count = max(numbers, default=0) + 1
        if topic not in self._topics or len(self._topics[topic].partitions) < count:
            self._find([topic], tries.end, {topic: count})
        partitions = self._topics[topic].partitions
        grouped: dict[int, list[int]] = {}
        for number in numbers:
            if not 0 <= number < len(partitions):
                raise UnknownPartition(topic, number, len(partitions))
            if (leader := partitions[number].leader) != NO_LEADER:
                grouped.setdefault(leader, []).append(number)
            else:
                tries.trouble = f"{topic}-{number} has no leader"
        return grouped

    def _find(
        self, names: Sequence[str] | None, end: float, counts: Mapping[str, int] = NO_COUNTS
    ) -> dict[str, TopicInfo]:
        """These topics (None: all), as nodes have them that are not behind."""
        believed_from = math.inf
        what = "the topics" if names is None else f"topic {', '.join(names)}"
        tries = _Tries(what, self.bootstrap, self.timeout_s, end)
        while True:
            tries.next()
            try:
                seen = self._refresh(names, tries.deadline)
            except (OSError, BadMessage) as error:
                tries.trouble = in_words(error)
                continue
            tries.trouble = seen.trouble
            now = monotonic()
            if seen.lacks(counts) and now < (believed_from := min(believed_from, now + UNKNOWN_GRACE_S)):
                tries.trouble = "whoever answers does not know all of it"
                self._asked_last[seen.said_by] = now
            elif seen.unknown:
                raise UnknownTopic(seen.unknown[0])
            elif seen.replaced:
                raise TopicReplaced(seen.replaced[0])
            elif not seen.trouble:
                self._note(seen, is_asked_for=names is not None)
                return seen.found

    def _note(self, seen: _Seen, *, is_asked_for: bool) -> None:
        self._asked_last.pop(seen.said_by, None)
        self._topics |= seen.found
        self._told_by |= dict.fromkeys(seen.found, seen.said_by)
        if is_asked_for:  # Of what was only seen beside others, anything may become.
            self._ids = {name: topic.id for name, topic in seen.found.items()} | self._ids

    def _forget(self, topic: str) -> None:
        """Ask anew who leads, next time; and somebody else: a node that is cut off knows of nobody who leads."""
        if self._topics.pop(topic, None) is not None:
            self._asked_last[self._told_by[topic]] = monotonic()

    def _refresh(self, names: Sequence[str] | None, deadline: float) -> _Seen:
        """What the first says who answers."""
        said_by, answer = self._answer_of_anybody(
            Api.METADATA, METADATA_VERSION, metadata_request(names), deadline
        )
        self._nodes = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        seen = _Seen(said_by)
        for topic in answer.topics:
            name = str(topic.name)
            if topic.error_code in (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception):
                seen.unknown.append(name)
            elif topic.error_code != ErrorCode.none:
                seen.trouble = self._judge(topic.error_code, name, 0)
            elif names is not None or not topic.is_internal:
                info = _topic_info(topic)
                if self._ids.get(name, info.id) == info.id:
                    seen.found[name] = info
                else:
                    seen.replaced.append(name)
        return seen

    def ask_anybody(self, api: Api, version: int, body: Any, deadline: float) -> Any:
        """Whoever is connected first; a node that is down costs a refused connection, not the whole time.

        One that hangs costs a moment: all are asked to answer soon, and only then is anybody waited for. Then one
        gets its share of the time, and leaves the rest for the others.
        """
        return self._answer_of_anybody(api, version, body, deadline)[1]

    def _answer_of_anybody(self, api: Api, version: int, body: Any, deadline: float) -> tuple[Address, Any]:
        addresses = self._addresses()
        worst: Exception | None = None
        rounds = [(address, SOON_S) for address in addresses] if len(addresses) > 1 else []
        rounds += [(address, math.inf) for address in addresses]
        for number, (address, patience_s) in enumerate(rounds):
            share_s = max(left(deadline) / (len(rounds) - number), 0.1)
            try:
                return address, self._ask(address, api, version, body, monotonic() + min(share_s, patience_s))
            except (OSError, BadMessage) as error:
                worst = _worst(worst, address, error)
                self._asked_last[address] = (
                    monotonic() + TRY_S
                )  # That costs more than an answer that is no good.
        assert worst is not None
        raise worst

    def ask_node(self, node: int, api: Api, version: int, body: Any, deadline: float) -> Any:
        """That one, and nobody else."""
        if node not in self._nodes:
            self._refresh([], deadline)
        return self._ask(self._address(node), api, version, body, deadline)

    def ask_once(self, api: Api, version: int, body: Any, deadline: float) -> Any:
        """The first node that can be connected to, and nobody else: whoever was asked may have done it."""
        worst: Exception | None = None
        for address in self._addresses():
            try:
                self._connect(address, deadline)
            except OSError as error:
                worst = _worst(worst, address, error)
            else:
                return self._ask(address, api, version, body, deadline)
        assert worst is not None
        raise worst

    def _addresses(self) -> list[Address]:
        every = dict.fromkeys([*self._connections, *self._nodes.values(), *self._first])
        return sorted(every, key=lambda address: self._asked_last.get(address, 0.0))


class _Seen:
    """What one node says of topics."""

    def __init__(self, said_by: Address) -> None:
        self.said_by = said_by
        self.found: dict[str, TopicInfo] = {}
        self.unknown: list[str] = []
        self.replaced: list[str] = []
        """Others have their names now, or had them before: this node may be the one that is behind."""
        self.trouble = ""
        """What is wrong for now."""

    def lacks(self, counts: Mapping[str, int]) -> bool:
        has_fewer = any(len(topic.partitions) < counts.get(name, 0) for name, topic in self.found.items())
        return bool(self.unknown or self.replaced) or has_fewer


class _Tries:
    """Tries with growing pauses between them, until an end; what went wrong last is told with it."""

    def __init__(self, what: str, bootstrap: str, timeout_s: float, end: float) -> None:
        self.end = end
        self.deadline = 0.0
        """Of one try."""
        self.trouble = ""
        self._what = what
        self._whom = f"{bootstrap} within {timeout_s:g} s"
        self._pause_s = 0.0

    def next(self) -> None:
        """Wait a little, except before the first; raises Unreachable when the time is over."""
        if monotonic() + self._pause_s >= self.end:
            raise Unreachable(
                f"{self._what}: no answer from {self._whom} ({self.trouble or 'nobody answers'}); "
                f"is a majority of the nodes up?"
            )
        sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(max(self._pause_s * 2, BACKOFF_MIN_S), BACKOFF_MAX_S)
        self.deadline = min(self.end, monotonic() + TRY_S)


def _topic_info(topic: Any) -> TopicInfo:
    partitions = sorted(
        PartitionInfo(part.partition_index, part.leader_id, part.leader_epoch) for part in topic.partitions
    )
    if [part.number for part in partitions] != list(range(len(partitions))):
        raise BadAnswer(f"the partitions of topic {topic.name!r} are not numbered from 0 on")
    return TopicInfo(
        str(topic.name), topic.topic_id.bytes if topic.topic_id else bytes(16), tuple(partitions)
    )


# ---- helpers ----


def _worst(before: Exception | None, address: Address, error: Exception) -> Exception:
    """What went wrong where. That nobody listens somewhere says less than whatever another node did."""
    said = f"{address[0]}:{address[1]}: {in_words(error)}"
    if not isinstance(error, ConnectionRefusedError):
        return ConnectionError(said)
    return before or ConnectionRefusedError(said)


def error_code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error


def parse_bootstrap(text: str) -> list[Address]:
    """`host:port,host:port`; raises ValueError with a line for a person."""
    addresses = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            raise ValueError(
                f"{part.strip()!r} is no address of a node; write host:port, with commas between several"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses


def in_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
