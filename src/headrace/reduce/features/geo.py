"""Places of events, in degrees: distances in km on a sphere of 6,371 km, speeds in km/h.

An event counts where it matches and has both coordinates. Means of longitudes are plain, so they mean little for
entities on both sides of 180°.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from headrace.reduce.features.moments import add_value, merge_moments
from headrace.reduce.features.operator import Operator, finite

_RADIUS_KM = 6371.0
_DEGREE_KM = 111.32
_HOUR_MS = 3_600_000


def distance_km(lat: float, lon: float, to_lat: float, to_lon: float) -> float:
    """The way between two places along a great circle (haversine)."""
    north, other_north = math.radians(lat), math.radians(to_lat)
    up = math.sin((other_north - north) / 2)
    along = math.sin(math.radians(to_lon - lon) / 2)
    chord = up * up + math.cos(north) * math.cos(other_north) * along * along
    return 2 * _RADIUS_KM * math.asin(math.sqrt(min(1.0, max(0.0, chord))))


class OfPlaces(Operator):
    """An operator over the places of the events that match."""

    def __init__(self, lat: str, lon: str) -> None:
        self.fields = (lat, lon)
        self._lat = lat
        self._lon = lon

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """The state with one more place if the event matches and has one."""
        if not matched or (lat := row.get(self._lat)) is None or (lon := row.get(self._lon)) is None:
            return state
        return self.add(state, lat, lon, at_ms)

    @abstractmethod
    def add(self, state: Any, lat: float, lon: float, at_ms: int) -> Any:
        """The state with one more place."""


class GeoVelocity(OfPlaces):
    """The greatest speed between one place and the next, in km/h; where no time lies between, none counts.

    Null until there is a speed. The state is ``[first time, lat, lon, last time, lat, lon, speed]``.
    """

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

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The speed."""
        return None if state is None else finite(state[6])


class GeoDistance(OfPlaces):
    """The length of the way through all places, in km; 0 until there are two.

    The state is ``[first lat, lon, last lat, lon, km]``.
    """

    def add(self, state: Any, lat: float, lon: float, at_ms: int) -> Any:
        """The state with the next place."""
        here = [lat, lon, lat, lon, 0.0]
        return here if state is None else self.merge_both(state, here)

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The ways of both, and that across."""
        across = distance_km(left[2], left[3], right[0], right[1])
        return [*left[:2], *right[2:4], left[4] + across + right[4]]

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The length."""
        return 0.0 if state is None else finite(state[4])


class GeoSpread(OfPlaces):
    """The root of the mean squared distance of places from their mean, in km, on a plane of 111.32 km per degree.

    Null until there are two. The state is the moments of latitudes and of longitudes.
    """

    commutative = True

    def add(self, state: Any, lat: float, lon: float, at_ms: int) -> Any:
        """One more place."""
        lats, lons = (None, None) if state is None else state
        return [add_value(lats, lat), add_value(lons, lon)]

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The moments of both."""
        return [merge_moments(left[0], right[0]), merge_moments(left[1], right[1])]

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The spread."""
        if state is None or state[0][0] < 2:
            return None
        (n, lat, up), (_, _, along) = state
        narrow = math.cos(math.radians(lat))
        return finite(_DEGREE_KM * math.sqrt((up + along * narrow * narrow) / n))


class DistanceFromHome(OfPlaces):
    """How far the last place is from the mean of the last ``samples`` places, itself among them, in km.

    Null without any. The state is those places, ``[lat, lon]`` each.
    """

    def __init__(self, lat: str, lon: str, samples: int) -> None:
        super().__init__(lat, lon)
        self._samples = samples

    def add(self, state: Any, lat: float, lon: float, at_ms: int) -> Any:
        """The newest place instead of the oldest."""
        if state is None:
            return [[lat, lon]]
        state.append([lat, lon])
        if len(state) > self._samples:
            del state[0]
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The last places of both."""
        return (left + right)[-self._samples :]

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The distance."""
        if state is None:
            return None
        lat = math.fsum(point[0] for point in state) / len(state)
        lon = math.fsum(point[1] for point in state) / len(state)
        return finite(distance_km(state[-1][0], state[-1][1], lat, lon))
