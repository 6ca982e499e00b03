"""Places of events, in degrees: distances in km on a sphere of 6,371 km, speeds in km/h.

An event counts where it matches and has both coordinates. Means of longitudes are plain, so they mean little for
entities on both sides of 180°.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.operators.declaration import COUNT, LATITUDE, LONGITUDE, PLACES, Params, declare
from headrace.operators.entries import add_entry, last_entries, merge_entries
from headrace.operators.moments import add_value, merge_moments, moments_of_field
from headrace.operators.operator import Operator, Row, finite
from headrace.operators.parts import Parts, pooled
from headrace.operators.runs import RowRuns
from headrace.operators.state_columns import Numbers, Optional, Records, StateColumn
from headrace.types import FieldType

_RADIUS_KM = 6371.0
_DEGREE_KM = 111.32
_HOUR_MS = 3_600_000
_BETWEEN = "an event that comes late lies between two others, and most coordinates are not kept"

Doubles = NDArray[np.float64]


def distance_km(lat: float, lon: float, to_lat: float, to_lon: float) -> float:
    """The way between two places along a great circle (haversine)."""
    north, other_north = math.radians(lat), math.radians(to_lat)
    up = math.sin((other_north - north) / 2)
    along = math.sin(math.radians(to_lon - lon) / 2)
    chord = up * up + math.cos(north) * math.cos(other_north) * along * along
    return 2 * _RADIUS_KM * math.asin(math.sqrt(min(1.0, max(0.0, chord))))


def _steps_km(lats: Doubles, lons: Doubles) -> Doubles:
    """The way from each place to the next."""
    north = np.radians(lats)
    up, along = np.sin(np.diff(north) / 2), np.sin(np.radians(np.diff(lons)) / 2)
    chord = up * up + np.cos(north[:-1]) * np.cos(north[1:]) * along * along
    steps: Doubles = 2 * _RADIUS_KM * np.arcsin(np.sqrt(np.clip(chord, 0.0, 1.0)))
    return steps


class LocationOperator(Operator):
    """An operator over the places of the events that match."""

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The state with one more place if the event matches and has one."""
        lat_field, lon_field = self.fields
        if not matched or (lat := row.get(lat_field)) is None or (lon := row.get(lon_field)) is None:
            return state
        return self.add(state, lat, lon, at)

    @abstractmethod
    def add(self, state: Any, lat: float, lon: float, at_ms: int) -> Any:
        """The state with one more place."""

    def places(self, runs: RowRuns) -> tuple[Doubles, Doubles]:
        """Latitudes and longitudes."""
        return runs.doubles(self.fields[0]), runs.doubles(self.fields[1])

    def ends(self, runs: RowRuns) -> tuple[StateColumn, StateColumn, StateColumn, StateColumn]:
        """The first latitude and longitude of each run, and the last."""
        lat, lon = self.fields
        return runs.first_values(lat), runs.first_values(lon), runs.last_values(lat), runs.last_values(lon)


class GeoVelocity(LocationOperator):
    """The greatest speed between one place and the next, in km/h; where no time lies between, none counts.

    Null until there is a speed. The state is ``[first time, lat, lon, last time, lat, lon, speed]``.
    """

    declaration = declare(
        "geo_velocity",
        PLACES,
        "the greatest speed from one event to the next, in km/h",
        "f64",
        needs_log=_BETWEEN,
        lat_field=LATITUDE,
        lon_field=LONGITUDE,
    )

    def add(self, state: Any, lat: float, lon: float, at_ms: int) -> Any:
        """The state with the next place."""
        here = [at_ms, lat, lon, at_ms, lat, lon, None]
        return here if state is None else self.merge_both(state, here)

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The greatest speed of either part, or of the way between them."""
        gap_ms = right[0] - left[3]
        across = distance_km(left[4], left[5], right[1], right[2]) / gap_ms * _HOUR_MS if gap_ms > 0 else None
        speeds = [speed for speed in (left[6], across, right[6]) if speed is not None]
        return [*left[:3], *right[3:6], max(speeds, default=None)]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The speed."""
        return None if state is None else finite(state[6])

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The ends of each run, and its greatest speed."""
        gaps = np.diff(runs.times, prepend=runs.times[:1])
        counts = (gaps > 0) & ~runs.is_first()
        steps = np.append(0.0, _steps_km(*self.places(runs)))
        speeds = np.where(counts, steps / np.where(counts, gaps, 1) * _HOUR_MS, -1.0)
        greatest = np.maximum.reduceat(speeds, runs.starts)
        first_lat, first_lon, last_lat, last_lon = self.ends(runs)
        first, last = runs.first_times(), runs.last_times()
        return Records(first, first_lat, first_lon, last, last_lat, last_lon, Optional(greatest, greatest >= 0))


class GeoDistance(LocationOperator):
    """The length of the way through all places, in km; 0 until there are two.

    The state is ``[first lat, lon, last lat, lon, km]``.
    """

    declaration = declare(
        "geo_distance",
        PLACES,
        "the length of the way from event to event, in km",
        "f64",
        needs_log=_BETWEEN,
        lat_field=LATITUDE,
        lon_field=LONGITUDE,
    )

    def add(self, state: Any, lat: float, lon: float, at_ms: int) -> Any:
        """The state with the next place."""
        here = [lat, lon, lat, lon, 0.0]
        return here if state is None else self.merge_both(state, here)

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The ways of both, and that across."""
        across = distance_km(left[2], left[3], right[0], right[1])
        return [*left[:2], *right[2:4], left[4] + across + right[4]]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The length."""
        return 0.0 if state is None else finite(state[4])

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The ends of each run, and the length of its way."""
        steps = np.append(0.0, _steps_km(*self.places(runs)))
        steps[runs.starts] = 0.0
        return Records(*self.ends(runs), Numbers(np.add.reduceat(steps, runs.starts)))


