from __future__ import annotations

import time

import msgspec
import pytest

from headrace.errors import BadRequest
from headrace.types import (
    SystemClock,
    format_duration,
    json_fault,
    media_type,
    parse_duration_us,
    parse_timestamp_us,
    rfc3339,
)

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "micros"),
    [("15s", 15 * SECOND), ("24h", 86_400 * SECOND), ("1h30m", 5_400 * SECOND), ("250ms", 250_000), ("0s", 0)],
)
def test_a_duration_is_read_with_its_units(text: str, micros: int) -> None:
    assert parse_duration_us(text, "Stream-TTL") == micros


@pytest.mark.parametrize(
    ("micros", "text"), [(90 * SECOND, "90s"), (3600 * SECOND, "1h"), (1_500_000, "1500ms"), (0, "0d")]
)
def test_a_duration_is_written_in_its_largest_whole_unit(micros: int, text: str) -> None:
    assert format_duration(micros) == text
    assert parse_duration_us(text, "age") == micros


def test_a_refused_duration_names_its_field_and_shows_what_would_do() -> None:
    with pytest.raises(BadRequest, match="Stream-TTL: 'soon' is not a duration such as 15s") as refusal:
        parse_duration_us("soon", "Stream-TTL")
    assert refusal.value.facts == {"field": "Stream-TTL"}


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01T00:00:01Z", SECOND),
        ("1970-01-01t02:00:01.5+02:00", 1_500_000),
        ("1969-12-31T23:59:59-00:00", -SECOND),
        ("1970-01-01T00:00:00.000001999Z", 1),
        ("1000001999", 1_000_001),
    ],
)
def test_a_moment_is_rfc_3339_or_unix_nanoseconds(text: str, micros: int) -> None:
    assert parse_timestamp_us(text, "since") == micros


@pytest.mark.parametrize(
    "text",
    [
        "",
        "today",
        "2024-02-30T00:00:00Z",
        "2024-01-01",
        "2024-01-01T00:00:00",
        "-5",
        "1e9",
        "2024",
        "2024122",
        "20240501",
        "20240501123000",
    ],
)
def test_what_is_no_moment_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse_timestamp_us(text, "since")
    assert refusal.value.facts == {"field": "since"}


def test_a_moment_is_written_in_utc_and_without_an_empty_fraction() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00Z"
    assert rfc3339(1) == "1970-01-01T00:00:00.000001Z"


def test_moments_beyond_the_calendar_are_its_ends() -> None:
    assert rfc3339(10**30) == "9999-12-31T23:59:59.999999Z"
    assert rfc3339(-(10**30)) == "0001-01-01T00:00:00Z"


def test_parameters_and_letter_case_of_a_content_type_do_not_count() -> None:
    assert media_type(" Application/JSON ; charset=utf-8") == "application/json"


def test_the_system_clock_tells_microseconds_since_1970() -> None:
    assert abs(SystemClock().now_us() / SECOND - time.time()) < 5


@pytest.mark.parametrize(
    ("body", "at"),
    [
        (rb'{"x":"\ud800"}', 6),
        (rb'{"\uDC00":1}', 2),
        (rb'["\ud83d\ude00\ud83d"]', 14),
        (rb'"\\\ud800\u0041"', 3),
        (rb'"\udc00\ud800"', 1),
    ],
)
def test_a_lone_surrogate_is_named_as_such(body: bytes, at: int) -> None:
    for text in (body, body.decode()):
        with pytest.raises(msgspec.DecodeError) as fault:
            msgspec.json.decode(text)
        half = body[at : at + 6].decode()
        assert json_fault(fault.value, text).startswith(f"{half} at byte {at} is half of a surrogate pair")


@pytest.mark.parametrize("body", [rb'{"x":"\\ud800"', rb'["\ud83d\ude00"', b"{", b"\xff"])
def test_other_faults_of_json_are_told_as_they_are(body: bytes) -> None:
    with pytest.raises(ValueError) as fault:
        msgspec.json.decode(body)
    assert json_fault(fault.value, body) == str(fault.value)
