"""The law of the fast validator: what it accepts, jsonschema-rs finds valid, no key repeats and no digit was lost."""

from __future__ import annotations

import json
from copy import copy
from decimal import Decimal
from random import Random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schema.date_time import is_date_time
from headrace.schema.document import Validator, problems
from headrace.schema.entries import read
from schema.sketches import DRAFTS, NAMES, NUMBERS, WORDS, Guess, Sketch
from schema.strategies import documents, near_misses, object_schemas

SHARES = 8
SCHEMAS_PER_SHARE = 300
BODIES = 12
MEMBERS = 1_000
#: Names that structures or spellings could trip over.
ODD_NAMES = [*NAMES, "", ":", "x y", 'q"', "\\", "\n", "😀", "m0", "class"]
LIMITS = [0, 1, -1, 2, 3, 5, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 0.5, 1.0, 1e22]
CHOICES = [WORDS, [0, 1, 2, 5, -3, 2**53, 2**53 + 1, 2**63, 2**64], [None, "a", 1], [1, 2.0, True]]


class Plain(Sketch):
    """Draws schemas that types can say, or nearly."""

    def schema(self, depth: int) -> Any:
        if self.chance(0.12):
            return super().schema(depth)
        if self._definitions and self.chance(0.15):
            return self._reference()
        if depth > 0 and self.chance(0.35):
            return self.random.choice([self.object, self.object, self.array])(depth - 1)
        return self.leaf()

    def leaf(self) -> Any:
        schema = self.random.choice(
            [super().leaf, self._text, self._limited, self._limited, self._boolean, self._choice]
        )()
        if isinstance(schema, dict) and isinstance(schema.get("type"), str) and self.chance(0.2):
            others = ["null", "boolean", "string", "integer", "number", "object", "array"]
            schema["type"] = [*dict.fromkeys([schema["type"], *self.random.sample(others, 2)])]
        return {"anyOf": [schema, {"type": "null"}]} if self.chance(0.1) else schema

    def object(self, depth: int) -> dict[str, Any]:
        if self.chance(0.1):
            return super().object(depth)
        names = self.random.sample(ODD_NAMES, self.random.choice([0, 1, 1, 2, 2, 3, 6]))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self.schema(depth) for name in names}}
        if self.chance(0.08):
            schema["type"] = ["object", "null"]
        if required := [name for name in names if self.chance(0.6)]:
            schema["required"] = required
        if self.chance(0.6):
            schema["additionalProperties"] = self.chance(0.3)
        return schema

    def document(self) -> Any:
        """A whole schema; with some plain members more, so that others may be left open."""
        schema = super().document()
        if "properties" in schema:
            schema["properties"] |= {f"t{number}": {"type": "string"} for number in range(self.random.choice([0, 6]))}
        return schema

    def _reference(self) -> Any:
        reference = super()._reference()
        return {**reference, **self._limited()} if self.chance(0.2) else reference

    def _text(self) -> dict[str, Any]:
        return {"type": "string", **self._ends("minLength", "maxLength", range(5))}

    def _limited(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.random.choice(["integer", "number", ["integer", "number"]])}
        limits = self.random.choice([range(4), LIMITS])
        schema |= {name: self.random.choice(limits) for name in ("minimum", "maximum") if self.chance(0.4)}
        if self.chance(0.2):
            schema["multipleOf"] = self.random.choice([1, 2, 3, 2.0, 0.5, 2**53 + 1])
        return self._exclusive(schema)

    def _choice(self) -> dict[str, Any]:
        values = self.random.choice(CHOICES)
        chosen = self.random.sample(values, self.random.randint(1, len(values)))
        schema = {"enum": chosen} if self.draft == 4 or self.chance(0.6) else {"const": chosen[0]}
        if self.chance(0.5):
            schema["type"] = self.random.choice(["string", "integer", "number", "null", ["string", "null"]])
        return schema | self.random.choice([{}, {}, {}, {"minLength": 1}, {"maximum": 1}])


