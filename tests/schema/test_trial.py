from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.errors import CorruptData
from headrace.schema.entries import TOO_DEEP
from headrace.schema.registry import Registry
from headrace.schema.trial import MAX_NAMED, MAX_TEXT, Findings, Misfit, Trial
from server.registries import TEXT, WHOLE, lens, rename, shape


def registry(*versions: Any) -> Registry:
    """Schemas, each but the first after the lens that leads to it."""
    found = Registry.empty("s").advanced(versions[0], None, 0)
    for ops, schema in zip(versions[1::2], versions[2::2], strict=True):
        found = found.advanced(schema, lens("s", found.current_version, *ops), 0)
    return found


def look(trial: Trial, *events: Any, version: int = 1, first: int = 0) -> Findings:
    return trial.check(first, version, b",".join(map(msgspec.json.encode, events)), len(events))


RENAMED = registry(shape(a=WHOLE), [rename("a", "b")], shape(b=WHOLE), [], shape(b={"type": "integer", "maximum": 9}))


def test_events_that_carry_the_change_are_counted() -> None:
    assert look(Trial(RENAMED), {"a": 1}, {"a": 9}) == Findings(2)


def test_an_event_that_does_not_fit_in_the_end_is_named_with_its_place() -> None:
    found = look(Trial(RENAMED), {"a": 1}, {"a": 10}, first=5)
    assert found == Findings(2, 0, 1, (Misfit(6, "schema", "/b", "value is greater than the maximum of 9"),))


def test_an_event_that_a_lens_cannot_carry_is_named_with_its_place() -> None:
    found = look(Trial(RENAMED), {"a": 1}, {"c": 1}, {"a": 10})
    assert found == Findings(
        3, 1, 1, (Misfit(1, "lens", "/a", "there is no value"), Misfit(2, "schema", "/b", found.misfits[1].reason))
    )


def test_events_take_the_lenses_from_their_own_version_on() -> None:
    assert look(Trial(RENAMED), {"b": 3}, version=2) == look(Trial(RENAMED), {"b": 3}, version=3) == Findings(1)
    assert look(Trial(RENAMED), {"a": 3}, version=2).schema == 1


def test_events_from_before_the_first_schema_are_taken_as_they_are() -> None:
    trial = Trial(registry(shape(a=WHOLE)))
    assert look(trial, {"a": 1}, {"a": "x"}, version=0).schema == 1
    found = trial.check(0, 0, b'{"a": 1, "a": 2}', 1)
    assert [(misfit.pointer, misfit.reason) for misfit in found.misfits] == [("/a", "is a repeated key")]


def test_all_are_counted_and_the_first_are_named() -> None:
    found = look(Trial(RENAMED), *({"a": number} for number in range(3 * MAX_NAMED)))
    assert found.events == 300
    assert found.schema == 290
    assert len(found.misfits) == MAX_NAMED
    assert [misfit.seq for misfit in found.misfits] == list(range(10, 10 + MAX_NAMED))
    assert all(misfit.reason for misfit in found.misfits)


def test_an_event_that_is_too_deep_to_be_judged_is_named() -> None:
    deep = b"[" * 20_000 + b"]" * 20_000
    trial = Trial(registry(True, [{"op": "wrap", "path": "/a", "mode": "singleton"}], shape(a={"type": "array"})))
    found = trial.check(0, 1, b'{"a":1},{"a":' + deep + b"}", 2)
    assert found.failing == 1
    assert found.misfits[0].seq == 1
    assert found.misfits[0].reason == TOO_DEEP


def test_what_is_said_of_an_event_is_short() -> None:
    name = "x" * 1_000
    trial = Trial(registry(shape(**{name: TEXT})))
    (misfit,) = look(trial, {name: 1}).misfits
    assert len(misfit.pointer) == MAX_TEXT
    assert misfit.pointer[:4] == "/xxx"


def test_findings_are_bounded_and_know_their_fields() -> None:
    misfit = {"seq": 1, "cause": "lens", "pointer": "", "reason": "x"}
    for wrong in ({"misfits": [misfit] * 101}, {"events": -1}, {"other": 1}, {"misfits": [{**misfit, "cause": "x"}]}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Findings)


def test_a_lens_that_cannot_be_read_is_no_trial() -> None:
    with pytest.raises(CorruptData):
        Trial(Registry.empty("s").advanced(True, None, 0).advanced(True, {"ops": "none"}, 0))
