"""An event source by event time with a table of every operator, driven at random and held to the oracle in pandas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pandas as pd

from headrace.engine.features.past_reader import PastRows, RowMoment
from headrace.engine.features.training_sets import HistoryAnswer
from headrace.operators.catalogue import DECLARATIONS
from operators.events import TYPES, WINDOWS
from operators.law import TOLERANCE, assert_close
from support.feature_oracle import (
    MEANINGS,
    UNITS_NS,
    WHERES,
    Source,
    answer,
    event_time_us,
    frame_of,
    known,
    late_count,
    row_of,
)
from support.feature_rig import Pipelines, event, op, table

KEYS = ["a", "b", "c", "d"]
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
#: An event may be so far ahead of the clock when it is appended.
AHEAD_US = 60 * SECOND_US
FIELD_TYPES = {"k": "str", **TYPES}
CHOICES: dict[str, list[Any]] = {
    "n": [1, 2, 5], "samples": [1, 4], "k": [1, 3], "q": [0.25, 0.5, 0.99], "max_categories": [2, 256],
    "categories": [None], "expected_n": [1024], "fpr": [1e-9], "sigma": [0.3, 3.0], "half_life": [1000, 60_000],
    "window": [*WINDOWS, 86_400_000], "baseline_window": [*WINDOWS, 86_400_000], "sub_window": [1, 7, 100],
    "buckets": [[-10.0, 0.0, 0.5, 2.0, 1000.0]], "lat_field": ["lat"], "lon_field": ["lon"],
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "x": [0.0, -0.0, 1, 2, 2.0, -7.125, 12.5, 999.875],
    "i": [-3, 0, 2, 4, 2**62, -(2**63)],
    "s": ["a", "b", "c", "", "é", "🜁"],
    "b": [True, False],
    "t": ["2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00", "2024-01-01T00:00:00.5Z"],
    "lat": [0.0, 45.5, -33.9, 60, 89.9],
    "lon": [0.0, 2.35, -0.1, 151.2, 179.9],
}
SPANS = ("window", "baseline_window", "sub_window", "half_life")
#: Numbers in calculations are not greater than this, where they are not squared.
SCALE = 2.0**64


@contextmanager
def explained(*facts: Any) -> Iterator[None]:
    """What fails says what it is about."""
    try:
        yield
    except AssertionError as reason:
        reason.add_note(repr(facts))
        raise


def params_of(name: str, random: Random) -> dict[str, Any]:
    """Parameters of an operator within their ranges, durations in ms; a condition now and then."""
    params: dict[str, Any] = {}
    for param, declared in DECLARATIONS[name].params.items():
        if param == "field":
            params[param] = random.choice([field for field, kind in TYPES.items() if kind in declared.types])
        elif param == "where":
            if name == "ratio" or random.random() < 0.4:
                params[param] = random.choice(sorted(WHERES))
        elif (value := random.choice(CHOICES[param])) is not None:
            params[param] = value
    if "sub_window" in params:
        params["sub_window"] = min(params["sub_window"], params["window"])
    return params


def every_feature(random: Random) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every operator that goes by event time, with a window where it takes one, and without where it need not."""
    features: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in sorted(MEANINGS):
        features[f"{name}_w"] = name, params_of(name, random)
        if DECLARATIONS[name].window == "optional":
            params = params_of(name, random)
            del params["window"]
            features[name] = name, params
    return features


def declared(features: dict[str, tuple[str, dict[str, Any]]], names: Sequence[str]) -> dict[str, Any]:
    """Features as a registration declares them."""
    chosen = ((name, *features[name]) for name in names)
    return {
        name: op(operator, **{part: f"{value}ms" if part in SPANS else value for part, value in params.items()})
        for name, operator, params in chosen
    }


def small_files(directory: Path) -> Pipelines:
    """An engine whose files are so small that few events make many."""
    return Pipelines(directory, storage={"seal_rows": 12}, pipeline={"min_rows": 1, "unit_bytes": 600, "fan_out": 3})