class Speller:
    """Spells values as JSON: plainly, or odd in one way or in all."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._way = random.choice([*["plain"] * 4, "blanks", "escapes", "numbers", "numbers", "repeats", "all"])

    def spell(self, value: Any) -> str:
        blank = self._random.choice(["", " ", "\n", "\t\r "]) if self._odd("blanks") else ""
        if isinstance(value, dict):
            return f"{{{blank}{','.join(self._members(value, blank))}}}{blank}"
        if isinstance(value, list):
            return f"{blank}[{','.join(map(self.spell, value))}{blank}]"
        if isinstance(value, bool) or value is None:
            return blank + json.dumps(value)
        return blank + (self._text(value) if isinstance(value, str) else self._number(value)) + blank

    def _odd(self, way: str) -> bool:
        return self._way in (way, "all") and self._random.random() < 0.4

    def _members(self, value: dict[str, Any], blank: str) -> list[str]:
        members = [f"{blank}{self._text(name)}{blank}:{self.spell(member)}" for name, member in value.items()]
        if members and self._odd("repeats"):
            members.append(
                f"{self._text(self._random.choice(list(value)))}:{self.spell(self._random.choice([1, 'a']))}"
            )
        return self._random.sample(members, len(members)) if self._random.random() < 0.3 else members

    def _text(self, text: str) -> str:
        if not self._odd("escapes"):
            return json.dumps(text, ensure_ascii=self._odd("escapes"))
        units = text.encode("utf-16-be").hex()
        return '"' + "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)) + '"'

    def _number(self, number: float) -> str:
        return self._random.choice(odd_numbers(number)) if self._odd("numbers") else repr(number)


def odd_numbers(number: float) -> list[str]:
    """Ways to spell a number, and one just beside it."""
    exact = Decimal(repr(number))
    whole = f"{exact:f}" if "." in f"{exact:f}" else f"{exact:f}.0"
    return [whole, f"{whole}0", f"{whole}000000000000000000000001", f"{exact:e}"]


def is_sound(text: str, judge: jsonschema_rs.Validator) -> bool:
    """Whether an entry is valid, by all the digits of its numbers, and repeats no key."""
    repeated = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=members, parse_float=Decimal)
    return judge.is_valid(value) and not any(repeated)


def oracle(schema: Any) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        schema,
        validate_formats=True,
        formats={"date-time": is_date_time},
        pattern_options=jsonschema_rs.RegexOptions(),
    )


def drawn(random: Random, schema: Any) -> list[Any]:
    """Some values, most of them valid."""
    guess = Guess(random, schema)
    values = []
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        try:
            value = guess.value(schema)
        except OverflowError:  # a limit that is infinite as a float
            continue
        values.append(guess.changed(value) if random.random() < 0.3 else value)
    return values


@pytest.mark.parametrize("share", range(SHARES))
def test_what_is_seen_to_fit_is_valid(share: int) -> None:
    seen = schemas = 0
    for seed in range(SCHEMAS_PER_SHARE):
        random = Random(share * SCHEMAS_PER_SHARE + seed)
        draft = random.choice([2020, 2020, 2020, *DRAFTS])
        schema = Plain(random, draft, random.choice([(), ("a", "b")])).document()
        assert problems(schema) == []
        validator, judge = Validator(schema), oracle(schema)
        if validator.fast_validator is None:
            continue
        schemas += 1
        untaught = copy(validator.fast_validator)
        for _ in range(BODIES):
            speller = Speller(random)
            texts = [speller.spell(value) for value in drawn(random, schema)]
            body = ",".join(texts).encode()
            if copy(untaught).fits(body) or validator.fast_validator.fits(body):
                seen += 1
                assert all(is_sound(text, judge) for text in texts), (schema, texts)
            else:
                validator.failures(body)  # it may learn from what it missed
    assert schemas > SCHEMAS_PER_SHARE / 4
    assert seen > 2 * schemas


def test_a_member_is_seen_to_fit_only_where_it_does() -> None:
    seen = 0
    for seed in range(MEMBERS):
        random = Random(seed)
        texts = {f"t{number}": {"type": "string"} for number in range(4)}
        leaf = Plain(random).leaf()
        schema = {"type": "object", "properties": {"a": leaf, **texts}}
        look, judge, guess = Validator(schema).fast_validator, oracle(schema), Guess(random, schema)
        assert look is not None
        for value in [*(guess.value(leaf) for _ in range(4)), *NUMBERS, *WORDS, None, True, [], {}]:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            for text in [json.dumps(value), *(odd_numbers(value) if number else ())]:
                if copy(look).fits(f'{{"a":{text}}}'.encode()):
                    seen += 1
                    assert is_sound(f'{{"a":{text}}}', judge), (leaf, text)
    assert seen > 10 * MEMBERS


@given(st.data())
def test_a_glance_never_changes_the_verdict(data: st.DataObject) -> None:
    schema = data.draw(object_schemas())
    validator, judge = Validator(schema), oracle(schema)
    for value in data.draw(st.lists(documents(schema) | near_misses(schema), min_size=1, max_size=5)):
        text = json.dumps(value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
        assert (validator.failures(text.encode()) == []) == judge.is_valid(read(text.encode())[0][0])
