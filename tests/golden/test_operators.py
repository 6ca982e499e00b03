"""States that operators of earlier commits packed, read and continued by the operators of today."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import pytest

from golden.write_operators import EVENTS, NOW_MS, TYPES
from headrace.operators.catalogue import DECLARATIONS, make_operator
from headrace.operators.state_bytes import pack, unpack

#: The commits whose states have format version 1.
VERSION_1 = {"7068588", "fe4afa5"}
CASES = [
    pytest.param(
        case,
        path.stem.partition("-")[2] in VERSION_1,
        id=f"{path.stem.partition('-')[2]}-{case['op']}-{'window' in case['params']}",
    )
    for path in sorted(Path(__file__).parent.glob("operators-*.json"))
    for case in json.loads(path.read_text())
]
#: Answers that were divided by the deviation of a sample then, and are divided by that of the population now.
BY_POPULATION = {"z_score", "seasonal_deviation"}
#: Operators that have the times and numbers of their values now, which a state of version 1 takes from its row.
TIMED = {"first_n", "reservoir_sample", "rate_of_change", "z_score"}
LATER = [(at_ms + 45_000, row) for at_ms, row in EVENTS]


@pytest.mark.parametrize(("case", "is_version_1"), CASES)
def test_a_packed_state_answers_as_it_did_and_goes_on_as_one_of_today(case: dict[str, Any], is_version_1: bool) -> None:
    reducer = make_operator(case["op"], case["params"], TYPES)
    stored = unpack(base64.b64decode(case["packed"]))
    if is_version_1:
        stored = reducer.from_version_1(stored, EVENTS[0][0], 0)
    fresh = later = None
    answer = case["answer"]
    if case["op"] in BY_POPULATION and is_version_1:
        answer = pytest.approx(answer * math.sqrt(len(EVENTS) / (len(EVENTS) - 1)))
    assert reducer.finish(stored, NOW_MS) == answer
    for seq, (at_ms, row) in enumerate(EVENTS):
        fresh = reducer.fold(fresh, at_ms, seq, row, True)
    for seq, (at_ms, row) in enumerate(LATER, start=len(EVENTS)):
        later = reducer.fold(later, at_ms, seq, row, True)
        fresh = reducer.fold(fresh, at_ms, seq, row, True)
    merged = reducer.finish(reducer.merge(stored, later), NOW_MS)
    for seq, (at_ms, row) in enumerate(LATER, start=len(EVENTS)):
        stored = reducer.fold(stored, at_ms, seq, row, True)
    if not is_version_1 or case["op"] not in TIMED:
        assert pack(stored) == pack(fresh)
    wanted = reducer.finish(fresh, NOW_MS)
    assert reducer.finish(stored, NOW_MS) == wanted
    assert merged == (pytest.approx(wanted) if isinstance(wanted, float) else wanted)


def test_every_operator_has_a_packed_state_of_the_newest_version() -> None:
    assert {case.values[0]["op"] for case in CASES if not case.values[1]} == DECLARATIONS.keys()  # type: ignore[index]
