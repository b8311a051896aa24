"""What all tests share: how hard hypothesis tries, where tests run, the switch that rewrites expectations."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A sample is the same in every run, so that a failure is never somebody else's. A proof looks further.
settings.register_profile(
    "sample",
    deadline=None,
    derandomize=True,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "proof",
    deadline=None,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("sample")

# A shell's `&` ignores Ctrl-C for what it starts, and for all that this starts. Tests press it for their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what scenarios print as what they expect, for a person to read the diff",
    )


# ---- tests in several processes ----

TOGETHER = ("tests/spark/", "tests/cluster/test_demo.py")
"""They share one Spark, which takes ten seconds to start and memory to hold; the demo's own runs after it."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Any test goes to whichever process is free, except those that belong together; those go first."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(TOGETHER) else nodeid

    return Together(config, log)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether expected output is to be rewritten instead of compared."""
    return bool(request.config.getoption("--rewrite"))
