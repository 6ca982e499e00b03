from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.format.body_compression import pack, unpack


@given(st.binary(min_size=1, max_size=200), st.integers(10, 2_000))
def test_what_was_packed_is_unpacked_as_it_was(part: bytes, times: int) -> None:
    body = part * times
    packed = pack(body)
    assert packed is None or (len(packed) < len(body) and unpack(packed, len(body)) == body)


def test_what_repeats_itself_is_packed() -> None:
    body = b'{"type":"page_view","ok":true},' * 100
    packed = pack(body)
    assert packed is not None and len(packed) < len(body) // 10


@pytest.mark.parametrize("size", [2048, 100_000])
def test_noise_is_left_as_it_is(size: int) -> None:
    assert pack(Random(7).randbytes(size)) is None
