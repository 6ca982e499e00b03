"""All operators by name.

A new one is a class with a declaration in one of these modules. Then run ``tools/operators.py``, which writes the
client's function and the tables of the documentation, and add the operator to the oracle and the goldens of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from headrace.operators import (
    categories,
    counts,
    decay,
    distinct,
    distributions,
    geo,
    moments,
    ordinal,
    outliers,
    recency,
    streaks,
    velocity,
)
from headrace.operators.declaration import SECTIONS, Declaration, Params
from headrace.operators.operator import Operator, Windowed
from headrace.types import FieldType

_MODULES = (
    counts,
    moments,
    distinct,
    distributions,
    categories,
    ordinal,
    recency,
    streaks,
    decay,
    velocity,
    outliers,
    geo,
)


def _declared(module: ModuleType) -> list[type[Operator]]:
    """The operators that a module declares, in its order."""
    classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Operator)]
    return [each for each in classes if each.__module__ == module.__name__ and "declaration" in vars(each)]


_CLASSES = [operator for module in _MODULES for operator in _declared(module)]

#: The class of every operator, in the order of the documentation.
OPERATORS: Mapping[str, type[Operator]] = {
    operator.declaration.name: operator
    for section in SECTIONS
    for operator in _CLASSES
    if operator.declaration.section == section
}
DECLARATIONS: Mapping[str, Declaration] = {name: operator.declaration for name, operator in OPERATORS.items()}
#: Other names of operators.
ALIASES: Mapping[str, str] = {
    alias: name for name, declaration in DECLARATIONS.items() for alias in declaration.aliases
}
#: Operators that may be measures of rollups: they need no clock, no panes of their own, and neither the order of events
#: nor the numbers by which ties of their times are broken, which rows of rollups do not have.
MEASURES: frozenset[str] = frozenset(
    name
    for name, operator in OPERATORS.items()
    if operator.order == "any"
    and not operator.reads_clock
    and operator.in_window is Operator.in_window
    and name != "count"
)


def make_operator(name: str, params: Params, types: Mapping[str, FieldType], ahead_ms: int = 0) -> Operator | Windowed:
    """An operator with checked parameters, over its window if it has one, and over rows of these types.

    Rows may be ahead of the moment of an answer by so much.
    """
    operator = OPERATORS[name](params, types)
    return operator if operator.window_ms is None else operator.in_window(operator.window_ms, ahead_ms)
