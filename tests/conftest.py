"""What all tests share: how hard hypothesis tries, and the switch that rewrites expected output."""

from __future__ import annotations

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what scenarios print as what they expect, for a person to read the diff",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether expected output is to be rewritten instead of compared."""
    return bool(request.config.getoption("--rewrite"))
