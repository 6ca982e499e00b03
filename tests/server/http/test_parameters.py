from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadRequest
from headrace.format import offset as offsets
from headrace.server.http import parameters


def test_text_is_utf_8_of_bounded_length() -> None:
    assert parameters.text({}, b"stream-key") is None
    assert parameters.text({b"stream-key": "é".encode()}, b"stream-key") == "é"
    assert parameters.text({b"stream-key": b"x" * 1024}, b"stream-key") == "x" * 1024
    for raw in (b"\xff", b"x" * 1025):
        with pytest.raises(BadRequest) as refused:
            parameters.text({b"stream-key": raw}, b"stream-key")
        assert refused.value.facts["field"] == "Stream-Key"


@pytest.mark.parametrize(
    ("raw", "closes"),
    [
        (None, False),
        (b"true", True),
        (b"TRUE", True),
        (b" True ", True),
        (b"false", False),
        (b"", False),
        (b"1", False),
    ],
)
def test_only_true_closes(raw: bytes | None, closes: bool) -> None:
    assert parameters.closes({} if raw is None else {b"stream-closed": raw}) is closes


@given(st.integers(0, 2**53 - 1), st.integers(0, 2**53 - 1))
def test_a_producer_triple_is_read_as_written(epoch: int, seq: int) -> None:
    headers = {b"producer-id": b"p", b"producer-epoch": b"%d" % epoch, b"producer-seq": b"%d" % seq}
    assert parameters.producer(headers) == ("p", epoch, seq)


@given(st.text(max_size=30))
def test_any_text_is_an_offset_or_refused(text: str) -> None:
    try:
        found = parameters.offset(text)
    except BadRequest as refused:
        assert refused.facts["field"] == "offset"
        return
    assert text == "-1" or offsets.encode(*found) == text.upper().replace("O", "0").replace("I", "1").replace("L", "1")


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**64 - 1))
def test_every_minted_offset_is_read_back(epoch: int, position: int) -> None:
    text = offsets.encode(epoch, position)
    assert parameters.offset(text) == parameters.offset(text.lower()) == (epoch, position)


@pytest.mark.parametrize(
    ("given_", "seconds"),
    [({}, 4.0), ({"timeout": "1500"}, 1.5), ({"timeout": "2s"}, 2.0), ({"timeout_ms": "10"}, 0.01),
     ({"timeout": "0"}, 0.0), ({"timeout": "1", "timeout_ms": "9999"}, 0.001), ({"timeout": "1h"}, 60.0),
     ({"timeout": "9" * 18}, 60.0)],
)  # fmt: skip
def test_a_wait_is_milliseconds_or_a_duration_up_to_the_longest(given_: dict[str, str], seconds: float) -> None:
    assert parameters.wait_s(given_, 4.0, 60.0) == seconds


@pytest.mark.parametrize("value", ["", "-1", "1.5", "forever", "1e3", "٣", "5 s"])
def test_a_wait_that_is_none_is_refused(value: str) -> None:
    for name in ("timeout", "timeout_ms"):
        with pytest.raises(BadRequest):
            parameters.wait_s({name: value}, 4.0, 60.0)


def test_a_query_is_read_once_and_strictly() -> None:
    assert parameters.query(b"") == {}
    assert parameters.query(b"a=1&b=&c&d=%20+x") == {"a": "1", "b": "", "c": "", "d": "  x"}
    for raw in (b"a=1&a=2", b"a=%ff", b"\xff=1", b"&".join(b"p%d=1" % number for number in range(100))):
        with pytest.raises(BadRequest):
            parameters.query(raw)


@given(st.binary(max_size=80))
def test_any_query_is_read_or_refused(raw: bytes) -> None:
    try:
        found = parameters.query(raw)
    except BadRequest:
        return
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in found.items())


@pytest.mark.parametrize("value", ["0s", "0ms", "36600d1s", "1", "", "1w", "-1h"])
def test_a_retention_age_is_a_positive_duration(value: str) -> None:
    with pytest.raises(BadRequest):
        parameters.retention({b"stream-retention-age": value.encode()})


def test_retention_is_age_and_bytes() -> None:
    headers = {b"stream-retention-age": b"1h30m", b"stream-retention-bytes": b"0"}
    assert parameters.retention(headers) == (5_400_000_000, 0)
    assert parameters.retention({}) == (None, None)
    with pytest.raises(BadRequest):
        parameters.retention({b"stream-retention-bytes": b"1k"})
