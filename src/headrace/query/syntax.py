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

from reprlib import repr as shown

from headrace.query.tokens import QuerySyntaxError, Token, is_value, is_word, quoted, tokens
from headrace.query.tree import And, Clause, Compare, Contains, Has, Node, Not, Operator, Or, Phrase, Term

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
            return _scope(name) + quoted(value, prefix=prefix)
    raise TypeError(f"{tree!r} is no query")


def _inside(part: Node, *looser: type[Node]) -> str:
    return f"({text(part)})" if isinstance(part, looser) else text(part)


def _name(name: str) -> str:
    plain = is_word(name) and name[0].isalpha() and not name.endswith("*") and name not in ("has", "contains")
    return name if plain else quoted(name)


def _scope(name: str | None) -> str:
    return "" if name is None else f"{_name(name)}:"


def _value(value: str) -> str:
    return value if is_value(value) else quoted(value)


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
        return self._fielded(head.value, start)

    def _contains(self, start: int) -> Clause:
        given = self._word_or_string("contains: needs a value")
        if not self._at_mark(":"):
            return Contains(None, given.value, position=start)
        self._take()
        value = self._word_or_string("contains: needs a value after the field")
        return Contains(given.value, value.value, position=start)

    def _fielded(self, name: str, start: int) -> Clause:
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
        found = "the end" if token.kind == "end" else shown(token.value)
        hint = ""
        if token.kind == "mark" and token.text not in "()":
            # Who writes status>400 means status:>400.
            is_comparison = expected == _CLAUSE and token.text in _OPERATORS
            hint = f"; compare as in field:{token.text}value" if is_comparison else "; quote a value that holds one"
        return QuerySyntaxError(token.position, f"{expected}, found {found}{hint}")


def _match(name: str | None, value: Token, start: int) -> Clause:
    kind = Phrase if value.kind == "string" else Term
    return kind(name, value.text, value.prefix, position=start)
