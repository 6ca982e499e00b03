"""Values of Python, numpy, pandas and Arrow become JSON without losing a digit, or are refused by row and field."""

from __future__ import annotations

import datetime
import json
import uuid
from collections import UserDict
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.json_values import moment, to_json

BERLIN = "2026-11-15T10:00:00.123456789+01:00"
SOME_ID = uuid.UUID("8fc58cec-acc1-4c3c-a611-8a589d064a4f")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int64(7), "7"),
        (np.uint64(2**64 - 1), str(2**64 - 1)),
        (np.float64(1.5), "1.5"),
        (np.float32(0.5), "0.5"),
        (np.bool_(True), "true"),
        (np.str_("a"), '"a"'),
        (np.bytes_(b"\xff"), '"/w=="'),
        (np.datetime64("2026-11-15T10:00:00.123456789"), '"2026-11-15T10:00:00.123456789Z"'),
        (np.datetime64("2026-11-15T10:00"), '"2026-11-15T10:00:00Z"'),
        (np.datetime64("2026-11-15T10"), '"2026-11-15T10:00:00Z"'),
        (np.datetime64("2026-11-15"), '"2026-11-15"'),
        (np.datetime64("2026-11"), '"2026-11-01"'),
        (np.datetime64("NaT"), "null"),
        (np.array([1, 2]), "[1,2]"),
        (np.array(["2026-11-15"], "datetime64[D]"), '["2026-11-15"]'),
        (np.array([[1.5]]), "[[1.5]]"),
        (pd.Timestamp(BERLIN), f'"{BERLIN}"'),
        (pd.Timestamp("2026-11-15T10:00:00Z"), '"2026-11-15T10:00:00Z"'),
        (pd.NaT, "null"),
        (pd.NA, "null"),
        (pa.scalar(7), "7"),
        (pa.scalar(None, pa.int64()), "null"),
        (Decimal("12345678901234567890.10"), "12345678901234567890.10"),
        (SOME_ID, f'"{SOME_ID}"'),
        (datetime.date(2026, 11, 15), '"2026-11-15"'),
        (b"\xff", '"/w=="'),
        (UserDict(a=1), '{"a":1}'),
        (2**70, str(2**70)),
        (msgspec.Raw(b"1.0"), "1.0"),
    ],
)
def test_values_become_json(value: Any, text: str) -> None:
    assert to_json(value).decode() == text
    assert to_json([{"a": value}]).decode() == f'[{{"a":{text}}}]'


@pytest.mark.parametrize(
    "number", [float("nan"), np.float64("inf"), np.float32("nan"), Decimal("NaN"), Decimal("-Infinity")]
)
def test_a_number_that_json_lacks_is_refused_by_row_and_field(number: Any) -> None:
    with pytest.raises(ValueError, match=r"row 12, field 'a\.b': .* is a number that JSON does not have"):
        to_json([{"a": {}}, {}, {"a": {"b": number}}], first_row=10)
    to_json({"a": "NaN Infinity null"})


@pytest.mark.parametrize(
    "value", [object(), 1j, np.timedelta64(1, "s"), np.complex128(1), pd.Timedelta("1s"), pd.Series([1])]
)
def test_what_json_cannot_have_is_refused_by_row_and_field(value: Any) -> None:
    with pytest.raises(TypeError, match=r"row 1, field 'tags.0': \S+ cannot be JSON"):
        to_json([{}, {"tags": [value]}])
    with pytest.raises(TypeError, match=r"^field 'a': "):
        to_json({"a": value})
    with pytest.raises(TypeError, match=r"^\S+ cannot be JSON; JSON has strings"):
        to_json(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (1_763_200_800_000_000_000, "1763200800000000000"),
        (np.int64(5), "5"),
        ("2026-11-15", "2026-11-15"),
        (
            datetime.datetime(2026, 11, 15, 11, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
            "2026-11-15T10:00:00Z",
        ),
        (datetime.date(2026, 11, 15), "2026-11-15T00:00:00Z"),
        (pd.Timestamp(BERLIN), "2026-11-15T09:00:00.123456789Z"),
        (np.datetime64("2026-11-15"), "2026-11-15T00:00:00Z"),
        (np.datetime64("2026-11-15T10:00:00.5"), "2026-11-15T10:00:00.500Z"),
        (pa.scalar(datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)), "2026-11-15T00:00:00Z"),
    ],
)
def test_moments_keep_their_digits(value: Any, text: str) -> None:
    assert moment(value) == text


def test_what_is_no_moment_is_refused() -> None:
    for value in (datetime.datetime(2026, 11, 15), pd.Timestamp("2026-11-15"), pd.NaT, np.datetime64("NaT")):
        with pytest.raises(ValueError, match=r"no time zone|no moment"):
            moment(value)
    for value in (1.5, True, np.float64(1), np.bool_(True), object(), b"x"):
        with pytest.raises(TypeError, match="is no moment: use a datetime"):
            moment(value)


@given(st.integers(-(2**62), 2**62).filter(lambda ns: ns != -(2**63)))
def test_nanoseconds_of_numpy_and_pandas_are_kept(ns: int) -> None:
    texts = {json.loads(to_json(np.datetime64(ns, "ns"))), moment(np.datetime64(ns, "ns"))}
    assert len(texts) == 1
    stamp = pd.Timestamp(ns, tz="UTC")
    assert pd.Timestamp(texts.pop()).value == pd.Timestamp(moment(stamp)).value == ns
