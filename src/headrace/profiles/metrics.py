"""``metrics``: one record per interval of a series, from which summaries can be merged."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import msgspec

from headrace import decoding
from headrace.profiles.definition import Defaults, Definition, closed_object, keyword, read_no_settings, typed
from headrace.profiles.hook import Misfit, RecordHook
from headrace.schema.pointer import text
from headrace.schema.registry import KeySetting

API_VERSION = "durable.streams/metrics/v1"


class Summary(msgspec.Struct, gc=False):
    """The numbers of an interval again, as other exporters write them."""

    count: Any
    sum: Any
    min: Any
    max: Any
    histogram: dict[str, Any]


class Interval(msgspec.Struct, gc=False, rename="camel"):
    """One record as it is stored; every member is always there, in this order."""

    api_version: str
    kind: str
    metric: str
    unit: str
    metric_kind: str
    temporality: str
    window_start: int
    window_end: int
    interval_ms: int
    instance: str | None
    stream: str | None
    tags: dict[str, str]
    attributes: dict[str, str]
    dimension_pairs: list[str]
    dimension_key: str | None
    series_key: str
    count: Any
    sum: Any
    min: Any
    max: Any
    avg: Any
    p50: Any
    p95: Any
    p99: Any
    buckets: dict[str, Any]
    summary: Summary


#: The names of the members, as records have them.
KEYS: tuple[str, ...] = Interval.__struct_encode_fields__

_NUMBER = {"type": "number"}
_MAYBE = {"type": ["number", "null"]}
_TEXT = {"type": ["string", "null"]}
_WORDS = {"type": "object", "additionalProperties": {"type": "string"}}
_COUNTS = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
_COUNT = {"type": "number", "minimum": 0}

_SUMMARY = closed_object({"count": _COUNT, "sum": _NUMBER, "min": _MAYBE, "max": _MAYBE, "histogram": _COUNTS})
_PROPERTIES: dict[str, Any] = {
    "apiVersion": {"const": API_VERSION},
    "kind": {"const": "interval"},
    **{key: {"type": "string", "minLength": 1} for key in ("metric", "unit", "metricKind", "temporality", "seriesKey")},
    **{key: {"type": "integer"} for key in ("windowStart", "windowEnd", "intervalMs")},
    **dict.fromkeys(("instance", "stream", "dimensionKey"), _TEXT),
    **dict.fromkeys(("tags", "attributes"), _WORDS),
    "dimensionPairs": {"type": "array", "items": {"type": "string"}},
    "count": _COUNT,
    "sum": _NUMBER,
    **dict.fromkeys(("min", "max", "avg", "p50", "p95", "p99"), _MAYBE),
    "buckets": _COUNTS,
    "summary": _SUMMARY,
}
SCHEMA = closed_object({name: _PROPERTIES[name] for name in KEYS})


_DIMENSIONS = ["metric", "unit", "stream", "instance", "dimensionKey", "metricKind", "temporality"]
_NUMBER_FIELDS = ("count", "sum", "min", "max", "avg", "p50", "p95", "p99")

SEARCH: dict[str, Any] = {
    "profile": "metrics",
    "primaryTimestampField": "windowStart",
    "aliases": {
        "ts": "windowStart",
        "time": "windowStart",
        "name": "metric",
        "dims": "dimensionPairs",
        "series": "seriesKey",
    },
    "defaultFields": [
        {"field": "metric", "boost": 2},
        {"field": "stream", "boost": 1.25},
        {"field": "dimensionPairs", "boost": 1},
    ],
    "fields": {
        **{name: keyword(f"/{name}", aggregatable=True) for name in (*_DIMENSIONS, "dimensionPairs", "seriesKey")},
        "windowStart": typed("date", "/windowStart"),
        "windowEnd": typed("date", "/windowEnd"),
        "intervalMs": typed("integer", "/intervalMs"),
        **{name: typed("float", f"/{name}") for name in _NUMBER_FIELDS},
    },
    "rollups": {
        "metrics": {
            "timestampField": "windowStart",
            "dimensions": _DIMENSIONS,
            "intervals": ["10s", "1m", "5m", "1h"],
            "measures": {
                "value": {
                    "kind": "summary_parts",
                    "countJsonPointer": "/count",
                    "sumJsonPointer": "/sum",
                    "minJsonPointer": "/min",
                    "maxJsonPointer": "/max",
                    "histogramJsonPointer": "/buckets",
                }
            },
        }
    },
}

DEFAULTS = Defaults(schema=SCHEMA, search=SEARCH, routing_key=KeySetting("/seriesKey", True))


_PERCENTS = {"p50": 50, "p95": 95, "p99": 99}
_LABEL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?", re.ASCII)
_EXACT = 2**53
_KEY_SET = frozenset(KEYS)
_NUMBERS = (int, float, Decimal)


def interval(record: dict[str, Any]) -> Interval:
    """The canonical interval of a record; raises Misfit."""
    for name in record:
        if name not in _KEY_SET:
            raise Misfit(text((name,)), "is not a member of an interval; what tells series apart belongs to attributes")
    summary = _object(record, "summary")
    start, end = _moment(record, "windowStart"), _moment(record, "windowEnd")
    if end < start:
        raise Misfit("/windowEnd", "lies before windowStart")
    count, total = _read_count(record, summary), _read_either(record, summary, "sum")
    if total is None:
        raise Misfit("/sum", "is required")
    histogram = _histogram(record, summary)
    least, greatest = (_bound(record, summary, name, count) for name in ("min", "max"))
    words = {name: _word(record, name) for name in ("metric", "unit")}
    metric_kind, temporality = _word(record, "metricKind", "summary"), _word(record, "temporality", "delta")
    instance, stream = _word(record, "instance", None), _word(record, "stream", None)
    attributes = _attributes(record)
    pairs = [f"{name}={value}" for name, value in attributes.items()]
    dimension_key = "\0".join(pairs) if pairs else None
    series = (metric_kind, temporality, words["metric"], words["unit"], stream, instance, dimension_key)
    made = Interval(
        api_version=_constant(record, "apiVersion", API_VERSION),
        kind=_constant(record, "kind", "interval"),
        metric=words["metric"] or "",
        unit=words["unit"] or "",
        metric_kind=metric_kind or "",
        temporality=temporality or "",
        window_start=start,
        window_end=end,
        interval_ms=end - start if record.get("intervalMs") is None else _moment(record, "intervalMs"),
        instance=instance,
        stream=stream,
        tags=attributes,
        attributes=attributes,
        dimension_pairs=pairs,
        dimension_key=dimension_key,
        series_key="|".join(part or "" for part in series),
        count=count,
        sum=total,
        min=least,
        max=greatest,
        avg=_read_derived(record, "avg", _average(total, count)),
        **{name: _read_derived(record, name, _percentile(histogram, percent)) for name, percent in _PERCENTS.items()},
        buckets=histogram,
        summary=Summary(count, total, least, greatest, histogram),
    )
    _check_derived(record, made)
    return made


def _check_derived(record: dict[str, Any], made: Interval) -> None:
    """Refuse derived members that contradict the rest of the record."""
    for name, value in (
        ("dimensionPairs", made.dimension_pairs),
        ("dimensionKey", made.dimension_key),
        ("seriesKey", made.series_key),
    ):
        if record.get(name, value) not in (value, None):
            raise Misfit(f"/{name}", "follows from the rest of the record, and says something else")


def _constant(record: dict[str, Any], name: str, value: str) -> str:
    if record.get(name, value) != value:
        raise Misfit(f"/{name}", f"must be {value}")
    return value


def _word(record: dict[str, Any], name: str, *otherwise: str | None) -> str | None:
    value = record.get(name)
    word = value.strip() if isinstance(value, str) else ""
    if word:
        return word
    if (value is not None and not isinstance(value, str)) or not otherwise:
        raise Misfit(f"/{name}", "must be a text that is not blank")
    return otherwise[0]


def _object(record: dict[str, Any], name: str) -> dict[str, Any]:
    value = record.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Misfit(f"/{name}", "must be an object")
    if name == "summary":
        for inner in value:
            if inner not in ("count", "sum", "min", "max", "histogram"):
                raise Misfit(text(("summary", inner)), "is not a member of a summary")
    return value


def _number(value: Any, pointer: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not math.isfinite(value):
        raise Misfit(pointer, "must be a number")
    return value


def _moment(record: dict[str, Any], name: str) -> int:
    return int(_number(record.get(name), f"/{name}"))


def _read_either(record: dict[str, Any], summary: dict[str, Any], name: str) -> Any:
    """A number that is a member of the record, of its summary, or of both with the same value."""
    top, inner = record.get(name), summary.get(name)
    if top is not None and inner is not None and top != inner:
        raise Misfit(f"/summary/{name}", f"differs from {name}")
    value = inner if top is None else top
    return None if value is None else _number(value, f"/{name}")


def _read_count(record: dict[str, Any], summary: dict[str, Any]) -> int:
    count = _read_either(record, summary, "count")
    if count is None or count != math.trunc(count) or not 0 <= count <= _EXACT:
        raise Misfit("/count", "must be a whole number, 0 or more")
    return int(count)


def _bound(record: dict[str, Any], summary: dict[str, Any], name: str, count: int) -> Any:
    """The minimum or the maximum; None where the count is zero."""
    value = _read_either(record, summary, name)
    return None if not count else 0 if value is None else value


def _attributes(record: dict[str, Any]) -> dict[str, str]:
    """The attributes that identify a series, as texts, ordered by name."""
    attributes: dict[str, str] = {}
    for member in ("attributes", "tags"):
        for name, value in _object(record, member).items():
            if value is None:
                continue
            word = _scalar(value, text((member, name)))
            if attributes.setdefault(name, word) != word:
                raise Misfit(text((member, name)), "differs from the attribute of that name")
    return dict(sorted(attributes.items()))


def _scalar(value: Any, pointer: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _NUMBERS):
        return str(_plain(value))
    raise Misfit(pointer, "must be a text, a number or a flag")


def _histogram(record: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    """Counts by bucket, the smallest bucket first; empty buckets are left out."""
    top, inner = _object(record, "buckets"), summary.get("histogram")
    if inner is not None and not isinstance(inner, dict):
        raise Misfit("/summary/histogram", "must be an object")
    if top and inner and top != inner:
        raise Misfit("/summary/histogram", "differs from buckets")
    counts = {}
    for label, count in (top or inner or {}).items():
        pointer = text(("buckets", label))
        if not _LABEL.fullmatch(label):
            raise Misfit(pointer, "is no number, as the name of a bucket must be")
        if _number(count, pointer) < 0:
            raise Misfit(pointer, "must not be below 0")
        if count:
            counts[label] = count
    return {label: counts[label] for label in sorted(counts, key=float)}


def _read_derived(record: dict[str, Any], name: str, otherwise: Any) -> Any:
    value = record.get(name)
    return otherwise if value is None else _number(value, f"/{name}")


def _average(total: Any, count: int) -> Any:
    return _plain(float(total) / count) if count else 0


def _percentile(histogram: dict[str, Any], percent: int) -> Any:
    """The least bucket with at least that share at or below it; 0 where there are no buckets."""
    below, total = 0, sum(histogram.values())
    for label, count in histogram.items():
        below += count
        if below * 100 >= percent * total:
            return _plain(float(label))
    return 0


def _plain(number: Any) -> Any:
    """A number without a fraction where it has none."""
    is_integral = isinstance(number, float) and number.is_integer() and abs(number) < _EXACT
    return int(number) if is_integral else number


class _Series(msgspec.Struct, gc=False, rename="camel"):
    """The member of a record that is its routing key."""

    series_key: str


_SERIES = decoding.make_decoder(list[_Series])


class MetricsHook(RecordHook):
    """Makes intervals, and routes them by their series."""

    schema = SCHEMA

    def make_record(self, raw_record: dict[str, Any]) -> Interval:
        """The interval of a record."""
        return interval(raw_record)

    def routing_keys(self, joined: bytes) -> list[str | None]:
        """The series of each record."""
        return [record.series_key for record in _SERIES.decode(b"[" + joined + b"]")]


METRICS = Definition(name="metrics", read=read_no_settings, hook=lambda settings: MetricsHook(), defaults=DEFAULTS)
