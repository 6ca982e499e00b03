"""A field that is widened keeps the state of every feature: as if its numbers had been floats from the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.operators.catalogue import DECLARATIONS
from schema.descriptor.test_operators import LEAST
from support.feature_rig import Pipelines, event, op, table

#: Sums of these are exact, and some come before and after the change.
WHOLE, THEN = (1, 2, 2, 5, 300, -7, 2, 1), (2, 1.0, 2.5, 7, 300, -7.0, 0.5, 2)


def features() -> dict[str, Any]:
    """Every operator over the number, with a window too where it may have one; places are numbers as well."""
    found = {"mix": op("event_type_mix", field="n", categories=[1, 2])}
    for name, (least, _) in LEAST.items():
        params = {key: "n" if key in ("lat_field", "lon_field") else value for key, value in least.items()}
        found[f"f_{name}"] = op(name, **params)
        if DECLARATIONS[name].window == "optional":
            found[f"w_{name}"] = op(name, **params, window="1h")
    return found


FEATURES = features()


def pipeline(name: str, kind: str) -> list[dict[str, Any]]:
    source = event(name, {"user": "str", "n": kind, "id": kind}, dedupe_key="id")
    step = {"op": "with_columns", "exprs": {"double": "n * 2"}}
    return [
        source,
        table(f"Of{name}", name, ["user"], FEATURES),
        table(f"Stepped{name}", name, ["user"], {"doubles": op("top_k", field="double", where="n > 1")}, ops=[step]),
    ]


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 3}, pipeline={"min_rows": 1, "fan_out": 2}) as opened:
        yield opened


def push(pipelines: Pipelines, numbers: tuple[float, ...], first: int, seals: bool) -> None:
    """The same events to both sources, at the same times."""
    for at, number in enumerate(numbers, first):
        pipelines.clock.us += 7_000_000
        for name in "AB":
            pipelines.append(f"events/{name}", msgspec.json.encode([{"user": "u", "n": number, "id": at}]))
    if seals:
        for name in "AB":
            pipelines.seal(name)
        assert pipelines.work() >= 2


@pytest.mark.parametrize("before", [False, True], ids=["tail", "states"])
@pytest.mark.parametrize("after", [False, True], ids=["tail", "states"])
def test_every_feature_goes_on_as_if_its_numbers_had_been_floats(
    pipelines: Pipelines, before: bool, after: bool
) -> None:
    pipelines.register(*pipeline("A", "i64"), *pipeline("B", "f64"))
    push(pipelines, WHOLE, 0, before)
    widened = pipelines.register(*pipeline("A", "f64"), *pipeline("B", "f64"))
    assert [one["name"] for one in widened.changed] == ["A"]
    push(pipelines, THEN, len(WHOLE), after)
    for _ in range(2):
        assert json(pipelines.get("OfA", "u")) == json(pipelines.get("OfB", "u"))
        assert json(pipelines.get("SteppedA", "u")) == json(pipelines.get("SteppedB", "u"))
        pipelines.reopen()


def json(row: dict[str, Any]) -> dict[str, bytes]:
    """What is told of each feature, to the letter."""
    return {name: msgspec.json.encode(value) for name, value in row.items()}


def test_keys_of_events_stay_known(pipelines: Pipelines) -> None:
    pipelines.register(*pipeline("A", "i64"))
    once = msgspec.json.encode([{"user": "u", "n": 1, "id": 5}])
    assert pipelines.append("events/A", once).deduplicated == 0
    pipelines.register(*pipeline("A", "f64"))
    for same in (once, once.replace(b"5", b"5.0")):
        assert pipelines.append("events/A", same).deduplicated == 1
