"""Features of every operator with parameters within their ranges, and when two answers are the same."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from headrace.operators.catalogue import DECLARATIONS
from headrace.schema.descriptor.nodes import Feature
from operators.events import TYPES, WINDOWS, Event

#: Where a result is a small difference of squares, its root is only half as precise.
TOLERANCE = {"trend_residual": 1e-6}

EXAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 5),
    "samples": st.integers(1, 5),
    "k": st.integers(1, 5),
    "q": st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.99]),
    "max_categories": st.sampled_from([2, 256]),
    "categories": st.none(),
    "expected_n": st.sampled_from([64, 1024]),
    "fpr": st.sampled_from([1e-6, 1e-9]),
    "sigma": st.sampled_from([0.3, 1.1, 3.0]),
    "half_life": st.sampled_from([1, 50, 3000, 86_400_000]),
    "window": st.sampled_from(WINDOWS),
    "baseline_window": st.sampled_from(WINDOWS),
    "sub_window": st.sampled_from([1, 7, 100]),
    "buckets": st.sampled_from([[0.0], [-10.0, 0.0, 0.5, 2.0, 1000.0]]),
    "lat_field": st.just("lat"),
    "lon_field": st.just("lon"),
    "where": st.none(),
}


@st.composite
def features(draw: st.DrawFn, op: str) -> Feature:
    """A feature with parameters within their ranges; a window that may be left out is left out now and then."""
    known = DECLARATIONS[op]
    params: dict[str, Any] = {}
    for name, parameter in known.params.items():
        if parameter.kind == "field" and name == "field":
            params[name] = draw(st.sampled_from([field for field, kind in TYPES.items() if kind in parameter.types]))
        elif (value := draw(EXAMPLES[name])) is not None:
            params[name] = value
    if "window" in params and op != "first_seen_in_window" and draw(st.booleans()):
        del params["window"]
    if op == "event_type_mix" and draw(st.booleans()):
        params["categories"] = {"str": ["a", "é"], "i64": [1, 2], "bool": [True]}.get(TYPES[params["field"]])
    return Feature(op, {name: value for name, value in params.items() if value is not None})


def assert_same(found: Any, wanted: Any, feature: Feature, made: list[Event]) -> None:
    """Two answers are the same, numbers that were rounded up to 1e-9 of what went into them."""
    assert_close(found, wanted, TOLERANCE.get(feature.op, 1e-9), scale(feature.op, made, feature.params))


def assert_close(found: Any, wanted: Any, tolerance: float, scale: float) -> None:
    match wanted:
        case dict():
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                assert_close(found[name], value, tolerance, scale)
        case list():
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                assert_close(one, other, tolerance, scale)
        case Fraction() | float():
            assert isinstance(found, float)
            assert math.isclose(found, wanted, rel_tol=tolerance, abs_tol=tolerance * scale), (found, float(wanted))
        case _:
            assert type(found) is type(wanted)
            assert found == wanted


def scale(op: str, made: list[Event], params: dict[str, Any]) -> float:
    """How great numbers in the calculation are."""
    if "field" not in params or TYPES[params["field"]] not in ("f64", "i64"):
        return 1.0
    greatest = max((abs(event.row.get(params["field"]) or 0) for event in made), default=0) + 1.0
    return float(greatest**2 if op in ("var", "ewvar", "sum_squares") else greatest)
