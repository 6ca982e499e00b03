"""The one query language of ``filter=``, ``q`` and ``include``: text to tree, and tree to text.

::

    query   := and ( OR and )*
    and     := unary ( [AND] unary )*                  side by side means AND
    unary   := ( NOT | - ) unary | "(" query ")" | clause
    clause  := has : name
             | contains : [name :] value
             | name : [=] value | name : (< | <= | > | >=) value
             | name : [=] *                            the same as has : name
             | value                                   bare: asks the default fields
    name    := word | string
    value   := word | string                           a final * makes a prefix

``AND``, ``OR`` and ``NOT`` are read in any case, unless a ``:`` follows. In a string, a backslash makes the next
character literal. A quoted name is always a field, even ``"has"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from reprlib import repr as shown
from typing import Literal, NamedTuple

from headrace.query.tree import And, Clause, Compare, Contains, Fault, Has, Node, Not, Operator, Or, Phrase, Term


class QuerySyntaxError(ValueError):
    """The text is no query: at which character, counted from 0, and why."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(str(Fault(position, reason)))
        self.position = position
        self.reason = reason


class Token(NamedTuple):
    """A word, a quoted string or a mark; ``prefix`` says that an unescaped ``*`` ended it and was taken off."""

    kind: Literal["word", "string", "mark", "end"]
    text: str
    position: int
    prefix: bool = False

    @property
    def value(self) -> str:
        """The text with its final star, for clauses that know no prefix."""
        return self.text + "*" if self.prefix else self.text


_BLANK = re.compile(r"\s*")
_MARK = re.compile(r"[<>]=|[-():<>=]")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_CHARACTER = re.compile(r"\\?.", re.DOTALL)
_WORD = re.compile(r"[^\s():<>=]+")
_END = r"(?=[\s)]|$)"
_NEGATIVE = re.compile(r"-\.?[0-9][^\s():<>=]*")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})?" + _END
)
_BEFORE_VALUE = frozenset({":", "=", "<", "<=", ">", ">="})


def tokens(text: str) -> Iterator[Token]:
    """Every token of the text and then the end; raises QuerySyntaxError at a string that does not end."""
    expects_value = False
    at = _skip_blanks(text, 0)
    while at < len(text):
        token, end = _token(text, at, expects_value)
        yield token
        expects_value = token.kind == "mark" and token.text in _BEFORE_VALUE
        at = _skip_blanks(text, end)
    yield Token("end", "", len(text))


def is_word(text: str) -> bool:
    """Whether a text can stand as a word without quotes wherever a word may stand."""
    return bool(_WORD.fullmatch(text)) and text[0] not in '-"'


def is_value(text: str) -> bool:
    """Whether a text can stand without quotes where a value is expected."""
    return is_word(text) or bool(_NEGATIVE.fullmatch(text) or _MOMENT.fullmatch(text))


