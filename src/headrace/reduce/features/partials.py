"""The operators that Catalyst reduces: what their states are made of.

Those that are not here are merged by their own ``merge``: where parts must come in order there is no other way; where
they need not, counts by value are twice as slow as rows of their own, and fading sums and trends have no aggregate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from headrace.reduce.features import core, distinct, geo, moments, outliers, quantiles, recency, velocity
from headrace.reduce.features.operator import OfValues, Operator
from headrace.reduce.features.parts import EXACT, INTEGERS, Alone, Part, Parts, double, plain, pooled
from headrace.reduce.features.window import Windowed


def parts_of(found: Operator) -> Parts | None:
    """What the states of an operator are made of, those of each pane where it has a window; None where nobody says."""
    inner = found.inner if isinstance(found, Windowed) else found
    made = _MADE_OF.get(type(inner))
    return made(inner) if callable(made) else made


def _summed(found: Operator) -> Part:
    return double("total") if cast(OfValues, found).kind == "f64" else INTEGERS


def _extreme(found: Operator) -> Parts:
    assert isinstance(found, core.Extreme)
    is_greatest = found.choose is max
    if found.kind == "f64":
        return Alone(double("upper" if is_greatest else "lower"))
    return Alone(plain("greatest" if is_greatest else "least"))


def _different(exact: list[dict[Any, int]], sketch: bytes | None) -> list[Any]:
    return distinct.united([[{}, sketch], *([values, None] for values in exact)])


def _numbers(exact: list[list[float]], sketch: bytes | None) -> list[Any]:
    return quantiles.united([[[], sketch], *([numbers, None] for numbers in exact)])


_FIRST, _LAST = Alone(plain("earliest")), Alone(plain("latest"))
_DISTINCT = Parts(EXACT, plain("different"), together=_different)

_MADE_OF: dict[type[Operator], Parts | Callable[[Operator], Parts]] = {
    core.Count: Alone(plain("n")),
    core.Sum: lambda found: Alone(_summed(found)),
    core.Mean: lambda found: Parts(_summed(found), plain("n")),
    core.Extreme: _extreme,
    core.Ratio: Parts(plain("m"), plain("n")),
    moments.Spread: Alone(pooled("moments")),
    geo.GeoSpread: Parts(pooled("moments"), pooled("others")),
    distinct.NUnique: _DISTINCT,
    distinct.BurstCount: _DISTINCT,
    quantiles.Quantile: Parts(EXACT, plain("numbers"), together=_numbers),
    outliers.Outliers: Parts(
        pooled("moments"),
        EXACT,
        plain("numbers"),
        apart=lambda state: [state[0], *state[1]],
        together=lambda moments, exact, sketch: [moments, _numbers(exact, sketch)],
    ),
    recency.FirstSeen: _FIRST,
    recency.Age: _FIRST,
    recency.LastSeen: _LAST,
    recency.TimeSince: _LAST,
    recency.HasSeen: _LAST,
    recency.SeenWithin: _LAST,
    velocity.InterArrival: Parts(plain("earliest"), plain("latest"), plain("n")),
}
