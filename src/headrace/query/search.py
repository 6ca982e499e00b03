"""The search declaration of a stream: its fields, the queries that each allows, and its rollups."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from headrace.operators.catalogue import DECLARATIONS
from headrace.query.tree import Clause, Contains, Node, clauses
from headrace.schema.pointer import Pointer
from headrace.types import FieldType

#: The numbers and the histogram that one measure of kind ``summary_parts`` reads.
PARTS = ("count", "sum", "min", "max", "histogram")


class Kind(StrEnum):
    """What the values of a field are."""

    KEYWORD = "keyword"
    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    DATE = "date"
    BOOL = "bool"


#: The types that operators take values of fields for; dates are milliseconds since 1970.
FIELD_TYPES: dict[Kind, FieldType] = {
    Kind.KEYWORD: "str",
    Kind.INTEGER: "i64",
    Kind.FLOAT: "f64",
    Kind.DATE: "i64",
    Kind.BOOL: "bool",
}
NUMBERS = frozenset({Kind.INTEGER, Kind.FLOAT})
ORDERED = NUMBERS | {Kind.DATE}
STRINGS = frozenset({Kind.KEYWORD, Kind.TEXT})


class Binding(msgspec.Struct, frozen=True):
    """Where a field lies in events from a schema version on."""

    version: int
    pointer: Pointer


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A search field: where its values lie in events, of which kind they are, and which queries may use it."""

    name: str
    kind: Kind
    bindings: tuple[Binding, ...]
    lowercase: bool = False
    exact: bool = False
    prefix: bool = False
    column: bool = False
    exists: bool = False
    sortable: bool = False
    aggregatable: bool = False
    contains: bool = False
    positions: bool = False

    def binding(self, version: int) -> Binding | None:
        """The binding with the greatest version that is not above this one."""
        return max((binding for binding in self.bindings if binding.version <= version), key=_version, default=None)

    @property
    def pointer(self) -> Pointer:
        """Where the values lie in an event of the newest shape."""
        return max(self.bindings, key=_version).pointer


class DefaultField(msgspec.Struct, frozen=True):
    """A field that bare words ask, and how much a hit there counts."""

    field: str
    boost: float = 1.0


class Interval(msgspec.Struct, frozen=True):
    """The length of a pane, and how the user spelled it."""

    text: str
    millis: int


class Measure(msgspec.Struct, frozen=True):
    """What a rollup computes in every pane and group."""

    kind: ClassVar[str]
    #: The members of its document besides ``kind``.
    members: ClassVar[tuple[str, ...]]
    #: What it is of and what it answers, as the documentation says it.
    measures: ClassVar[str]
    answers: ClassVar[str]

    @property
    def fields(self) -> tuple[str, ...]:
        """The search fields whose values are measured."""
        return ()

    @property
    def query(self) -> Node | None:
        """The query that selects the events of the measure alone."""
        return None


class Count(Measure, frozen=True):
    """How many events, or how many that match ``include``."""

    kind = "count"
    members = ("include",)
    measures = "all events, or those that match its own `include`"
    answers = "`count`"
    include: Node | None = None

    @property
    def query(self) -> Node | None:
        """The query of its own."""
        return self.include


class FieldMeasure(Measure, frozen=True):
    """A measure of one field."""

    field: str

    @property
    def fields(self) -> tuple[str, ...]:
        """The field."""
        return (self.field,)


class Summary(FieldMeasure, frozen=True):
    """Count, sum, least and greatest of a number, and its log2 histogram if requested."""

    kind = "summary"
    members = ("field", "histogram")
    measures = "a number `field`"
    answers = (
        '`count`, `sum`, `min`, `max`, `avg`; with `"histogram": "log2_v1"` also `p50`, `p95`, `p99` and `histogram`'
    )
    histogram: bool = False


