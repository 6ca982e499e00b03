"""An expression as SQL for DuckDB, with the same answers as the functions of ``closure``.

A column has the name of its field. It is BIGINT for i64, DOUBLE for f64, BOOLEAN for bool, and VARCHAR with the text of
the event for str, bytes and datetime. No part is written twice, by us or by DuckDB (which does so for CASE with an
operand, nullif and more): what is needed twice is the element of a list, and the parameter of a lambda.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from headrace.schema.expression.closure import DECIMAL, GREATEST, INTEGER, LEAST, NORTHMOST
from headrace.schema.expression.tree import (
    Binary,
    Cast,
    Constant,
    Expr,
    FieldReference,
    IsNull,
    Scalar,
    Type,
    Unary,
    depth,
    fold,
)
from headrace.schema.expression.type_check import ARITHMETIC, MAX_ZOOM, TARGETS, type_of_constant

#: The time that DuckDB takes to read lambdas grows with the cube of how deep they are nested.
MAX_SQL_DEPTH = 64

Typed: TypeAlias = tuple[str, Type | None]

_COLUMNS: dict[Type | None, str] = {"i64": "BIGINT", "f64": "DOUBLE", "bool": "BOOLEAN"}
_SIGNS = {"==": "=", "!=": "<>"}


def sql(expr: Expr, types: Mapping[str, Type]) -> str | None:
    """The SQL of a checked expression over columns of these types; None for one nested too deep for DuckDB."""
    if depth(expr) > MAX_SQL_DEPTH:
        return None
    return fold(expr, lambda here, inner: _node_sql(here, inner, types))[0]


def column_type(kind: Type | None) -> str:
    """The SQL type of the column of a field."""
    return _COLUMNS.get(kind, "VARCHAR")


def identifier(name: str) -> str:
    """The name of a column."""
    return '"' + name.replace('"', '""') + '"'


def constant(value: Scalar, kind: Type | None) -> str:
    """The SQL of a literal."""
    if value is None:
        return f"NULL::{column_type(kind)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        pieces = ("'" + piece.replace("'", "''") + "'" for piece in value.split("\0"))
        return f"({' || chr(0) || '.join(pieces)})"
    return f"'{value!r}'::{column_type(kind)}"


def _node_sql(expr: Expr, inner: tuple[Typed, ...], types: Mapping[str, Type]) -> Typed:
    match expr:
        case FieldReference(name=name):
            return identifier(name), types[name]
        case Constant(value=value):
            kind = type_of_constant(value)
            return constant(value, kind), kind
        case Unary(sign="not"):
            return f"(NOT {_typed_sql(inner[0], 'bool')})", "bool"
        case Unary():
            return _negation_sql(*inner[0])
        case IsNull():
            return f"({inner[0][0]} IS NULL)", "bool"
        case Cast(target=target):
            return cast(*inner[0], target), TARGETS[target]
        case Binary(sign=sign) if sign in ("and", "or"):
            return f"({_typed_sql(inner[0], 'bool')} {sign.upper()} {_typed_sql(inner[1], 'bool')})", "bool"
        case Binary(sign=sign) if sign in ARITHMETIC:
            return _arithmetic_sql(sign, *inner)
        case Binary(sign=sign):
            return _comparison_sql(sign, *inner), "bool"
    return _quadkey_sql(*inner), "str"


def _typed_sql(part: Typed, kind: Type) -> str:
    """The SQL of a part as a type; null can have any."""
    return f"{part[0]}::{column_type(kind)}" if part[1] != kind else part[0]


def _clamp_sql(text: str) -> str:
    kept = f"CASE WHEN v > {GREATEST} THEN {GREATEST} WHEN v < {LEAST} THEN {LEAST} ELSE v END"
    return f"list_transform([{text}], lambda v: {kept})[1]::BIGINT"


def _finite_sql(text: str) -> str:
    return f"list_filter([{text}], lambda v: isfinite(v))[1]"


def _negation_sql(text: str, kind: Type | None) -> Typed:
    if kind == "f64":
        return f"(- {text})", kind
    return _clamp_sql(f"- {text}::HUGEINT"), "i64"


def _arithmetic_sql(sign: str, left: Typed, right: Typed) -> Typed:
    if sign != "/" and "f64" not in (left[1], right[1]):
        first, second = (f"{part[0]}::HUGEINT" for part in (left, right))
        if sign == "%":
            return f"({first} % list_filter([{second}], lambda v: v <> 0)[1])::BIGINT", "i64"
        return _clamp_sql(f"{first} {sign} {second}"), "i64"
    return _finite_sql(f"{_typed_sql(left, 'f64')} {sign} {_typed_sql(right, 'f64')}"), "f64"


def _comparison_sql(sign: str, left: Typed, right: Typed) -> str:
    kinds = {kind for _, kind in (left, right) if kind is not None}
    if kinds == {"datetime"}:
        first, second = _timestamp_sql(left[0]), _timestamp_sql(right[0])
    elif len(kinds) == 2:
        first, second = _typed_sql(left, "f64"), _typed_sql(right, "f64")
    else:
        kind: Type = next(iter(kinds), "str")
        first, second = _typed_sql(left, kind), _typed_sql(right, kind)
    return f"({first} {_SIGNS.get(sign, sign)} {second})"


def _timestamp_sql(text: str) -> str:
    return f"{text}::VARCHAR::TIMESTAMPTZ"


def cast(text: str, source: Type | None, target: str) -> str:
    """A part of a type, taken as another."""
    wanted = column_type(TARGETS[target])
    match source, target:
        case "str", "int":
            return f"TRY_CAST(regexp_extract({text}, '^(?:{INTEGER})$') AS BIGINT)"
        case "str", "float":
            return _finite_sql(f"TRY_CAST(regexp_extract({text}, '^(?:{DECIMAL})$') AS DOUBLE)")
        case "str", "bool":
            return f"TRY_CAST(regexp_extract({text}, '^(?:true|false)$') AS BOOLEAN)"
        case "f64", "int":
            return f"TRY_CAST(trunc({text}) AS BIGINT)"
        case (("i64" | "f64"), "bool"):
            return f"({text} <> 0)"
    return f"({text})::{wanted}"


def _quadkey_sql(lat: Typed, lon: Typed, zoom: Typed) -> str:
    """The tile as in ``closure.quadkey``; what is needed twice is the parameter of a lambda."""
    north = f"CASE WHEN p.lat > {NORTHMOST} THEN {NORTHMOST} WHEN p.lat < -{NORTHMOST} THEN -{NORTHMOST} ELSE p.lat END"
    east = "CASE WHEN p.lon > 180 THEN 180 WHEN p.lon < -180 THEN -180 ELSE p.lon END"
    point = f"[{{'lat': {_typed_sql(lat, 'f64')}, 'lon': {_typed_sql(lon, 'f64')}, 'zoom': {_typed_sql(zoom, 'i64')}}}]"
    is_complete = f"p.lat IS NOT NULL AND p.lon IS NOT NULL AND p.zoom BETWEEN 1 AND {MAX_ZOOM}"
    sine = f"{{'sine': sin(radians(({north})::DOUBLE)), 'across': (({east})::DOUBLE + 180) / 360, 'zoom': p.zoom}}"
    down = "0.5::DOUBLE - ln((1::DOUBLE + p.sine) / (1::DOUBLE - p.sine)) / (4 * pi())"
    tile = "greatest(least(trunc({} * (1::BIGINT << p.zoom))::BIGINT, (1::BIGINT << p.zoom) - 1), 0)"
    shares = f"{{'x': {tile.format('p.across')}, 'y': {tile.format(f'({down})')}, 'zoom': p.zoom}}"
    digits = (
        "list_transform(range(p.zoom), lambda i: (p.x >> (p.zoom - 1 - i) & 1) + 2 * (p.y >> (p.zoom - 1 - i) & 1))"
    )
    sines = f"list_transform({point}, lambda p: CASE WHEN {is_complete} THEN {sine} END)"
    tiles = f"list_transform({sines}, lambda p: CASE WHEN p IS NOT NULL THEN {shares} END)"
    return f"list_transform({tiles}, lambda p: CASE WHEN p IS NOT NULL THEN array_to_string({digits}, '') END)[1]"
