"""What an operator declares of itself: its parameters, fields, window, result, memory, and a line of documentation.

Validation at registration, the tables of the documentation and the functions of the client are made of declarations.
Memory is bounded in every case: an operator keeps a constant, a sketch, or as much as one parameter says; without a
window that parameter must be given or have a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from headrace.types import FieldType

ParameterKind = Literal["field", "duration", "integer", "number", "edges", "categories", "where"]
Windows = Literal["none", "optional", "required"]
Result = Literal["str", "f64", "i64", "bool", "bytes", "datetime", "json", "field"]
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


class Parameter(NamedTuple):
    """A parameter of an operator; ``above`` and ``below`` are exclusive bounds."""

    kind: ParameterKind
    default: Any = REQUIRED
    least: float | None = None
    most: float | None = None
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
        return f"from {self.least:g} to {self.most:g}" if self.most is not None else f"at least {self.least:g}"

    def admits(self, value: float) -> bool:
        """Whether a number lies within the bounds."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


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


NUMBER = Parameter("field", types=NUMBERS, example='"amount"')
VALUE = Parameter("field", types=ANY, example='"shop"')
COUNT = Parameter("integer", least=1, most=1024, example="3", note="up to 1,024")
HALF_LIFE = Parameter("duration", code="aggregation_invalid_half_life", example='"10m"')
WINDOW = Parameter("duration", None, code="aggregation_invalid_window", example='"1h"')
REQUIRED_WINDOW = WINDOW._replace(default=REQUIRED)
LATITUDE, LONGITUDE = (
    Parameter("field", types=NUMBERS, aliases=(name,), example=f'"{name}"', client_name=name) for name in ("lat", "lon")
)
MAX_CATEGORIES = Parameter("integer", 256, least=1, most=4096, example="16")
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
    **params: Parameter,
) -> Declaration:
    """The declaration of an operator; ``params`` are those that it has besides its window and ``where``."""
    windows = {} if window == "none" else {"window": WINDOW if window == "optional" else REQUIRED_WINDOW}
    every = {**params, **windows, "where": where}
    return Declaration(name, section, doc, every, window, result, bound, memory, aliases)
