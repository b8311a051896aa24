"""Times that a person types, as a log knows them."""

from __future__ import annotations

from datetime import datetime

from quorate.cli.wrong import WrongUsage


def as_ms(time: datetime, option: str) -> int:
    """Milliseconds since 1970; what was before that is 0, as no record is older. Raises WrongUsage."""
    try:
        return max(0, round(time.timestamp() * 1000))
    except (ValueError, OverflowError, OSError):  # The year 1, where the clock is ahead of Greenwich's.
        raise WrongUsage(f"{option} {time.isoformat()}: no clock was that early, or is that late") from None