def quote(text: str, *, prefix: bool = False) -> str:
    """The text as a string; only ``prefix`` gives it a final star that means one."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if prefix:
        return f'"{escaped}*"'
    return f'"{escaped[:-1]}\\*"' if escaped.endswith("*") else f'"{escaped}"'


def _skip_blanks(text: str, at: int) -> int:
    blanks = _BLANK.match(text, at)
    return blanks.end() if blanks else at


def _token(text: str, at: int, expects_value: bool) -> tuple[Token, int]:
    if text[at] == '"':
        return _string(text, at)
    if expects_value and (match := _MOMENT.match(text, at) or _NEGATIVE.match(text, at)):
        return _word(match)
    if match := _MARK.match(text, at):
        return Token("mark", match[0], at), match.end()
    match = _WORD.match(text, at)
    assert match, "every character begins a blank, a string, a mark or a word"
    return _word(match)


def _word(match: re.Match[str]) -> tuple[Token, int]:
    word = match[0]
    prefix = word.endswith("*") and len(word) > 1
    return Token("word", word[:-1] if prefix else word, match.start(), prefix), match.end()


def _string(text: str, at: int) -> tuple[Token, int]:
    match = _STRING.match(text, at)
    if not match:
        raise QuerySyntaxError(at, "the quoted string does not end")
    characters = _CHARACTER.findall(match[1])
    prefix = len(characters) > 1 and characters[-1] == "*"
    content = "".join(character[-1] for character in characters)
    return Token("string", content[:-1] if prefix else content, at, prefix), match.end()


__all__ = ["MAX_CHARACTERS", "MAX_CLAUSES", "MAX_DEPTH", "QuerySyntaxError", "parse", "text"]

MAX_CHARACTERS = 32_768
MAX_CLAUSES = 1_024
MAX_DEPTH = 64

_CONNECTIVES = frozenset({"AND", "OR", "NOT"})
_CLAUSE = "expected a clause"
_OPERATORS: dict[str, Operator] = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}


def parse(text: str) -> Node:
    """The tree of a query; raises QuerySyntaxError where the text is none or goes over a limit."""
    if len(text) > MAX_CHARACTERS:
        raise QuerySyntaxError(MAX_CHARACTERS, f"a query has at most {MAX_CHARACTERS} characters")
    if not text.strip():
        raise QuerySyntaxError(0, "the query is empty")
    return _Parser(text).query()


def text(tree: Node) -> str:
    """A query that parses to this tree."""
    match tree:
        case Or(parts=parts):
            return " OR ".join(_inside(part, Or) for part in parts)
        case And(parts=parts):
            return " AND ".join(_inside(part, Or, And) for part in parts)
        case Not(part=part):
            return f"NOT {_inside(part, Or, And)}"
        case Has(field=name):
            return f"has:{_name(name)}"
        case Compare(field=name, operator=operator, value=value):
            return f"{_name(name)}:{operator}{_value(value)}"
        case Contains(field=None, value=value):
            return f"contains:{_value(value)}"
        case Contains(field=str(name), value=value):
            return f"contains:{_name(name)}:{_value(value)}"
        case Term(field=name, value=value, prefix=prefix):
            return f"{_scope(name)}{value}{'*' if prefix else ''}"
        case Phrase(field=name, value=value, prefix=prefix):
            return _scope(name) + quote(value, prefix=prefix)
    raise TypeError(f"{tree!r} is no query")


def _inside(part: Node, *looser: type[Node]) -> str:
    return f"({text(part)})" if isinstance(part, looser) else text(part)


def _name(name: str) -> str:
    plain = is_word(name) and name[0].isalpha() and not name.endswith("*") and name not in ("has", "contains")
    return name if plain else quote(name)


def _scope(name: str | None) -> str:
    return "" if name is None else f"{_name(name)}:"


def _value(value: str) -> str:
    return value if is_value(value) else quote(value)


class _Parser:
    """Recursive descent; every nesting counts against a limit far below Python's own."""

    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        self._next = 0
        self._depth = 0
        self._clauses = 0

    def query(self) -> Node:
        tree = self._or()
        if self._peek().kind != "end":
            raise self._unexpected("expected AND, OR or a clause")
        return tree

    def _or(self) -> Node:
        parts = [self._and()]
        while self._connective() == "OR":
            self._take()
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts), position=parts[0].position)

    def _and(self) -> Node:
        parts = [self._unary()]
        while not (self._peek().kind == "end" or self._at_mark(")") or self._connective() == "OR"):
            if self._connective() == "AND":
                self._take()
            parts.append(self._unary())
        return parts[0] if len(parts) == 1 else And(tuple(parts), position=parts[0].position)

    def _unary(self) -> Node:
        start = self._peek().position
        if self._connective() == "NOT" or self._at_mark("-"):
            self._take()
            self._descend(start)
            tree: Node = Not(self._unary(), position=start)
        elif self._at_mark("("):
            self._take()
            self._descend(start)
            tree = self._or()
            if not self._at_mark(")"):
                raise self._unexpected("expected ')'")
            self._take()
        else:
            return self._clause()
        self._depth -= 1
        return tree

    def _clause(self) -> Clause:
        start = self._peek().position
        self._clauses += 1
        if self._clauses > MAX_CLAUSES:
            raise QuerySyntaxError(start, f"a query has at most {MAX_CLAUSES} clauses")
        if self._connective():
            raise self._unexpected(_CLAUSE)
        head = self._word_or_string(_CLAUSE)
        if not self._at_mark(":"):
            return _match(None, head, start)
        self._take()
        if head.kind == "word" and head.value == "has":
            return Has(self._word_or_string("has: needs the name of a field").value, position=start)
        if head.kind == "word" and head.value == "contains":
            return self._contains(start)
        return self._field_clause(head.value, start)

    def _contains(self, start: int) -> Clause:
        head = self._word_or_string("contains: needs a value")
        if not self._at_mark(":"):
            return Contains(None, head.value, position=start)
        self._take()
        value = self._word_or_string("contains: needs a value after the field")
        return Contains(head.value, value.value, position=start)

    def _field_clause(self, name: str, start: int) -> Clause:
        operator = _OPERATORS.get(self._peek().text) if self._peek().kind == "mark" else None
        if operator or self._at_mark("="):
            self._take()
        value = self._word_or_string(f"{shown(name)} needs a value")
        if operator:
            return Compare(name, operator, value.value, position=start)
        if value.kind == "word" and value.value == "*":
            return Has(name, position=start)
        return _match(name, value, start)

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _at_mark(self, mark: str) -> bool:
        token = self._peek()
        return token.kind == "mark" and token.text == mark

    def _connective(self) -> str | None:
        """AND, OR or NOT, if that is what comes next and it names no field."""
        token = self._peek()
        word = token.value.upper()
        if token.kind != "word" or word not in _CONNECTIVES:
            return None
        following = self._tokens[self._next + 1]
        return None if following.kind == "mark" and following.text == ":" else word

    def _word_or_string(self, expected: str) -> Token:
        if self._peek().kind not in ("word", "string"):
            raise self._unexpected(expected)
        return self._take()

    def _descend(self, position: int) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise QuerySyntaxError(position, f"a query is nested at most {MAX_DEPTH} deep")

    def _unexpected(self, expected: str) -> QuerySyntaxError:
        token = self._peek()
        token_text = "the end" if token.kind == "end" else shown(token.value)
        hint = ""
        if token.kind == "mark" and token.text not in "()":
            # Who writes status>400 means status:>400.
            is_comparison = expected == _CLAUSE and token.text in _OPERATORS
            hint = f"; compare as in field:{token.text}value" if is_comparison else "; quote a value that holds one"
        return QuerySyntaxError(token.position, f"{expected}, found {token_text}{hint}")


def _match(name: str | None, value: Token, start: int) -> Clause:
    kind = Phrase if value.kind == "string" else Term
    return kind(name, value.text, value.prefix, position=start)
