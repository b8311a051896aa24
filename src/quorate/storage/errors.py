"""What can be wrong with a store as a whole. Damage to a log is not an error: it is a faulty span."""

from __future__ import annotations


class StoreError(Exception):
    """A store cannot be opened or cannot do what was asked; says what, where and what to do."""


class ForeignDirectory(StoreError):
    """The directory holds something, but not a store."""


class DamagedStore(StoreError):
    """A store was here, and too little of it is readable to prove anything about its logs."""
