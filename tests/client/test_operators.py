"""Every operator is a function with the parameters that the server knows."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.client import operators
from headrace.client.operators import Feature
from headrace.operators.catalogue import DECLARATIONS
from headrace.operators.declaration import REQUIRED

#: A value for every parameter that an operator needs.
VALUES: dict[str, Any] = {
    "field": "amount",
    "lat_field": "lat",
    "lon_field": "lon",
    "q": 0.5,
    "n": 3,
    "samples": 5,
    "buckets": (1, 2.5),
    "half_life": "10m",
    "window": "1h",
    "sub_window": "1m",
    "baseline_window": "1d",
    "where": hr.col("amount") > 0,
}
#: Parameters that have shorter names in Python.
SHORTER = {"lat_field": "lat", "lon_field": "lon"}


def arguments(name: str) -> dict[str, Any]:
    """What a function must be given."""
    needed = (parameter for parameter, found in DECLARATIONS[name].params.items() if found.default is REQUIRED)
    return {SHORTER.get(parameter, parameter): VALUES[parameter] for parameter in needed}


def test_every_operator_of_the_server_has_a_function() -> None:
    functions = {name for name, found in vars(operators).items() if inspect.isfunction(found) and name[0] != "_"}
    assert functions - {"text", "duration"} == set(DECLARATIONS)
    assert set(DECLARATIONS) <= set(hr.__all__)


@pytest.mark.parametrize("name", DECLARATIONS)
def test_function_takes_what_the_operator_takes(name: str) -> None:
    parameters = inspect.signature(getattr(hr, name)).parameters
    assert set(parameters) == {SHORTER.get(parameter, parameter) for parameter in DECLARATIONS[name].params}
    without = {parameter for parameter, found in parameters.items() if found.default is inspect.Parameter.empty}
    assert set(arguments(name)) <= without <= {*arguments(name), "where"}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_function_writes_the_operator(name: str) -> None:
    params = DECLARATIONS[name].params
    given = {parameter: VALUES[parameter] for parameter, declared in params.items() if declared.default is REQUIRED}
    feature = getattr(hr, name)(**{**arguments(name), "where": VALUES["where"]})
    expected = {**given, "where": "(amount > 0)"}
    if "buckets" in expected:
        expected["buckets"] = [1, 2.5]
    assert feature.descriptor() == {"op": name, "params": expected}


@pytest.mark.parametrize(
    ("window", "text"),
    [(timedelta(hours=1), "3600s"), (timedelta(milliseconds=1500), "1500ms"), (90, "90s"), ("forever", "forever")],
)
def test_window_may_be_said_in_several_ways(window: Any, text: str) -> None:
    assert hr.count(window=window).params == {"window": text}


def test_an_expression_is_no_field() -> None:
    with pytest.raises(TypeError, match="compute it with with_columns first"):
        hr.sum(hr.col("amount") * 2)  # type: ignore[arg-type]


def test_a_feature_shows_how_it_was_made() -> None:
    assert repr(hr.quantile("amount", 0.9, window="1h")) == "quantile(field='amount', q=0.9, window='1h')"
    assert isinstance(hr.count(), Feature)
