"""Checked expressions over one set of fields, and rows of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from headrace.schema.descriptor.nodes import Type
from headrace.schema.expression import Expr
from headrace.schema.expression.tree import Binary, Cast, Constant, FieldReference, IsNull, Quadkey, Unary

TYPES: dict[str, Type] = {
    "i": "i64",
    "j": "i64",
    "f": "f64",
    "g": "f64",
    "s": "str",
    "z": "str",
    "b": "bool",
    "c": "bool",
    "y": "bytes",
    "x": "bytes",
    "t": "datetime",
    "u": "datetime",
}

_EDGES = (0, 1, -1, 3, 2**53 + 1, 2**63 - 1, -(2**63), 2**62)
INTEGERS = st.sampled_from(_EDGES) | st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
FLOATS = st.sampled_from((0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, 2.0**63, -(2.0**63), 1e16)) | st.floats(
    allow_nan=False, allow_infinity=False
)
TEXTS = st.sampled_from(
    ("", "true", "false", "7", "-12", "1e5", "1e999", ".5", "007", "it's", 'a"b', "\\", "%_", "1\n")
)
TEXTS |= st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
BYTES = st.sampled_from(("", "AA==", "AAA=", "////", "aGk="))
_ZONES = st.sampled_from(("Z", "+00:00", "-23:59", "+05:30"))
MOMENTS = st.builds(
    lambda base, fraction, zone: base + fraction + zone,
    st.sampled_from(("2026-01-01T00:00:00", "2026-01-01T05:30:00", "2025-12-31T18:30:00", "0001-01-02T03:04:05")),
    st.sampled_from(("", ".5", ".500000", ".5000001", ".499999999")),
    _ZONES,
)
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    "i64": INTEGERS,
    "f64": FLOATS,
    "str": TEXTS,
    "bool": st.booleans(),
    "bytes": BYTES,
    "datetime": MOMENTS,
}

KINDS: tuple[Type, ...] = ("i64", "f64", "str", "bool", "bytes", "datetime")

rows = st.fixed_dictionaries({name: st.none() | VALUES[kind] for name, kind in TYPES.items()})

_CASTS: dict[Type, tuple[str, tuple[Type, ...]]] = {
    "i64": ("int", ("str", "f64", "bool", "i64")),
    "f64": ("float", ("str", "i64", "bool", "f64")),
    "bool": ("bool", ("str", "i64", "f64", "bool")),
    "str": ("str", ("i64", "f64", "bool", "datetime", "str")),
}


@cache
def expressions(kind: Type, depth: int = 4) -> st.SearchStrategy[Expr]:
    """An expression of a type; a constant null stands here and there."""
    if depth == 0 or kind in ("bytes", "datetime"):
        return _leaves(kind)
    return _leaves(kind) | _BRANCHES[kind](kind, depth - 1)


@cache
def _leaves(kind: Type) -> st.SearchStrategy[Expr]:
    names = [name for name, known in TYPES.items() if known == kind]
    fields: st.SearchStrategy[Expr] = st.sampled_from(names).map(FieldReference)
    if kind in ("bytes", "datetime"):
        return fields
    return fields | fields | VALUES[kind].map(Constant) | st.just(Constant(None))


def _cast(kind: Type, depth: int) -> st.SearchStrategy[Expr]:
    target, sources = _CASTS[kind]
    return st.one_of([expressions(source, depth) for source in sources]).map(lambda inner: Cast(inner, target))


def _whole(kind: Type, depth: int) -> st.SearchStrategy[Expr]:
    part = expressions("i64", depth)
    return st.builds(Binary, st.sampled_from("+-*%"), part, part) | part.map(_negative) | _cast(kind, depth)


def _negative(expr: Expr) -> Expr:
    """The sign of a constant belongs to it."""
    return expr if isinstance(expr, Constant) else Unary("-", expr)


def _double(kind: Type, depth: int) -> st.SearchStrategy[Expr]:
    whole, double = expressions("i64", depth), expressions("f64", depth)
    return (
        st.builds(Binary, st.sampled_from("+-*/%"), double, double | whole)
        | st.builds(Binary, st.sampled_from("+-*/%"), whole, double)
        | st.builds(Binary, st.just("/"), whole, whole)
        | double.map(_negative)
        | _cast(kind, depth)
    )


def _text(kind: Type, depth: int) -> st.SearchStrategy[Expr]:
    number = expressions("i64", depth) | expressions("f64", depth)
    place = st.builds(Constant, st.floats(-95, 95)) | number
    computed = expressions("i64", depth).filter(lambda found: not isinstance(found, Constant))
    zoom = st.integers(1, 23).map(Constant) | computed
    return _cast(kind, depth) | st.builds(Quadkey, place, place, zoom)


def _truth(kind: Type, depth: int) -> st.SearchStrategy[Expr]:
    truth = expressions("bool", depth)

    def compared(pair: tuple[Type, Type]) -> st.SearchStrategy[Expr]:
        signs = ("==", "!=") if pair[0] in ("bool", "bytes") else ("==", "!=", "<", "<=", ">", ">=")
        return st.builds(_compare, st.sampled_from(signs), expressions(pair[0], depth), expressions(pair[1], depth))

    pairs: list[tuple[Type, Type]] = [*((kind, kind) for kind in KINDS), ("i64", "f64"), ("f64", "i64")]
    return (
        st.one_of([compared(pair) for pair in pairs])
        | st.builds(Binary, st.sampled_from(("and", "or")), truth, truth)
        | truth.map(lambda inner: Unary("not", inner))
        | st.one_of([expressions(one, depth) for one in KINDS]).map(IsNull)
        | _cast(kind, depth)
    )


def _compare(sign: str, left: Expr, right: Expr) -> Expr:
    """A comparison as the parser makes it: one with null by sign asks for it."""
    if sign in ("==", "!=") and Constant(None) in (left, right):
        return Binary("and", IsNull(left), IsNull(right))
    return Binary(sign, left, right)


_BRANCHES = {
    "i64": _whole,
    "f64": _double,
    "str": _text,
    "bool": _truth,
}
any_expression = st.one_of([expressions(kind) for kind in KINDS[:4]])