class GeoSpread(LocationOperator):
    """The root of the mean squared distance of places from their mean, in km, on a plane of 111.32 km per degree.

    Null until there are two. The state is the moments of latitudes and of longitudes.
    """

    declaration = declare(
        "geo_spread",
        PLACES,
        "the root of the mean squared distance from the middle, in km",
        "f64",
        lat_field=LATITUDE,
        lon_field=LONGITUDE,
    )
    order = "any"

    def add(self, state: Any, lat: float, lon: float, at_ms: int) -> Any:
        """One more place."""
        lats, lons = (None, None) if state is None else state
        return [add_value(lats, lat), add_value(lons, lon)]

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The moments of both."""
        return [merge_moments(left[0], right[0]), merge_moments(left[1], right[1])]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The spread."""
        if state is None or state[0][0] < 2:
            return None
        (n, lat, up), (_, _, along) = state
        narrow = math.cos(math.radians(lat))
        return finite(_DEGREE_KM * math.sqrt((up + along * narrow * narrow) / n))

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The moments of each run."""
        return Records(moments_of_field(self.fields[0], runs), moments_of_field(self.fields[1], runs))

    def catalyst_parts(self) -> Parts:
        """Moments of both."""
        return Parts(pooled("moments"), pooled("others"))


class DistanceFromHome(Operator):
    """How far the last place is from the mean of the last ``samples`` places, itself among them, in km.

    Null without any. The state is those places as entries (`operators.entries`), each a latitude and a longitude.
    """

    declaration = declare(
        "distance_from_home",
        PLACES,
        "how far the newest place is from the mean of the last so many, in km",
        "f64",
        bound="samples",
        memory="as many values as `n` or `samples` says",
        lat_field=LATITUDE,
        lon_field=LONGITUDE,
        samples=COUNT._replace(default=100, note=""),
    )
    order = "time"

    def __init__(self, params: Params, types: Mapping[str, FieldType]) -> None:
        super().__init__(params, types)
        self._lat_field, self._lon_field = self.fields
        self._kept: int = params["samples"]

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The place among the last ones in place of the oldest, if the event matches and has one."""
        if not matched or (lat := row.get(self._lat_field)) is None or (lon := row.get(self._lon_field)) is None:
            return state
        if state is None:
            return [(at, seq, lat, lon)]
        newest = state[-1]
        if at > newest[0] or (at == newest[0] and seq > newest[1]):
            state.append((at, seq, lat, lon))
        else:
            add_entry(state, (at, seq, lat, lon))
        if len(state) > self._kept:
            del state[0]
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The last places of both."""
        return merge_entries(left, right)[-self._kept :]

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The distance."""
        if state is None:
            return None
        lat = math.fsum(lat for _, _, lat, _ in state) / len(state)
        lon = math.fsum(lon for _, _, _, lon in state) / len(state)
        return finite(distance_km(state[-1][2], state[-1][3], lat, lon))

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """The places at this time and number."""
        return [(at, seq, lat, lon) for lat, lon in state]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The last places of each run."""
        return last_entries(runs, self.fields, self._kept)