class SummaryParts(Measure, frozen=True):
    """A summary of events that are summaries themselves."""

    kind = "summary_parts"
    members = tuple(f"{part}JsonPointer" for part in PARTS)
    measures = "events that are summaries themselves"
    answers = "the same as `summary`"
    count: Pointer
    sum: Pointer
    min: Pointer
    max: Pointer
    histogram: Pointer | None = None

    def pointers(self) -> Iterator[tuple[str, Pointer]]:
        """The parts of the summary that are read, and where."""
        for part in PARTS:
            pointer = getattr(self, part)
            if pointer is not None:
                yield part, pointer


class Quantiles(FieldMeasure, frozen=True):
    """A sketch of how a number is distributed."""

    kind = "quantiles"
    members = ("field",)
    measures = "a number `field`"
    answers = "`count`, `min`, `max`, `p50`, `p90`, `p95`, `p99`"


class Distinct(FieldMeasure, frozen=True):
    """A sketch of how many different values a field has."""

    kind = "distinct"
    members = ("field",)
    measures = "a `field` of any kind but text"
    answers = "`distinct`: how many different values"


#: The measures that have a kind of their own, in the order of the documentation.
OWN_KINDS: tuple[type[Measure], ...] = (Count, Summary, SummaryParts, Quantiles, Distinct)


class OperatorMeasure(Measure, frozen=True):
    """What an operator of features keeps of the events that match, and have one value of each of its fields."""

    kind = "operator"
    operator: str
    params: dict[str, Any]
    include: Node | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that are parameters."""
        parameters = DECLARATIONS[self.operator].params
        return tuple(value for name, value in self.params.items() if parameters[name].kind == "field")

    @property
    def query(self) -> Node | None:
        """The query of its own."""
        return self.include


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    """Measures per pane of time and per combination of dimensions, over the events that match ``include``."""

    name: str
    timestamp: str
    intervals: tuple[Interval, ...]
    measures: dict[str, Measure]
    dimensions: tuple[str, ...] = ()
    include: Node | None = None


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The search configuration of a stream, and the document that gave it."""

    document: dict[str, Any]
    primary_timestamp: str
    fields: dict[str, Field]
    aliases: dict[str, str]
    default_fields: tuple[DefaultField, ...]
    contains_default_fields: tuple[str, ...]
    rollups: dict[str, Rollup]
    profile: str | None = None

    def __contains__(self, name: str) -> bool:
        return self.aliases.get(name, name) in self.fields

    def __getitem__(self, name: str) -> Field:
        """The field of that name or alias; KeyError where there is none."""
        return self.fields[self.aliases.get(name, name)]

    def hint(self, name: str) -> str:
        """What may have been meant by a name that is none, as the end of a sentence."""
        near = get_close_matches(name, [*self.fields, *self.aliases], 1)
        return f"; did you mean {near[0]!r}?" if near else ""

    def fields_of(self, clause: Clause) -> list[Field]:
        """The fields that a clause asks: the one it names, or the default fields."""
        if clause.field is not None:
            return [self[clause.field]]
        if isinstance(clause, Contains):
            return [self[name] for name in self.contains_fields()]
        return [self[default.field] for default in self.bare_fields()]

    def used_by(self, rollup: Rollup) -> Iterator[Field]:
        """The fields that a rollup reads."""
        yield from (self[name] for name in (rollup.timestamp, *rollup.dimensions))
        for measure in rollup.measures.values():
            yield from (self[name] for name in measure.fields)
        trees = [rollup.include, *(measure.query for measure in rollup.measures.values())]
        for tree in trees:
            for clause in () if tree is None else clauses(tree):
                yield from self.fields_of(clause)

    def bare_fields(self) -> tuple[DefaultField, ...]:
        """The fields that a bare word asks: the default fields, or every text field where there are none."""
        texts = (DefaultField(name) for name, field in self.fields.items() if field.kind is Kind.TEXT)
        return self.default_fields or tuple(texts)

    def contains_fields(self) -> tuple[str, ...]:
        """The fields that a bare ``contains:`` searches: the defaults, or every field that allows it."""
        able = (name for name, field in self.fields.items() if field.contains)
        return self.contains_default_fields or tuple(able)


def _version(binding: Binding) -> int:
    return binding.version
