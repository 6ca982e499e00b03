"""Durations and moments, held against the standard library's datetime."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadRequest
from headrace.types import parse_duration_us, parse_timestamp_us, rfc3339

UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
zones = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))
moments = st.datetimes(
    min_value=datetime(2, 1, 1), max_value=datetime(9998, 12, 31), timezones=zones | st.just(UTC), allow_imaginary=False
)


def micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


@given(st.lists(st.tuples(st.integers(0, 9_999), st.sampled_from(sorted(UNITS))), min_size=1, max_size=5))
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert parse_duration_us(text, "f") == micros(sum((n * UNITS[u] for n, u in parts), timedelta()))


@given(moments)
def test_a_moment_in_any_zone_is_read_to_the_microsecond(moment: datetime) -> None:
    assert parse_timestamp_us(moment.isoformat(), "f") == micros(moment - EPOCH)


@given(moments)
def test_a_moment_as_text_is_read_back(moment: datetime) -> None:
    at = micros(moment - EPOCH)
    assert parse_timestamp_us(rfc3339(at), "f") == at
    assert datetime.fromisoformat(rfc3339(at)) == moment


@given(moments, st.text("0123456789", min_size=1, max_size=9))
def test_a_fraction_is_cut_to_microseconds(moment: datetime, fraction: str) -> None:
    second = moment.astimezone(UTC).replace(microsecond=0, tzinfo=None)
    expected = micros(second.replace(tzinfo=UTC) - EPOCH) + int(fraction.ljust(9, "0")) // 1000
    assert parse_timestamp_us(f"{second.isoformat()}.{fraction}Z", "f") == expected


@given(st.integers(0, 10**20 - 1))
def test_a_plain_number_is_unix_nanoseconds_unless_it_is_a_date(nanos: int) -> None:
    if len(str(nanos)) in (4, 7, 8, 14):
        with pytest.raises(BadRequest, match="is a date"):
            parse_timestamp_us(str(nanos), "f")
    else:
        assert parse_timestamp_us(str(nanos), "f") == nanos // 1000


@given(st.integers(-(2**70), 2**70))
def test_every_number_of_microseconds_has_a_text(at: int) -> None:
    assert datetime.fromisoformat(rfc3339(at)).tzinfo is not None


@given(
    st.text(max_size=30)
    | st.text("0123456789-:TZtz+. ", max_size=30)
    | st.builds(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{}".format,
        *(st.integers(0, most) for most in (9999, 19, 39, 29, 69, 69)),
        st.sampled_from(["", "Z", "+25:00", "+00:60", "-0000", ".Z", "+23:59"]),
    )
)
def test_whatever_is_accepted_as_a_moment_is_one(text: str) -> None:
    try:
        at = parse_timestamp_us(text, "f")
    except BadRequest as refusal:
        assert refusal.facts["field"] == "f"
        return
    if not text.isdigit():
        assert micros(datetime.fromisoformat(text.upper()) - EPOCH) == at


@given(st.text(max_size=12) | st.text("0123456789msh d.-+e", max_size=12))
def test_whatever_is_accepted_as_a_duration_consists_of_numbers_with_units(text: str) -> None:
    try:
        span = parse_duration_us(text, "f")
    except BadRequest as refusal:
        assert refusal.facts["field"] == "f"
        return
    assert span >= 0
    assert text.isascii()
    assert text[0].isdigit() and text[-1] in "smhd"


@pytest.mark.parametrize("text", ["", "10", "s", "1.5h", "-1s", "+1s", "01s", "1 s", "1S", "1w", "1s ", "١s"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="duration"):
        parse_duration_us(text, "Stream-TTL")
