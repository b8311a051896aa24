"""Spark looks into modules named pyspark_* for a DefaultSource: so `format("quorate")` needs no registration.

Spark imports this whenever any Python data source is used. Where quorate's part cannot work (no pyarrow, a
Spark that is too old), the others must go on working: whoever asks for "quorate" hears why, and nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    from quorate.spark.source import QuorateSource as DefaultSource
except ImportError as error:
    from pyspark import __version__
    from pyspark.sql.datasource import DataSource

    WHY = (
        f'format("quorate") needs Spark 4.2 or newer (this is {__version__}), and Quorate installed with its extra '
        f"[spark]: {error}"
    )

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """In place of the one that could not be imported."""

        def __init__(self, options: Mapping[str, str]) -> None:
            raise RuntimeError(WHY)

        @classmethod
        def name(cls) -> str:
            return "quorate"

        def schema(self) -> Any:
            raise RuntimeError(WHY)


__all__ = ["DefaultSource"]
