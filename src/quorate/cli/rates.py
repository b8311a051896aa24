"""How much a second, as people write it."""

from __future__ import annotations

import re

from quorate.cli.wrong import WrongUsage

UNLIMITED = -1
RATE_MAX = 1 << 50
_RATE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(?:([kmg])(i?))?b?(?:/s)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def parse_rate(text: str, option: str, *, least: int = 0) -> int:
    """`20MiB/s`, `20mib`, `800k`, in bytes a second; `off`: -1. Raises WrongUsage, also below the `least`."""
    if text.strip().lower() in ("off", "none", "-1"):
        return UNLIMITED
    found = _RATE.fullmatch(text.strip())
    rate = least - 1
    if found is not None:
        count, unit, is_binary = found.groups("")
        rate = round(float(count) * (1024 if is_binary else 1000) ** _POWERS[unit.lower()])
    if rate < least:
        raise WrongUsage(
            f"{option} {text!r}: write how much in a second, as in 20MiB/s or 800k, or off: no limit"
        )
    if rate > RATE_MAX:
        raise WrongUsage(f"{option} {text!r}: that is more than anybody can send; write off: no limit")
    return rate
