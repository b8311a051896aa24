"""What can go wrong between a client and its cluster. Each says in one line what, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class ClientError(Exception):
    """Any of the errors below; str() is one line for a person."""


class Unreachable(ClientError):
    """Nobody answered as asked until the time was over."""


class NobodyThere(Unreachable):
    """Nobody listens at any of the addresses: it may be another place that was meant."""


class UnknownTopic(ClientError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"there is no topic {topic!r} in the cluster; create it, or mend its name")
        self.topic = topic


class UnknownPartition(ClientError):
    def __init__(self, topic: str, partition: int, partitions_count: int) -> None:
        super().__init__(
            f"topic {topic!r} has no partition {partition}; it has {partitions_count}, counted from 0"
        )


class TopicReplaced(ClientError):
    """A topic of this name was deleted and created anew: its offsets mean something else now."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} was deleted and created anew while it was being read; start again, "
            f"with a new checkpoint if this is a streaming query"
        )
        self.topic = topic


class OffsetOutOfRange(ClientError):
    """The offset is not in the log: removed already, or not settled yet."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(f"offset {offset} is not in the log of {topic}-{partition}")
        self.offset = offset


class OffsetsMissing(ClientError):
    """Settled offsets that were asked for are gone."""

    def __init__(self, topic: str, partition: int, *, first: int, end: int) -> None:
        super().__init__(
            f"offsets {first} to {end - 1} of {topic}-{partition} are not in the log any more; "
            f"start behind them, or set failOnDataLoss to false to go on without them"
        )
        self.end = end


class TopicGone(ClientError):
    """A topic that was being read is not there any more."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} was read and is not in the cluster any more; what was not read of it is lost: "
            f"set failOnDataLoss to false to go on without it"
        )


class PartitionsGone(ClientError):
    """Partitions that were being read are not there any more, though their topic is."""

    def __init__(self, topic: str, partitions: Sequence[int]) -> None:
        named = ", ".join(map(str, partitions))
        super().__init__(
            f"partitions {named} of topic {topic!r} were read and are not in the cluster any more; what was not "
            f"read of them is lost: set failOnDataLoss to false to go on without them"
        )


class Refused(ClientError):
    """A node answered with an error that trying again does not mend."""


class BadAnswer(ClientError):
    """What a node sent is not what was asked for, or its checksum is wrong."""


class UnknownGroup(ClientError):
    def __init__(self, group: str) -> None:
        super().__init__(
            f"there is no group of tables {group!r} in the cluster; create it (`quorate table create`), "
            f"or mend its name"
        )
        self.group = group


class UnknownConsumers(ClientError):
    def __init__(self, group: str) -> None:
        super().__init__(f"there is no consumer group {group!r}; `quorate group list` shows those there are")
        self.group = group


class GroupReplaced(ClientError):
    """A group of this name was deleted and created anew: its offsets and versions mean something else now."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group of tables {group!r} was deleted and created anew; open it again")


class SnapshotLost(ClientError):
    """A node does not know a snapshot any more: it was restarted, or nobody asked for too long."""

    def __init__(self, group: str, node: int) -> None:
        super().__init__(f"node {node} has lost the snapshot of {group!r} that was being read; begin again")


class ChangesGone(ClientError):
    """What a table was, or what has changed in it, is too long ago: no copy keeps it any more."""

    def __init__(self, group: str, table: str, first: int, kept_from: int) -> None:
        super().__init__(
            f"changes of {group}/{table} are wanted from offset {first} on, and are kept from {kept_from} on: what "
            f"lies between is gone; begin with a snapshot, under a new checkpoint"
        )
        self.kept_from = kept_from


class TransactionRefused(ClientError):
    """A transaction was settled and changed nothing: the tables say why."""


class RolledBack(ClientError):
    """A transaction was there and was taken back, with all that came behind it. It can be begun anew."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the transaction was rolled back: {why}")


class OutcomeUnknown(ClientError):
    """A transaction may have been done, or may be yet. `id` is what to ask for later, with `result`."""

    def __init__(self, id_: bytes, why: str) -> None:
        super().__init__(
            f"it is not known what became of transaction {id_.hex()} {why}; ask for it by its id"
        )
        self.id = id_


class RunFenced(ClientError):
    """A newer run of the same app has begun: this one is over."""

    def __init__(self, app: str, run: str) -> None:
        super().__init__(f"run {run!r} of {app!r} is over: a newer run has begun; stop this one")


class CommitFailed(ClientError):
    """A joint transaction was not published, no part of it: one is gone, or not all of it is there."""


class AttemptOver(ClientError):
    """Nothing can be appended any more: the attempt timed out, was given up, fenced or committed."""

    def __init__(self, app: str, code: str) -> None:
        super().__init__(
            f"{app}: this attempt is over ({code}): it timed out, was given up, fenced or committed; open another"
        )
