"""Whether every value of a shape is valid under a schema, keyword by keyword; what cannot be shown is a gap.

Schemas that refer to themselves end by induction over the value: what is being shown of a value may be taken as shown
of the values inside it, never of the value itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.deadline import check_deadline
from headrace.schema.pointer import Pointer
from headrace.schema.shape.algebra import empty
from headrace.schema.shape.model import ANY_NUMBER, Alternative, Boolean, Facts, Number, Shape, Text
from headrace.schema.shape.read import GROUPS, group
from headrace.schema.shape.source import Source

_SHOWN = 4


def describe_alternative(alternative: Alternative) -> str:
    """The values of an alternative, in a few words."""
    if isinstance(alternative, Boolean) and len(alternative.values) == 1:
        return format_json(*alternative.values)
    if isinstance(alternative, Number) and alternative.values is not None:
        return join_first(sorted(alternative.values))
    if isinstance(alternative, Text) and alternative.values is not None:
        return join_first([format_json(value) for value in sorted(alternative.values)])
    if isinstance(alternative, Number) and alternative.integer != ANY_NUMBER:
        return "an integer"
    return _NAMES[alternative.kind]


_NAMES = {
    "null": "null",
    "boolean": "a boolean",
    "number": "a number",
    "string": "a string",
    "object": "an object",
    "array": "an array",
}
EVERYTHING = frozenset(_NAMES.values())
"""The descriptions of a value that may be of any kind."""


def format_json(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=float)
    return text if len(text) <= 60 else text[:57] + "..."


def join_first(texts: list[str]) -> str:
    """The first few of many."""
    shown = " or ".join(texts[:_SHOWN])
    return shown if len(texts) <= _SHOWN else f"{shown} or {len(texts) - _SHOWN} more"


Oracle = Callable[[Any], Callable[[Any], bool]]
"""Compiles a schema to a function that tells whether a value is valid."""

MAX_STEPS = 20_000
"""How many steps one check may take."""

_NO_LEVEL = 1_000_000
_REPEATED = 2
_GROUP = {names[0]: names for names in GROUPS}


class Gap(NamedTuple):
    """Something that could not be proven: of which value, by which keyword of the schema, and why."""

    pointer: Pointer
    keyword: Pointer
    wanted: str
    descriptions: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The gap in a sentence."""
        if not self.descriptions:
            return self.wanted
        kinds = "anything" if {*self.descriptions} >= EVERYTHING else " or ".join(self.descriptions)
        return f"it may be {kinds}; {self.wanted}"

    def moved(self, before: ProofLocation, after: ProofLocation) -> Gap:
        """The same gap where the same schemas meet again."""
        return self._replace(pointer=after.value + self.pointer[len(before.value) :])


class ProofLocation(NamedTuple):
    """The location of a check, in the value and in the schema."""

    value: Pointer = ()
    schema: Pointer = ()

    def under(self, *keyword: str) -> ProofLocation:
        """The same value, further into the schema."""
        return ProofLocation(self.value, self.schema + keyword)

    def inside(self, name: str, *keyword: str) -> ProofLocation:
        """Further into both."""
        return ProofLocation((*self.value, name), self.schema + keyword)

    def followed(self, source: Source) -> tuple[Source, ProofLocation]:
        """Where a schema that is nothing but a reference leads."""
        target, location = source.followed()
        return target, self if location is None else ProofLocation(self.value, location)

    def gap(self, wanted: str, *descriptions: str) -> Gap:
        """Something that could not be shown here."""
        return Gap(self.value, self.schema, wanted, descriptions)


class Exhausted(Exception):
    """The check needs more than ``MAX_STEPS`` steps."""


Question = tuple[Facts, str]
"""Whether what is valid under some schemas is valid under another one."""
Rule = Callable[["Check", Alternative, Any, Source, ProofLocation], Iterator[Gap]]


