"""Expressions over the fields of a row: read, checked, and compiled to Python and to DuckDB with one meaning.

A value is null or of the type of its field. Null spreads through arithmetic and comparisons; ``and``, ``or`` and
``not`` follow Kleene's three values; ``isnull`` alone looks at it. Arithmetic on i64 stays within 64 bits by stopping
at their ends, ``/`` is always f64, what is divided by zero or leaves the finite numbers is null. Where an i64 meets an
f64 it is taken as one. ``%`` has the sign of what is divided. Strings are compared by their characters, datetimes by
the moment (to the microsecond). A cast that cannot give a value gives null.
"""

from headrace.schema.expression.closure import compiled
from headrace.schema.expression.duck import sql
from headrace.schema.expression.syntax import parse
from headrace.schema.expression.tree import Expr, ExpressionError, Fault, fields, render
from headrace.schema.expression.type_check import check, faults

__all__ = ["Expr", "ExpressionError", "Fault", "check", "compiled", "faults", "fields", "parse", "render", "sql"]
