"""Checking JSON Schemas, and validating entries against them.

jsonschema-rs validates what the fast validator does not accept. A schema that could be slow is refused: patterns run in
linear time or not at all, and what references unfold to is bounded. Whole numbers of any size and decimals below 2^53
are compared by all their digits; beyond 2^53, a number with a fraction, or spelled with an exponent, is compared as
the nearest double.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from functools import cache, cached_property
from itertools import islice
from typing import Any

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationError as Error
from jsonschema_rs import ValidationErrorKind as Kind

from headrace.deadline import check_deadline
from headrace.schema import date_time, entries, pointer
from headrace.schema.entries import Failure
from headrace.schema.fast_validator import FastValidator, make_fast_validator
from headrace.schema.pointer import Pointer
from headrace.schema.problem import Problem
from headrace.schema.subschemas import MAX_HEIGHT, MAX_UNFOLDED, Subschemas, resolve_pointer

MAX_BYTES = 256 * 1024
MAX_NESTING = 100
MAX_PATTERNS = 100
MAX_PATTERN_BYTES = 1024 * 1024
MAX_PROBLEMS = 100

#: Branches of a choice, and values of an enum that are no plain strings or whole numbers.
MAX_CHOICES = 1_000

#: How many failing entries of an append are reported, with how many reasons each.
MAX_ENTRIES = 20
MAX_REASONS = 4
MAX_TEXT = 300
#: How deep an entry may be nested under a schema that refers to itself.
MAX_DEPTH = 100
#: Beyond so many values, levels, or paths through a recursive schema, fewer details are reported.
MAX_VALUES = 1_000
MAX_SHOWN = 200
MAX_RETRACED = 10_000

_CHOICES = frozenset({"anyOf", "oneOf"})

DRAFTS = (
    "json-schema.org/draft-04/schema",
    "json-schema.org/draft-06/schema",
    "json-schema.org/draft-07/schema",
    "json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft/2020-12/schema",
)


def problems(schema: Any) -> list[Problem]:
    """Every problem of a JSON Schema; an empty list if it can be used."""
    if not isinstance(schema, dict | bool):
        return [Problem("", "a schema is an object or a boolean")]
    schema_problems = _size_problems(schema) or _draft_problems(schema)
    if schema_problems:
        return schema_problems
    inside = Subschemas(schema)
    schema_problems = [
        *_meta_schema_problems(schema),
        *_reference_problems(inside),
        *_pattern_problems(inside),
        *_choice_problems(inside),
    ][:MAX_PROBLEMS]
    return schema_problems or _unfolding_problems(inside) or _compile_problems(schema)


class Validator:
    """A schema without problems, compiled once to validate many entries."""

    def __init__(self, schema: Any) -> None:
        self._inside = inside = Subschemas(schema)
        self._prepared = _prepare(inside)
        self._compiled = _compile(self._prepared)
        self._returns = inside.unfolded.returns
        self._chooses = any(not _CHOICES.isdisjoint(part) for part in inside.at.values() if isinstance(part, dict))
        self._is_valid = self._judge_bounded if self._returns else self._compiled.is_valid

    @cached_property
    def fast_validator(self) -> FastValidator | None:
        """The fast validator of the schema, if it can have one."""
        return make_fast_validator(self._inside, self._prepared, lambda schema: _compile(schema).is_valid)

    def count(self, body: bytes) -> int | None:
        """How many entries a JSON array holds, if the fast validator accepts all of them."""
        return None if self.fast_validator is None else self.fast_validator.count(body)

    def accepts(self, value: Any) -> bool:
        """Whether a decoded document is valid."""
        return self._is_valid(value)

    def failures(self, joined: bytes) -> list[Failure]:
        """The first failures of entries joined by commas, with reasons; an empty list if all are valid."""
        if self.fast_validator is not None and self.fast_validator.fits(joined):
            return []
        values, lost = entries.read(joined)
        if not lost and all(self._is_valid(value) for value in values):
            if self.fast_validator is not None and self.fast_validator.wants_examples:
                self.fast_validator.learn(values)
            return []
        failing = {failure.index: [failure] for failure in reversed(lost)}
        unfit = (index for index, value in enumerate(values) if index not in failing and not self._is_valid(value))
        failing |= {index: [] for index in islice(unfit, MAX_ENTRIES + 1)}
        named: list[Failure] = []
        for index in sorted(failing)[:MAX_ENTRIES]:
            named += failing[index] or self._reasons(index, values[index])
        if len(failing) > MAX_ENTRIES:
            index = sorted(failing)[MAX_ENTRIES]
            named.append(Failure(index, "", "fails too, and so may others after it"))
        return named

    def _judge_bounded(self, value: Any) -> bool:
        return _measure(value)[0] <= MAX_DEPTH and self._compiled.is_valid(value)

    def _reasons(self, index: int, value: Any) -> list[Failure]:
        """Why an entry fails; without details where finding them could take too long."""
        depth, size = _measure(value)
        if self._returns and depth > MAX_DEPTH:
            return [Failure(index, "", f"is nested more than {MAX_DEPTH} deep")]
        if self._returns**depth > MAX_RETRACED or depth > MAX_SHOWN or (self._chooses and size > MAX_VALUES):
            return [Failure(index, "", "does not fit the schema, and is too large to say where")]
        return [Failure(index, *_explain(error)) for error in self._errors(value, size)]

    def _errors(self, value: Any, size: int) -> Iterator[Error]:
        """Some of what the library finds; it finds all at once, so of a large value only the first."""
        if size <= MAX_VALUES:
            yield from islice(self._compiled.iter_errors(value), MAX_REASONS)
            return
        try:
            self._compiled.validate(value)
        except Error as error:
            yield error


def _compile(schema: Any) -> jsonschema_rs.Validator:
    """A validator that fetches nothing, runs patterns in linear time and asserts no format."""
    return jsonschema_rs.validator_for(
        schema,
        validate_formats=False,
        offline=True,
        mask="value",
        pattern_options=jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES),
    )


def _prepare(inside: Subschemas) -> Any:
    """An equivalent schema that the library validates quickly and exactly.

    ``date-time`` is asserted by a pattern, which costs a tenth of a Python function.
    """
    schema = _with_integers(inside.root)
    for path, subschema in inside.at.items():
        if isinstance(subschema, dict) and subschema.get("format") == "date-time":
            mine = resolve_pointer(schema, path)[1]
            if "pattern" in mine:
                mine["allOf"] = [*mine.get("allOf", ()), {"pattern": date_time.PATTERN}]
            else:
                mine["pattern"] = date_time.PATTERN
    return schema


def _with_integers(value: Any) -> Any:
    """A copy with 1 for 1.0, which the library compares with long decimals exactly."""
    if isinstance(value, dict):
        return {name: _with_integers(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_with_integers(element) for element in value]
    return int(Decimal(repr(value))) if isinstance(value, float) and value.is_integer() else value


def _measure(value: Any) -> tuple[int, int]:
    """How deep a value is nested, and how many values it holds; counting stops below ``MAX_SHOWN`` levels."""
    level, depth, size = [value], 0, 1
    while depth <= MAX_SHOWN:
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            break
        level = [part for item in containers for part in (item.values() if isinstance(item, dict) else item)]
        depth += 1
        size += len(level)
    return depth, size


def _explain(error: Error) -> tuple[str, str]:
    """The pointer and reason of an error; a choice with one option that fails deeper is reported there."""
    if isinstance(error.kind, Kind.AnyOf | Kind.OneOfNotValid):
        options = [option[0] for option in error.kind.context if option]
        deeper = [option for option in options if len(option.instance_path) > len(error.instance_path)]
        if len(deeper) == 1:
            return _explain(deeper[0])
        reasons = dict.fromkeys(_explain(option)[1] for option in options)
        reason = f"value fits none of the choices: {'; '.join(reasons)}"
    elif isinstance(error.kind, Kind.Pattern) and error.kind.pattern == date_time.PATTERN:
        reason = "value is not a date-time such as 2026-05-04T10:11:12.123Z"
    else:
        reason = error.message
    return _shorten(pointer.text(tuple(map(str, error.instance_path)))), _shorten(reason)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _size_problems(schema: Any) -> list[Problem]:
    if _measure(schema)[0] > MAX_NESTING:
        return [Problem("", f"the schema is nested more than {MAX_NESTING} deep")]
    if len(msgspec.json.encode(schema)) > MAX_BYTES:
        return [Problem("", f"the schema has more than {MAX_BYTES} bytes")]
    return []


def _draft_problems(schema: Any) -> list[Problem]:
    if _draft(schema) in DRAFTS:
        return []
    return [Problem("/$schema", "names none of the drafts 4, 6, 7, 2019-09 and 2020-12")]


def _draft(schema: Any) -> str:
    """The draft a schema names; the newest, where it names none."""
    named = schema.get("$schema", DRAFTS[-1]) if isinstance(schema, dict) else DRAFTS[-1]
    return str(named).removeprefix("https://").removeprefix("http://").removesuffix("#")


@cache
def _meta_schema(draft: str) -> jsonschema_rs.Validator:
    uri = f"{'https' if '/draft/' in draft else 'http'}://{draft}"
    return jsonschema_rs.validator_for(
        {"$schema": uri, "$ref": uri}, validate_formats=False, offline=True, mask="value"
    )


def _meta_schema_problems(schema: Any) -> Iterator[Problem]:
    """Violations of the meta-schema of the draft."""
    errors = _meta_schema(_draft(schema)).iter_errors(schema)
    yield from dict.fromkeys(Problem(*_explain(error)) for error in errors)


def _reference_problems(inside: Subschemas) -> Iterator[Problem]:
    """References that lead out of the document or nowhere, and schemas of another draft."""
    for path, keyword, text, target, reason in inside.references:
        if target is None:
            yield Problem(pointer.text((*path, keyword)), _shorten(f"{text!r} {reason}"))
    for path, schema in inside.at.items():
        check_deadline()
        if isinstance(schema, dict) and schema.get("$schema", inside.draft) != inside.draft:
            yield Problem(pointer.text((*path, "$schema")), "is not the draft that the whole schema names")


def _pattern_problems(inside: Subschemas) -> Iterator[Problem]:
    """Patterns that are not linear or too large; only their number where there are too many."""
    patterns = [pattern for path, schema in inside.at.items() for pattern in _patterns(path, schema)]
    if len(patterns) > MAX_PATTERNS:
        yield Problem("", f"the schema has {len(patterns)} patterns, more than {MAX_PATTERNS}")
        return
    for path, text in patterns:
        check_deadline()
        try:
            _compile({"pattern": text})
        except Error:
            yield Problem(
                pointer.text(path),
                "is not a pattern that surely takes linear time: look-around and back-references are refused, "
                f"and what compiles to more than {MAX_PATTERN_BYTES} bytes",
            )


def _patterns(path: Pointer, schema: Any) -> Iterator[tuple[Pointer, str]]:
    if not isinstance(schema, dict):
        return
    if isinstance(text := schema.get("pattern"), str):
        yield (*path, "pattern"), text
    if isinstance(named := schema.get("patternProperties"), dict):
        for text in named:
            yield (*path, "patternProperties", text), text


def _unfolding_problems(inside: Subschemas) -> list[Problem]:
    """Schemas that unfold too far, or endlessly."""
    if inside.unfolded.height > MAX_HEIGHT:
        return [Problem("", f"the schema is nested more than {MAX_HEIGHT} deep where its references are followed")]
    if inside.unfolded.size > MAX_UNFOLDED:
        return [Problem("", f"the schema has more than {MAX_UNFOLDED} parts where its references are followed")]
    if (path := inside.find_loop()) is not None:
        return [Problem(pointer.text(path), "the schema refers to itself without end")]
    return []


def _choice_problems(inside: Subschemas) -> Iterator[Problem]:
    """Choices with so many options that validating an event would take long."""
    for path, part in inside.at.items():
        check_deadline()
        if not isinstance(part, dict):
            continue
        for name in ("anyOf", "oneOf", "allOf"):
            if isinstance(part.get(name), list) and len(part[name]) > MAX_CHOICES:
                yield Problem(pointer.text((*path, name)), f"has more than {MAX_CHOICES} branches")
        values = part.get("enum")
        if isinstance(values, list) and len(values) > MAX_CHOICES and len({type(value) for value in values}) > 1:
            yield Problem(pointer.text((*path, "enum")), f"has more than {MAX_CHOICES} values of several types")
        elif isinstance(values, list) and len(values) > MAX_CHOICES and not isinstance(values[0], str | int):
            yield Problem(pointer.text((*path, "enum")), f"has more than {MAX_CHOICES} values that are no plain ones")


def _compile_problems(schema: Any) -> list[Problem]:
    """Other errors of the library when it compiles the schema."""
    try:
        Validator(schema)
    except (Error, jsonschema_rs.ReferencingError, ValueError) as reason:
        return [Problem("", _shorten(str(getattr(reason, "message", reason))))]
    return []
