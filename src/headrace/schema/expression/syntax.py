"""Parse the text of an expression into a tree.

::

    or  <  and  <  not  <  == != < <= > >=  <  + -  <  * / %  <  - (sign)  <  field, constant, call, (…)

A field is a name, or ``source.name`` with the name of the node the rows come from. Texts stand in single or double
quotes; a backslash keeps the next character as it is. ``x == null`` asks whether x is null, ``x != null`` whether
it is not. Calls: ``cast(e, str|int|float|bool)``, ``isnull(e)``, ``quadkey(lat, lon, zoom)``.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from headrace.schema.expression.tree import (
    MAX_DEPTH,
    Binary,
    Cast,
    Constant,
    Expr,
    ExpressionError,
    FieldReference,
    IsNull,
    Quadkey,
    Unary,
    depth,
)

MAX_CHARACTERS = 100_000

_TOKEN = re.compile(
    r"""(?P<blank>\s+)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)?)
    |(?P<sign>==|!=|<=|>=|[-+*/%<>(),])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_RANKS = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 4),
    **dict.fromkeys(("+", "-"), 5),
    **dict.fromkeys(("*", "/", "%"), 6),
}
_PREFIX_RANKS = {"not": 3, "negative": 7}
_CALLS = {"cast": 2, "isnull": 1, "quadkey": 3}
_COMPARED = 4


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _PendingOperator(NamedTuple):
    """An operator whose right side is not read yet, or an open bracket with the call it belongs to."""

    sign: str
    rank: int
    position: int
    held: int = 0


def parse(text: str, source: str = "") -> Expr:
    """The tree of a text; ``source.x`` is the field x. Raises ExpressionError."""
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(0, f"an expression has at most {MAX_CHARACTERS} characters")
    return _Parser(_tokenise(text), source, len(text)).parse()


def _tokenise(text: str) -> list[_Token]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpressionError(position, f"{text[position]!r} has no place in an expression")
        if match.lastgroup != "blank":
            tokens.append(_Token(str(match.lastgroup), match[0], position))
        position = match.end()
    return tokens


