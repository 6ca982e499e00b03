"""Tree to text: one spelling for every tree, which reads back as the same tree."""

from __future__ import annotations

from headrace.schema.expression.tree import Binary, Cast, Constant, Expr, FieldReference, IsNull, Scalar, Unary, fold


def render(expr: Expr) -> str:
    """The canonical text: every operator in brackets, texts in single quotes."""
    return fold(expr, _render_node)


def _render_node(expr: Expr, inner: tuple[str, ...]) -> str:
    match expr:
        case FieldReference(name=name):
            return name
        case Constant(value=value):
            return _render_constant(value)
        case Unary(sign="not"):
            return f"(not {inner[0]})"
        case Unary():
            return f"(- {inner[0]})"
        case Binary(sign=sign):
            return f"({inner[0]} {sign} {inner[1]})"
        case Cast(target=target):
            return f"cast({inner[0]}, {target})"
        case IsNull():
            return f"isnull({inner[0]})"
    return f"quadkey({', '.join(inner)})"


def _render_constant(value: Scalar) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)
