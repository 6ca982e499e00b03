"""The law of a diff: where no change is breaking, every event that was valid stays valid."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from headrace.schema.canonical import same
from headrace.schema.change import Classification, worst
from headrace.schema.containment import find_schema_gaps
from headrace.schema.diff import diff, judge
from headrace.schema.document import Validator, problems
from schema.sketches import DRAFTS, Guess, Sketch

PAIRS_PER_SHARE = 250
SHARES = 8
DOCUMENTS = 12


class Edit:
    """Changes a schema document here and there, as people do when their events change."""

    def __init__(self, random: Random, draft: int, definitions: tuple[str, ...]) -> None:
        self._random = random
        self._sketch = Sketch(random, draft, definitions)

    def document(self, schema: Any) -> Any:
        edited = copy.deepcopy(schema)
        for _ in range(self._random.choice([1, 1, 1, 2, 3])):
            before = copy.deepcopy(edited)
            while same(before, edited):
                self._node(self._random.choice(list(_nodes(edited))))
        return edited

    def _node(self, node: dict[str, Any]) -> None:
        edits = [self._annotate, self._drop_keyword, self._open_type, self._limits, self._members, self._members]
        if "enum" in node:
            edits += [self._choices, self._choices]
        self._random.choice(edits)(node)

    def _annotate(self, node: dict[str, Any]) -> None:
        node["title"] = self._random.choice(["one", "two"])

    def _drop_keyword(self, node: dict[str, Any]) -> None:
        names = [name for name in node if name not in ("$defs", "definitions", "$schema", "$ref")]
        if names:
            del node[self._random.choice(names)]

    def _open_type(self, node: dict[str, Any]) -> None:
        types = node.get("type")
        if isinstance(types, str):
            node["type"] = "number" if types == "integer" else [types, *({"null", "string"} - {types})]

    def _limits(self, node: dict[str, Any]) -> None:
        for name in ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "multipleOf"):
            if name in node:
                node[name] = max(node[name] + self._random.choice([-1, 1]), 0 if name != "multipleOf" else 1)

    def _choices(self, node: dict[str, Any]) -> None:
        if self._random.random() < 0.5 or len(node["enum"]) == 1:
            node["enum"] = [*node["enum"], "brand new"]
        else:
            node["enum"] = node["enum"][1:]

    def _members(self, node: dict[str, Any]) -> None:
        properties = node.get("properties")
        if not properties:
            return
        name = self._random.choice(list(properties))
        match self._random.randrange(6):
            case 0 | 1:
                properties["fresh"] = self._sketch.leaf()
            case 2:
                del properties[name]
            case 3:
                node["required"] = [*dict.fromkeys([*node.get("required", []), name])]
            case 4:
                node["required"] = [other for other in node.get("required", [name]) if other != name] or ["fresh"]
            case _:
                node["additionalProperties"] = self._random.choice([{}, {"type": "string"}])


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for name in ("properties", "$defs", "definitions"):
            for inner in schema.get(name, {}).values():
                yield from _nodes(inner)
        yield from _nodes(schema.get("items"))


def pairs(seed: int) -> Iterator[tuple[Any, Any, Guess]]:
    random = Random(seed)
    for _ in range(PAIRS_PER_SHARE):
        draft = random.choice([2020, 2020, 2020, *DRAFTS])
        definitions = ("one", "two") if random.random() < 0.3 else ()
        old = Sketch(random, draft, definitions).document()
        if random.random() < 0.9:
            new = Edit(random, draft, definitions).document(old)
        else:
            new = Sketch(random, random.choice(list(DRAFTS))).document()
        if not problems(old) and not problems(new):
            yield old, new, Guess(random, old)


@pytest.mark.parametrize("share", range(SHARES))
def test_events_stay_valid_where_no_change_is_breaking(share: int) -> None:
    harmless = 0
    for old, new, guess in pairs(share):
        changes = diff(old, new)
        if worst(changes).breaking:
            continue
        harmless += 1
        before, after = Validator(old), Validator(new)
        for _ in range(DOCUMENTS):
            event = guess.value(old)
            for tried in (event, guess.changed(event)):
                assert after.accepts(tried) or not before.accepts(tried), (old, new, tried, changes)
                if worst(changes) is Classification.IDENTICAL:
                    assert before.accepts(tried) == after.accepts(tried), (old, new, tried, changes)
    assert harmless > PAIRS_PER_SHARE / 5


@pytest.mark.parametrize("share", range(2))
def test_changes_are_breaking_exactly_where_containment_is_not_proven(share: int) -> None:
    verdicts = set()
    for old, new, _ in pairs(100 + share):
        changes = diff(old, new)
        proven = not find_schema_gaps(old, new, judge)
        assert worst(changes).breaking is not proven, (old, new, changes)
        assert (changes == ()) is same(old, new)
        assert diff(old, old) == ()
        verdicts.add(worst(changes))
    assert verdicts == set(Classification) - {Classification.FORBIDDEN}
