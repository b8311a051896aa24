"""Spark looks into modules named pyspark_* for a DefaultSource: so `format("quorate")` needs no registration.

Spark imports this whenever any Python data source is used. Where quorate's part cannot work (no pyarrow, a
Spark that is too old), the others must go on working: then there is a warning and no DefaultSource.
"""

import warnings

try:
    from quorate.spark.source import QuorateSource as DefaultSource
except ImportError as error:
    warnings.warn(
        f'format("quorate") is not available: {error}; it needs Spark 4.2, and Quorate with its extra [spark]',
        stacklevel=1,
    )
else:
    __all__ = ["DefaultSource"]
