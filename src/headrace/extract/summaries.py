"""The columns of events that are summaries themselves; ``reduce.parts`` says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.extract.scalars import floats, pieces
from headrace.extract.texts import Column, Flags, valid
from headrace.query.definition import decoded
from headrace.reduce.parts import GREATEST_COUNT, TYPES, parts

_Doubles = NDArray[np.float64]


def summaries(texts: Mapping[str, Column], odd: Flags) -> dict[str, Any]:
    """The column of each part, from the JSON texts of the parts; odd rows have no values."""
    count, total, least, greatest = (_numbers(texts[part]) for part in ("count", "sum", "min", "max"))
    whole = (count >= 0) & (count <= GREATEST_COUNT) & (np.floor(count) == count)
    some = whole & (count > 0) & ~(np.isnan(total) | np.isnan(least) | np.isnan(greatest)) & ~odd
    is_summary = some | (whole & (count == 0) & ~odd)
    made = {
        "count": pa.array(np.where(is_summary, count, 0).astype(np.int64), mask=~is_summary),
        "sum": pa.array(total, mask=~some),
        "min": pa.array(least, mask=~some),
        "max": pa.array(greatest, mask=~some),
    }
    return made | {"histogram": _histograms(texts.get("histogram", pa.nulls(len(odd), pa.string())), some)}


def _numbers(texts: Column) -> _Doubles:
    """The numbers among JSON texts, and what is none as NaN."""
    numbers = np.full(len(texts), np.nan)
    found, values, _ = floats(pieces(texts.drop_null()))
    numbers[np.flatnonzero(valid(texts))[found]] = values.to_numpy()
    return numbers


def _histograms(texts: Column, rows: Flags) -> Any:
    known = texts.dictionary_encode()
    found = [_histogram(text) for text in known.dictionary.to_pylist()]
    every = pa.array(found, TYPES["histogram"]).take(known.indices)
    return every.take(pa.array(np.arange(len(rows)), mask=~rows))


def _histogram(text: str) -> list[tuple[int, int]] | None:
    try:
        summary = parts(1, 0, 0, 0, decoded(text.encode()))
    except RecursionError:
        return None
    return None if summary is None or summary.histogram is None else list(summary.histogram.items())