class _Parser:
    """An operator-precedence parser with two stacks: values, and operators that wait for values."""

    def __init__(self, tokens: list[_Token], source: str, end: int) -> None:
        self._tokens = tokens
        self._source = source
        self._end = end
        self._at = self._brackets = 0
        self._values: list[Expr] = []
        self._waiting: list[_PendingOperator] = []

    def parse(self) -> Expr:
        """The tree of all tokens."""
        while True:
            while not self._take_value():
                pass
            while self._take_closing_bracket():
                pass
            token = self._next()
            if token is None:
                break
            self._take_operator(token)
        self._reduce(0)
        if self._waiting:
            raise ExpressionError(self._waiting[-1].position, "this bracket is not closed")
        expr = self._values.pop()
        if depth(expr) > MAX_DEPTH:
            raise ExpressionError(-1, f"the expression is nested more than {MAX_DEPTH} deep")
        return expr

    def _next(self) -> _Token | None:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        self._at += 1
        return token

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _take_value(self) -> bool:
        """Take the first token of a value; True where the value is complete."""
        token = self._next()
        if token is None:
            raise ExpressionError(self._end, "a value is missing at the end")
        if token.kind == "number":
            self._values.append(Constant(_read_number(token, "")))
        elif token.kind == "text":
            self._values.append(Constant(_read_text(token)))
        elif token.kind == "name" and token.text != "not":
            return self._take_name(token)
        elif token.text == "-" and self._at < len(self._tokens) and self._tokens[self._at].kind == "number":
            self._at += 1
            self._values.append(Constant(_read_number(self._tokens[self._at - 1], "-")))
        elif token.text in ("-", "not"):
            sign = "negative" if token.text == "-" else "not"
            self._waiting.append(_PendingOperator(sign, _PREFIX_RANKS[sign], token.position))
            return False
        elif token.text == "(":
            return self._open("(", token)
        else:
            raise ExpressionError(token.position, f"a value is missing before {token.text!r}")
        return True

    def _take_name(self, token: _Token) -> bool:
        if self._peek() == "(" and token.text not in _RANKS:
            if token.text not in _CALLS:
                raise ExpressionError(token.position, f"there is no function {token.text!r}, only {', '.join(_CALLS)}")
            self._at += 1
            return self._open(token.text, token)
        if token.text in _CONSTANTS:
            self._values.append(Constant(_CONSTANTS[token.text]))
        elif token.text in _RANKS:
            raise ExpressionError(token.position, f"a value is missing before {token.text!r}")
        else:
            name = token.text.removeprefix(f"{self._source}.") if self._source else token.text
            self._values.append(FieldReference(name))
        return True

    def _open(self, sign: str, token: _Token) -> bool:
        self._brackets += 1
        if self._brackets > MAX_DEPTH:
            raise ExpressionError(token.position, f"the expression is nested more than {MAX_DEPTH} deep")
        self._waiting.append(_PendingOperator(sign, 0, token.position, len(self._values)))
        return False

    def _take_closing_bracket(self) -> bool:
        """Take a closing bracket and make a value of what was between."""
        if self._peek() != ")" or self._tokens[self._at].kind != "sign":
            return False
        token = self._tokens[self._at]
        self._at += 1
        self._reduce(0)
        if not self._waiting:
            raise ExpressionError(token.position, "this bracket was not opened")
        opened = self._waiting.pop()
        self._brackets -= 1
        inside = self._values[opened.held :]
        del self._values[opened.held :]
        if opened.sign == "(":
            if len(inside) != 1:
                raise ExpressionError(opened.position, "brackets hold one value")
            self._values.append(inside[0])
        else:
            self._values.append(_make_call(opened, inside))
        return True

    def _take_operator(self, token: _Token) -> None:
        """Take the operator or comma between two values."""
        if token.text == ",":
            self._reduce(0)
            if not self._waiting or self._waiting[-1].sign == "(":
                raise ExpressionError(token.position, "',' only stands between what a call is given")
            return
        rank = _RANKS.get(token.text) if token.kind in ("sign", "name") else None
        if rank is None:
            raise ExpressionError(token.position, f"an operator is missing before {token.text!r}")
        self._reduce(rank)
        if rank == _COMPARED and self._waiting and self._waiting[-1].rank == _COMPARED:
            raise ExpressionError(token.position, "comparisons are not chained; use brackets")
        self._waiting.append(_PendingOperator(token.text, rank, token.position))

    def _reduce(self, rank: int) -> None:
        """Apply all pending operators that bind at least as tightly as ``rank``."""
        while self._waiting and self._waiting[-1].rank and self._waiting[-1].rank >= max(rank, 1):
            if rank == _COMPARED and self._waiting[-1].rank == _COMPARED:
                return
            sign = self._waiting.pop().sign
            right = self._values.pop()
            if sign in _PREFIX_RANKS:
                self._values.append(Unary("not" if sign == "not" else "-", right))
            else:
                self._values.append(_make_binary(sign, self._values.pop(), right))


def _make_binary(sign: str, left: Expr, right: Expr) -> Expr:
    if sign in ("==", "!=") and Constant(None) in (left, right):
        null_test = IsNull(left if right == Constant(None) else right)
        return null_test if sign == "==" else Unary("not", null_test)
    return Binary(sign, left, right)


def _make_call(opened: _PendingOperator, arguments: list[Expr]) -> Expr:
    if len(arguments) != _CALLS[opened.sign]:
        raise ExpressionError(
            opened.position, f"{opened.sign} takes {_CALLS[opened.sign]} values, not {len(arguments)}"
        )
    if opened.sign == "isnull":
        return IsNull(arguments[0])
    if opened.sign == "quadkey":
        return Quadkey(*arguments)
    if not isinstance(arguments[1], FieldReference):
        raise ExpressionError(opened.position, "cast takes the name of a type: str, int, float or bool")
    return Cast(arguments[0], _TARGETS.get(arguments[1].name, arguments[1].name))


_TARGETS = {"i64": "int", "f64": "float"}


def _read_number(token: _Token, sign: str) -> int | float:
    text = sign + token.text
    if token.text.isdigit():
        value = int(text) if len(text) <= 20 else 2**64
        if not -(2**63) <= value < 2**63:
            raise ExpressionError(token.position, f"{text[:30]} does not fit into 64 bits")
        return value
    number = float(text)
    if not math.isfinite(number):
        raise ExpressionError(token.position, f"{text[:30]} is beyond the finite numbers")
    return number


def _read_text(token: _Token) -> str:
    value = _ESCAPED.sub(r"\1", token.text[1:-1])
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ExpressionError(token.position, "half of a surrogate pair is no text")
    return value
