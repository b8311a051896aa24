"""Which feature level a command needs: that of its kind, or of what it asks for."""

from __future__ import annotations

from quorate.machine.cluster import COMMAND_LEVELS
from quorate.machine.compactions import compacts
from quorate.machine.metadata import AlterTopic, Command, CreateTopic
from quorate.machine.purpose import TOPIC


def level_of(command: Command) -> int:
    """What everybody must know before this may be proposed."""
    topic = command.topic if isinstance(command, CreateTopic) else None
    if compacts(command.settings if isinstance(command, AlterTopic) else topic.config if topic else {}):
        return 3
    if topic is not None and (topic.replication, topic.purpose) != ("raft", TOPIC):
        return 2
    return COMMAND_LEVELS[str(command.__struct_config__.tag)]
