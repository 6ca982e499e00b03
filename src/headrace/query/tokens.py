"""The text of a query cut into tokens.

A word runs up to a blank or one of ``( ) : < > =``. Where a value is expected, after ``:`` or an operator, a word may
also be a negative number or an ISO 8601 moment with its colons: neither could mean anything else there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from headrace.query.tree import Fault


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


def quoted(text: str, *, prefix: bool = False) -> str:
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
    if expects_value and (found := _MOMENT.match(text, at) or _NEGATIVE.match(text, at)):
        return _word(found)
    if found := _MARK.match(text, at):
        return Token("mark", found[0], at), found.end()
    found = _WORD.match(text, at)
    assert found, "every character begins a blank, a string, a mark or a word"
    return _word(found)


def _word(found: re.Match[str]) -> tuple[Token, int]:
    word = found[0]
    prefix = word.endswith("*") and len(word) > 1
    return Token("word", word[:-1] if prefix else word, found.start(), prefix), found.end()


def _string(text: str, at: int) -> tuple[Token, int]:
    found = _STRING.match(text, at)
    if not found:
        raise QuerySyntaxError(at, "the quoted string does not end")
    characters = _CHARACTER.findall(found[1])
    prefix = len(characters) > 1 and characters[-1] == "*"
    content = "".join(character[-1] for character in characters)
    return Token("string", content[:-1] if prefix else content, at, prefix), found.end()
