"""What an operator declares of itself: its parameters, fields, window, result, memory, and a line of documentation.

Validation at registration, the tables of the documentation and the functions of the client are made of declarations.
Memory is bounded in every case: an operator keeps a constant, a sketch, or as much as one parameter says; without a
window that parameter must be given or have a default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

from headrace.types import FieldType, parse_duration_ms

ParameterKind = Literal["field", "duration", "integer", "number", "edges", "categories", "where"]
Windows = Literal["none", "optional", "required"]
#: The type of an answer; ``field`` in it is the type of the field that the operator is about. A map has texts as keys.
Result = Literal[
    "str",
    "f64",
    "i64",
    "bool",
    "bytes",
    "datetime",
    "field",
    "list<field>",
    "list<i64>",
    "map<i64>",
    "map<f64>",
    "list<struct<value: field, count: i64>>",
]
#: How the function of the client takes a parameter; "" is by keyword, and in its place where it is required.
Position = Literal["", "optional", "required"]
Params: TypeAlias = Mapping[str, Any]

NUMBERS: tuple[FieldType, ...] = ("i64", "f64")
ANY: tuple[FieldType, ...] = ("str", "f64", "i64", "bool", "bytes", "datetime")

#: Where a parameter must be given.
REQUIRED: Any = object()

#: The sections of the documentation, in their order.
COUNTS = "Counts, sums and spread"
DISTRIBUTIONS = "Distinct values and distributions"
SAMPLES = "First, last and samples"
RECENCY = "Recency and streaks, in milliseconds"
DECAY = "Decay"
CHANGE = "Change"
PLACES = "Places, in degrees and km"
SECTIONS = (COUNTS, DISTRIBUTIONS, SAMPLES, RECENCY, DECAY, CHANGE, PLACES)


#: How many edges a histogram may have.
MAX_EDGES = 1024


class Parameter(NamedTuple):
    """A parameter of an operator; ``above`` and ``below`` are exclusive bounds."""

    kind: ParameterKind
    default: Any = REQUIRED
    least: float | None = None
    greatest: float | None = None
    above: float | None = None
    below: float | None = None
    types: tuple[FieldType, ...] = ()
    code: str = "aggregation_invalid_param"
    aliases: tuple[str, ...] = ()
    #: A value as the function of the client takes it, in Python.
    example: str = ""
    #: The name that the function of the client has for it, "" where that is the same.
    client_name: str = ""
    position: Position = ""
    #: What the documentation says of it besides its default.
    note: str = ""

    def bounds(self) -> str:
        """The bounds as words."""
        if self.above is not None:
            return f"above {self.above:g}" + (f" and below {self.below:g}" if self.below is not None else "")
        return f"from {self.least:g} to {self.greatest:g}" if self.greatest is not None else f"at least {self.least:g}"

    def admits(self, value: float) -> bool:
        """Whether a number lies within the bounds."""
        return (
            (self.least is None or value >= self.least)
            and (self.greatest is None or value <= self.greatest)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def read(self, raw: Any) -> Any:
        """Convert a JSON value to what the operator takes; raises ValueError that says what it must be.

        Fields and conditions are not read here: their names are checked against the event source.
        """
        match self.kind:
            case "duration":
                return _read_duration(raw)
            case "integer" | "number":
                return self._read_number(raw)
            case "edges":
                return _read_edges(raw)
        return _read_categories(raw)

    def _read_number(self, raw: Any) -> int | float:
        is_integer = self.kind == "integer"
        fits = _is_integer(raw) or (isinstance(raw, float) and math.isfinite(raw))
        if not fits or (is_integer and raw != int(raw)) or not self.admits(raw):
            raise ValueError(f"must be {'a whole number' if is_integer else 'a number'} {self.bounds()}")
        return int(raw) if is_integer else float(raw)


def _is_integer(raw: Any) -> bool:
    return isinstance(raw, int) and not isinstance(raw, bool) and -(2**63) <= raw < 2**63


def _read_duration(raw: Any) -> int:
    duration_ms = parse_duration_ms(raw)
    if duration_ms is None:
        raise ValueError("must be a duration such as 500ms, 15s, 30m, 24h or 7d")
    return duration_ms


def _read_edges(raw: Any) -> list[float]:
    numbers = raw if isinstance(raw, list) else []
    fits = all(_is_integer(edge) or isinstance(edge, float) for edge in numbers)
    rising = fits and all(low < high for low, high in pairwise(numbers))
    if not rising or not 1 <= len(numbers) <= MAX_EDGES:
        raise ValueError(f"buckets are 1 to {MAX_EDGES} numbers, each greater than the one before")
    return [float(edge) for edge in numbers]


def _read_categories(raw: Any) -> list[Any]:
    values = raw if isinstance(raw, list) else []
    fits = all(isinstance(value, str | float | bool) or _is_integer(value) for value in values)
    if not values or not fits or len({(type(value), value) for value in values}) < len(values):
        raise ValueError("categories are one or more texts, numbers or booleans, no two alike")
    return list(values)


class Declaration(NamedTuple):
    """What is declared of an operator; ``bound`` is the parameter that bounds its memory, "" where it needs none."""

    name: str
    section: str
    #: What it answers, as the documentation says it; a sentence without a capital and a full stop.
    doc: str
    params: Mapping[str, Parameter]
    window: Windows
    result: Result
    bound: str
    memory: str
    #: Other names, by which registrations may call it.
    aliases: tuple[str, ...]
    #: Why events must come in the order of the log, as a clause; "" where they may come in any order.
    needs_log: str


NUMBER = Parameter("field", types=NUMBERS, example='"amount"')
VALUE = Parameter("field", types=ANY, example='"shop"')
COUNT = Parameter("integer", least=1, greatest=1024, example="3", note="up to 1,024")
HALF_LIFE = Parameter("duration", code="aggregation_invalid_half_life", example='"10m"')
WINDOW = Parameter("duration", None, code="aggregation_invalid_window", example='"1h"')
REQUIRED_WINDOW = WINDOW._replace(default=REQUIRED)
LATITUDE, LONGITUDE = (
    Parameter("field", types=NUMBERS, aliases=(name,), example=f'"{name}"', client_name=name) for name in ("lat", "lon")
)
MAX_CATEGORIES = Parameter("integer", 256, least=1, greatest=4096, example="16")
WHERE = Parameter("where", None, example='"amount > 10"')
#: Conditions that the function of the client takes first.
OPTIONAL_WHERE = WHERE._replace(position="optional")
REQUIRED_WHERE = WHERE._replace(position="required")
#: What most operators hold at most.
EIGHT_NUMBERS = "eight numbers"


def declare(
    name: str,
    section: str,
    doc: str,
    result: Result,
    *,
    window: Windows = "none",
    bound: str = "",
    memory: str = EIGHT_NUMBERS,
    aliases: tuple[str, ...] = (),
    where: Parameter = WHERE,
    needs_log: str = "",
    **params: Parameter,
) -> Declaration:
    """The declaration of an operator; ``params`` are those that it has besides its window and ``where``."""
    windows = {} if window == "none" else {"window": WINDOW if window == "optional" else REQUIRED_WINDOW}
    every = {**params, **windows, "where": where}
    return Declaration(name, section, doc, every, window, result, bound, memory, aliases, needs_log)