class TimedSource:
    """An event source, a table over it by key, and every event that was pushed."""

    def __init__(self, rig: Pipelines, seed: int, *, by_append_time: bool = False, name: str = "E") -> None:
        self.rig, self.name, self.table = rig, name, f"{name}Table"
        self.random = Random(seed)
        self.unit = self.random.choice([None, "s", "ms", "us", "ns"])
        late_after_us = self.random.choice([None, 1_000, 64_000, SECOND_US, HOUR_US])
        self.source = Source(None) if by_append_time else Source("at", self.unit, late_after_us)
        self.features = every_feature(self.random)
        #: With their append times; None for an event that does not fit.
        self.events: list[tuple[int, dict[str, Any] | None]] = []
        #: Features that count no more events, and the first that they do not count.
        self.ended: dict[str, int] = {}

    @property
    def stream(self) -> str:
        """The stream of its events."""
        return f"events/{self.name}"

    @property
    def now_us(self) -> int:
        return self.rig.clock.us

    @property
    def frame(self) -> pd.DataFrame:
        """All events for the oracle."""
        return frame_of(self.events, self.source, "k")

    def source_settings(self) -> dict[str, Any]:
        """What the registration says of event time."""
        late_after_us = self.source.late_after_us
        if self.source.field is None:
            return {}
        return {
            "timestamp_field": "at",
            **({} if self.source.unit is None else {"timestamp_unit": self.source.unit}),
            **({} if late_after_us is None else {"late_after": f"{late_after_us // 1000}ms"}),
        }

    def register(self, names: Sequence[str], **terms: Any) -> None:
        """The table with some of the features."""
        kinds = {name: {"type": kind, "required": False} for name, kind in TYPES.items()}
        schema = {"k": "str", "at": "datetime" if self.unit is None else "i64", **kinds}
        agg = declared(self.features, names)
        source = event(self.name, self.declared_fields(schema), **self.source_settings())
        self.rig.register(source, table(self.table, self.name, ["k"], agg), app=self.name, **terms)

    def declared_fields(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The fields of the source as it declares them."""
        return schema

    def event(self) -> dict[str, Any]:
        """An event that happened now, just in time, late, or a little ahead of the clock."""
        edge = self.source.late_after_us or HOUR_US
        near = [0, 1, 999, 1000, 64_000, 100_000, edge - 1, edge, edge + 1, 3 * edge, 25 * HOUR_US]
        delay_us = self.random.choice([*near, self.random.randrange(HOUR_US), -1000, -SECOND_US, -AHEAD_US])
        event_us = self.now_us - delay_us
        event_ns = event_us * 1000 + self.random.randrange(1000)
        at = pd.Timestamp(event_ns, tz="UTC").isoformat() if self.unit is None else event_ns // UNITS_NS[self.unit]
        values = {
            name: self.random.choice([*some, None]) for name, some in VALUES.items() if self.random.random() < 0.8
        }
        return {"k": self.random.choice(KEYS[:-1]), "at": at, **values}

    def push(self, count: int, seal: float = 0.1) -> None:
        """Events, a few per request; some of them are published at random."""
        gaps_us = [0, 1, 999, 1000, 10_000, 64_000, 100_000, SECOND_US, 60 * SECOND_US, 400 * SECOND_US]
        while count > 0:
            self.rig.clock.us += self.random.choice(gaps_us)
            pushed = [self.event() for _ in range(min(count, self.random.choice((1, 1, 3, 8))))]
            self.append(pushed)
            count -= len(pushed)
            if self.random.random() < seal:
                self.rig.publish(self.stream)

    def append(self, events: list[dict[str, Any]]) -> None:
        """Push events in one request."""
        self.rig.append(self.stream, msgspec.json.encode(events))
        self.events += [(self.now_us, each) for each in events]

    def assert_row(self, row: dict[str, Any], wanted: dict[str, Any]) -> None:
        """A row is what the oracle says."""
        assert row.keys() == wanted.keys()
        for name, value in row.items():
            operator, params = self.features[name]
            with explained(name, operator, params):
                squared = operator in ("var", "sum_squares") and params["field"] == "i"
                tolerance = TOLERANCE.get(operator, 1e-9)
                assert_close(value, wanted[name], tolerance, self.scale(operator, params, squared))

    @staticmethod
    def scale(operator: str, params: dict[str, Any], squared: bool) -> float:
        """How great numbers in a calculation are."""
        if params.get("field") != "i":
            return 1e6
        return SCALE**2 if squared else SCALE

    def features_of(self, *fields: str) -> list[str]:
        """The features that are computed from any of some fields."""

        def mentions(params: dict[str, Any]) -> bool:
            used = {params.get(name) for name in ("field", "lat_field", "lon_field")}
            return bool(used & {*fields}) or any(re.search(rf"\b{name}\b", params.get("where", "")) for name in fields)

        return [name for name, (_, params) in self.features.items() if mentions(params)]

    def wanted(self, frame: pd.DataFrame, key: str, names: Sequence[str], now_us: int) -> dict[str, Any]:
        """The row that the oracle computes; features that have ended count the events before their end."""
        row = self.row(frame, key, names, now_us)
        for name in row.keys() & self.ended.keys():
            # What a feature answers of no events does not depend on the key.
            before = frame[frame.seq < self.ended[name]]
            row |= self.row(before, key, [name], now_us) or self.blank([name], now_us)
        return row

    def row(self, frame: pd.DataFrame, key: str, names: Sequence[str], now_us: int) -> dict[str, Any]:
        """The row that the oracle computes of all these events."""
        return row_of(frame, key, {name: self.features[name] for name in names}, FIELD_TYPES, now_us // 1000)

    def blank(self, names: Sequence[str], now_us: int) -> dict[str, Any]:
        """The row of a key without events."""
        features = ((name, *self.features[name]) for name in names)
        return {name: answer(op, params, FIELD_TYPES, self.frame[:0], now_us // 1000) for name, op, params in features}

    def check_now(self, names: Sequence[str], wait_ms: int = 0, *, coverage: str = "complete") -> None:
        """Features of every key are what pandas computes of all events that are not late."""
        now_us, frame = self.now_us + wait_ms * 1000, self.frame
        moment = self.rig.engine.feature_reader.moment([self.table])._replace(now_ms=now_us // 1000)
        for key in KEYS:
            told = self.rig.answer(self.table, key, moment=moment)
            with explained(key, wait_ms):
                assert told.coverage == coverage
                assert told.late == late_count(frame, key)
                row = {name: told.row[name] for name in names} if told.row else {}
                self.assert_row(row, self.wanted(frame, key, names, now_us))

    def moments(self, count: int) -> list[RowMoment]:
        """Keys with event times and append times to ask for, at the edges of events."""
        times = [event_time_us((append_us, each), self.source) for append_us, each in self.events if each is not None]
        appended = [append_us for append_us, _ in self.events]
        moments = []
        for _ in range(count):
            as_of_us = self.random.choice(times) + self.random.choice([-1, 0, 1, 999, 64_000, SECOND_US])
            known_us = self.random.choice([None, self.random.choice(appended) + self.random.choice([-1, 0, 1])])
            moments.append(RowMoment(self.random.choice(KEYS), min(self.now_us, as_of_us), known_us))
        return moments

    def check_past(self, names: Sequence[str], moments: Sequence[RowMoment], past: PastRows | HistoryAnswer) -> None:
        """Rows of the past are what pandas computes of the events that were known, and all of these are there."""
        frame = self.frame
        late_events = past.late_events or [0] * len(moments)
        assert past.complete
        for moment, row, late in zip(moments, past.rows, late_events, strict=True):
            events = known(frame, moment.at_us, moment.appended_us)
            with explained(moment):
                self.assert_row(row, self.wanted(events, moment.key, names, moment.at_us))
                assert late == late_count(events, moment.key)
