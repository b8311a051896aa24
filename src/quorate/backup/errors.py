"""What can go wrong with a backup. Each says in one line what, where, and what to do."""

from __future__ import annotations


class BackupError(Exception):
    """Any of the errors below; str() is one line for a person."""


class PlaceFailed(BackupError):
    """A directory or an object store refuses, or is not there."""


class NoBackup(BackupError):
    """There is nothing of that name in the place."""


class Damaged(BackupError):
    """Bytes are missing, or are not what was written."""


class WrongBackup(BackupError):
    """It cannot be done with this backup, or this topic: they do not belong together."""


class Stopped(BackupError):
    """Somebody wanted it to stop. What was done stands, and the same command goes on."""
