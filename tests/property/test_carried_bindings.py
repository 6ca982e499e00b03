"""Law of carried bindings: a field that is not listed answers alike before and after a lens, and one that is does not.

Operations may undo each other, and then a field is listed to be on the safe side. So each field that a single operation
lists has an event with other values, and of those that several list nine in ten have.

The oracle applies the lens to events in plain Python and reads fields and keys from the events before and after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.engine.registry.schemas import SEARCH
from headrace.query.definition import decode_exact
from headrace.query.search import Binding, Field, Kind
from headrace.query.values import values
from headrace.schema.apply import apply
from headrace.schema.plan import Plan, ValueImpact
from headrace.schema.registry import KeySetting, Registry
from headrace.schema.update import SchemaUpdate
from schema.lens.oracle import Names, Number, has, look, names_of, promoted, spell, text
from schema.lens.strategies import Case, Manner, Shape, cases, pointers_of

OPS = ("rename", "copy", "add", "remove", "hoist", "plunge", "wrap", "head", "convert", "in", "map")
#: As many events are tried before a field that is listed is said to have no counterexample.
TRIED = 400
#: And as many to find one that a field lacks which is not listed.
ENOUGH = 30

_DIGITS = ["12", "2023", "20240501", "-123"]
_TEXTS = [*_DIGITS, "x", "Y", "", "true", "ß", "İ", "falſe", "-3 apples", "2024-02-29T12:00:00Z", "/", "é"]
_WHOLE = ["0", "1", "-3", "-123", "7", "2023", "20240501", "1.0", "1e25", "9007199254740993", "9007199254740993.0"]
_NUMBERS = [*_WHOLE, "0.5", "2.50", "9007199254740992.5"]


def sample(random: Random, shape: Shape, share: float) -> Any:
    """An event of a shape, with a share of what may be left out."""
    match shape.kind:
        case "object":
            chosen = [item for item in shape.members.items() if item[1][1] or random.random() < share]
            return {name: sample(random, inner, share) for name, (inner, _) in chosen}
        case "array" if shape.items is not None:
            return [sample(random, shape.items, share) for _ in range(random.randint(*shape.lengths))]
        case "string":
            return random.choice(_TEXTS)
        case "number":
            return Number(random.choice(_NUMBERS))
        case "integer":
            return Number(random.choice(_WHOLE))
    return random.choice([True, False]) if shape.kind == "boolean" else None


def events(case: Case, random: Random) -> Iterator[Any]:
    yield from case.documents[0]
    for _ in range(TRIED):
        yield sample(random, case.shape, random.choice([0.0, 0.5, 0.9, 1.0]))


def values_of(kind: Kind, *, lowercase: bool) -> Callable[[Names, Any], list[Any]]:
    """Reads the values of a field."""

    def read(pointer: Names, event: Any) -> list[Any]:
        bound = Field(name="f", kind=kind, lowercase=lowercase, bindings=(Binding(1, pointer),))
        return [(type(value), value) for value in values(bound, event)]

    return read


def key_of(pointer: Names, event: Any) -> list[Any]:
    """Reads the routing key."""
    key = look(event, pointer) if has(event, pointer) else None
    return [key] if isinstance(key, str) and key else []


class Reading(NamedTuple):
    """What a registry reads before and after a change, and what the plan says of it."""

    before: Names
    after: Names
    effect: str | None
    read: Callable[[Names, Any], list[Any]]


def chosen_pointer(case: Case, random: Random) -> Names:
    """A pointer into an event before the lens, or now and then one into an event after it, or to nothing."""
    before, after = case.documents[0], case.documents[1]
    known = sorted({names for event in before for names in pointers_of(event)})
    later = sorted({names for event in after for names in pointers_of(event)})
    return random.choice(random.choice([known, known, known, later, [("nowhere",)]]))


def registry_of(case: Case, random: Random) -> Registry:
    """A registry with a few fields, a rollup over one of them, and a routing key, all at random places."""
    fields: dict[str, Any] = {"at": {"kind": "date"}}
    for number in range(3):
        kind = random.choice([*Kind])
        more = {"analyzer": "unicode_word_v1"} if kind is Kind.TEXT else {}
        lower = {"normalizer": "lowercase_v1"} if kind is Kind.KEYWORD and random.random() < 0.5 else {}
        fields[f"f{number}"] = {"kind": kind.value, "exact": True, **more, **lower}
    fields["n"] = {"kind": random.choice(["integer", "float"]), "aggregatable": True}
    for field in fields.values():
        field["bindings"] = [{"version": 1, "jsonPointer": text(chosen_pointer(case, random))}]
    rollup = {"intervals": ["1m"], "measures": {"n": {"kind": "summary", "field": "n"}}}
    search = {"primaryTimestampField": "at", "fields": fields, "rollups": {"r": rollup}}
    made = Registry.empty("s").advanced(case.schema, None, 0)
    key = KeySetting(text(chosen_pointer(case, random)), False)
    return msgspec.structs.replace(made, search=search, routing_key=key)


def readings(old: Registry, plan: Plan[Registry]) -> Iterator[Reading]:
    """Every field and the routing key."""
    effects = {one.subject: one.effect.value for one in plan.impact if isinstance(one, ValueImpact)}
    new = plan.registry
    assert old.routing_key is not None and new.routing_key is not None
    places = names_of(old.routing_key.pointer), names_of(new.routing_key.pointer)
    yield Reading(*places, effects.get("/routingKey"), key_of)
    for name, field in new.search["fields"].items():
        places = names_of(field["bindings"][0]["jsonPointer"]), names_of(field["bindings"][-1]["jsonPointer"])
        read = values_of(Kind(field["kind"]), lowercase="normalizer" in field)
        yield Reading(*places, effects.get(f"/search/fields/{name}"), read)
    used = {effects.get("/search/fields/at"), effects.get("/search/fields/n")}
    assert (effects.get("/search/rollups/r") is None) == (used == {None})


@pytest.mark.parametrize("op", OPS)
def test_a_field_is_listed_if_and_only_if_some_event_has_other_values(op: str) -> None:
    seen = Counter[str]()

    @settings(max_examples=200, suppress_health_check=[HealthCheck.filter_too_much])
    @given(cases(Manner.LOOSE, first=op), st.integers(0, 2**32 - 1))
    def holds(case: Case, seed: int) -> None:
        listed, without = checked(case, Random(seed))
        assert not without or count_ops(case.wire[0]["ops"]) > 1, without
        seen.update(listed=listed, without=len(without))

    holds()
    assert seen["listed"] >= 10 * seen["without"]


def checked(case: Case, random: Random) -> tuple[int, list[Reading]]:
    """How many fields are listed, and those of them whose values are the same in every event that was tried."""
    old = registry_of(case, random)
    update = SchemaUpdate(schema=True, lens=case.wire[0])
    plan = apply(old, update, next_seq=5, is_empty=False, search_rules=SEARCH)
    assume(not plan.refusals)
    wanted = list(readings(old, plan))
    differing: set[Reading] = set()
    for number, event in enumerate(events(case, random)):
        listed = [one for one in wanted if one.effect is not None and one not in differing]
        if number > ENOUGH and not listed:
            break
        before = decode_exact(spell(event))
        after = decode_exact(spell(promoted(case.wire[0]["ops"], event)))
        for one in wanted:
            was, now = one.read(one.before, before), one.read(one.after, after)
            assert one.effect is not None or was == now, (one, before, after)
            assert one.effect != "lost" or not now, (one, before, after)
            differing |= {one} if was != now else set()
    listed = [one for one in wanted if one.effect is not None]
    return len(listed), [one for one in listed if one not in differing]


def count_ops(ops: list[dict[str, Any]]) -> int:
    return sum(1 + count_ops(op.get("ops", [])) for op in ops)
