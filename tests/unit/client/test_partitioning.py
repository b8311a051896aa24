"""Keys belong where Java's client puts them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.client.partitioning import hashes_of, murmur2, partitions_of


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_has_javas_hash(key: bytes, hashed: int) -> None:
    """The values of Kafka's own tests."""
    assert murmur2(key) == hashed % (1 << 32)


@given(st.lists(st.binary(max_size=40) | st.integers(1020, 1030).map(bytes), min_size=1, max_size=30))
def test_many_keys_have_the_hashes_of_each(keys: list[bytes]) -> None:
    data = np.frombuffer(b"".join(keys) or b"\0", np.uint8)
    lengths = np.array([len(key) for key in keys], np.int64)
    at = np.cumsum(lengths) - lengths
    assert hashes_of(data, at, lengths).tolist() == [murmur2(key) for key in keys]
    expected = [(murmur2(key) & 0x7FFF_FFFF) % 7 for key in keys]
    assert partitions_of(data, at, lengths, 7).tolist() == expected