class Check:
    """One containment check, with the oracle that decides about single texts."""

    def __init__(self, rules: dict[str, Rule], oracle: Oracle | None) -> None:
        self._rules = rules
        self._oracle = oracle
        self._steps_left = MAX_STEPS
        self._assumed: dict[Question, int] = {}
        self._shown: set[Question] = set()
        self._refuted: dict[Question, tuple[ProofLocation, list[Gap]]] = {}
        self._lowest_assumed = _NO_LEVEL

    def accepts(self, schema: Any, value: str) -> bool:
        """Whether a text is valid by the oracle; without one no text is."""
        check_deadline()
        return self._oracle is not None and self._oracle(schema)(value)

    def may_match(self, pattern: str, name: str) -> bool:
        """Whether a name may match a pattern; without an oracle any may."""
        return self._oracle is None or self.accepts({"pattern": pattern}, name)

    def does_match(self, pattern: str, name: str) -> bool:
        """Whether a name is known to match a pattern."""
        return self.accepts({"pattern": pattern}, name)

    def shape(self, shape: Shape, source: Source, location: ProofLocation) -> list[Gap]:
        """What cannot be shown of the values of a shape."""
        check_deadline()
        source, location = location.followed(source)
        if source.root.plain and source.schema is not False and not source.keywords():
            return []
        if shape.key is None:
            return self._alternatives(shape, source, location)
        question = (shape.key, source.fact)
        if source.fact in shape.key or question in self._shown:
            return []
        if question in self._assumed:
            return self._assume(question, location)
        if question not in self._refuted:
            return self._answer(question, location, lambda: self._alternatives(shape, source, location))
        before, gaps = self._refuted[question]
        return [gap.moved(before, location) for gap in gaps[:_REPEATED]]

    def _assume(self, question: Question, location: ProofLocation) -> list[Gap]:
        level = self._assumed[question]
        assert level < len(location.value), "shapes are asked about one level at a time"
        self._lowest_assumed = min(self._lowest_assumed, level)
        return []

    def _answer(self, question: Question, location: ProofLocation, answer: Callable[[], list[Gap]]) -> list[Gap]:
        """The answer, cached; one without gaps is cached only where it depends on no open question."""
        level = len(location.value)
        outer, self._lowest_assumed = self._lowest_assumed, level
        self._assumed[question] = level
        try:
            gaps = answer()
        finally:
            del self._assumed[question]
        if gaps:
            self._refuted[question] = location, gaps
        elif self._lowest_assumed >= level:
            self._shown.add(question)
        self._lowest_assumed = outer if self._lowest_assumed >= level else min(outer, self._lowest_assumed)
        return gaps

    def _alternatives(self, shape: Shape, source: Source, location: ProofLocation) -> list[Gap]:
        gaps: dict[tuple[Any, ...], Gap] = {}
        for alternative in shape.alternatives:
            for gap in () if empty(alternative) else self.alternative(alternative, source, location):
                same = gaps.get(gap[:3], gap)
                descriptions = (
                    *same.descriptions,
                    *(description for description in gap.descriptions if description not in same.descriptions),
                )
                gaps[gap[:3]] = gap._replace(descriptions=descriptions)
        return list(gaps.values())

    def alternative(self, alternative: Alternative, source: Source, location: ProofLocation) -> list[Gap]:
        """What cannot be shown of the values of an alternative."""
        check_deadline()
        self._steps_left -= 1
        if self._steps_left < 0:
            raise Exhausted
        source, location = location.followed(source)
        if source.fact in alternative.facts:
            return []
        if source.schema is False:
            return [location.gap("the new schema admits nothing here")]
        if not source.root.plain:
            return [location.gap("the new schema uses names that are not followed; only an equal schema is proven")]
        gaps: list[Gap] = []
        for keyword, value in source.keywords().items():
            names = _GROUP.get(keyword)
            if keyword in self._rules and not (names and group(source, names) in alternative.facts):
                gaps.extend(self._rules[keyword](self, alternative, value, source, location.under(keyword)))
        return gaps

    def holds(self, alternative: Alternative, source: Source, location: ProofLocation) -> bool:
        """Whether all values of an alternative are shown to be valid."""
        return not self.alternative(alternative, source, location)
