"""Decode the entries of an append without losing anything silently: no repeated key, no digit of a number.

Most bodies are spelled just as we would spell them, blanks apart (in strings too: they separate no tokens there), and
then decoding lost nothing. Otherwise numbers are decoded exactly, and colons are counted: each member has one, so a
repeated key leaves more of them in the body than in its values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from headrace.errors import BadRequest
from headrace.schema import pointer
from headrace.types import Piece, json_fault

#: How long a number with a fraction or an exponent may be; a whole one is bounded by Python, to 4,300 digits.
MAX_DIGITS = 1_000
#: From here on a double may represent several whole numbers, up to those that 64 bits hold.
_LEAST_INEXACT, _GREATEST = 2**53, 2**63
TOO_DEEP = "is nested too deeply"
TOO_LONG = f"holds a number that is too long: whole ones have 4300 digits at most, others {MAX_DIGITS}"


class Failure(msgspec.Struct, frozen=True):
    """Why an append is refused: which entry, where in it, and the reason."""

    index: int
    pointer: str
    reason: str


def read(joined: bytes) -> tuple[list[Any], list[Failure]]:
    """The values of entries joined by commas, and failures of entries that cannot be decoded without loss.

    Numbers are ``int`` or ``float`` where that is exact, else ``Decimal``. An entry that failed has no usable value.
    """
    body = b"[" + joined + b"]"
    try:
        values = _PLAIN.decode(body)
        spelled = _SPELL(values)
        if spelled == body or spelled.translate(None, BLANKS) == body.translate(None, BLANKS):
            return values, []
        values = _EXACT.decode(body)
        if spelled.count(b":") == body.count(b":") and b"\\u003" not in body:  # \u003a is a colon in disguise
            return values, []
        return values, _find_repeated_keys(body)
    except (msgspec.DecodeError, InvalidOperation, RecursionError):
        return _decode_each(joined)


def decode_exact(text: bytes | str) -> Any:
    """A JSON text as a value, with all digits of its numbers, as ``read`` has them; raises DecodeError."""
    try:
        return _EXACT.decode(text)
    except InvalidOperation as reason:
        raise msgspec.DecodeError(f"it {TOO_LONG}") from reason


def entries_of(joined: Piece) -> list[msgspec.Raw]:
    """The entries of a stored JSON body, one by one."""
    try:
        return _RAW.decode(b"[" + joined + b"]")
    except RecursionError:
        # How deep the decoder goes depends on who calls it, and what was taken must be read back.
        return list(split_at_commas(bytes(joined)))


def split_at_commas(joined: bytes) -> Iterator[msgspec.Raw]:
    """The values of valid JSON of any depth, cut at the commas outside brackets and strings."""
    start = depth = 0
    for token in _TOKEN.finditer(joined):
        mark = token[0]
        if mark in b"[{":
            depth += 1
        elif mark in b"]}":
            depth -= 1
        elif mark == b"," and not depth:
            yield msgspec.Raw(joined[start : token.start()].strip(BLANKS))
            start = token.end()
    if last := joined[start:].strip(BLANKS):
        yield msgspec.Raw(last)


def exact_number(text: str) -> float | Decimal:
    """A JSON number with a fraction or an exponent: a float where that is exact, else an int or a Decimal."""
    if len(text) > MAX_DIGITS:
        raise InvalidOperation
    number = float(text)
    if repr(number) == text:
        return number
    exact = Decimal(text)
    if Decimal(repr(number)) == exact:
        return number
    return int(exact) if exact.adjusted() < MAX_DIGITS and exact == exact.to_integral_value() else exact


def integer_or_double(text: str) -> int | float:
    """A JSON number with a fraction or an exponent: all digits of a whole one of 64 bits, else the nearest double."""
    number = float(text)
    if not number.is_integer() or not _LEAST_INEXACT <= abs(number) <= _GREATEST:
        return number
    exact = Decimal(text)
    return int(exact) if _is_integral(exact) and -_GREATEST <= exact < _GREATEST else number


def checked_number(text: str) -> int | float:
    """The same; raises ValueError where the nearest double is infinite, or is whole and the number is not."""
    number = integer_or_double(text)
    if isinstance(number, int):
        return number
    if not math.isfinite(number):
        raise ValueError("Number out of range")
    if number.is_integer() and not _is_integral(_decimal(text)):
        raise ValueError(f"{text[:50]} has more digits than are kept")
    return number


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as reason:
        raise ValueError(f"{text[:50]} has too great an exponent") from reason


def _is_integral(number: Decimal) -> bool:
    return number == number.to_integral_value()


class _Members(list[tuple[str, Any]]):
    """An object as it is spelled: its members, repeated ones too."""


_PLAIN = msgspec.json.Decoder()
_EXACT = msgspec.json.Decoder(float_hook=exact_number)
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
BLANKS = b" \t\r\n"
_SPELL = msgspec.json.Encoder().encode
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]')


def _decode_each(joined: bytes) -> tuple[list[Any], list[Failure]]:
    """The same for a body that cannot be decoded as a whole: each entry on its own, to name those that fail."""
    values: list[Any] = []
    failures: list[Failure] = []
    for index, entry in enumerate(entries_of(joined)):
        value = None
        try:
            value = _EXACT.decode(entry)
            failures += (
                msgspec.structs.replace(failure, index=index)
                for failure in _find_repeated_keys(b"[" + bytes(entry) + b"]")
            )
        except RecursionError:
            failures.append(Failure(index, "", TOO_DEEP))
        except (msgspec.DecodeError, InvalidOperation):
            failures.append(Failure(index, "", TOO_LONG))
        values.append(value)
    return values, failures


def _find_repeated_keys(body: bytes) -> list[Failure]:
    """The first repeated key of each element of a JSON array, found by building objects as lists of members."""
    tree = json.loads(body, object_pairs_hook=_Members, parse_int=len, parse_float=len)
    locations = ((index, _first_repeated_key(entry)) for index, entry in enumerate(tree))
    return [Failure(index, pointer.text(where), "is a repeated key") for index, where in locations if where]


def _first_repeated_key(entry: Any) -> pointer.Pointer | None:
    """The pointer of the first member with the name of an earlier one."""
    waiting: list[tuple[pointer.Pointer, Any]] = [((), entry)] if isinstance(entry, list) else []
    while waiting:
        where, value = waiting.pop()
        seen = set()
        for name, member in value if isinstance(value, _Members) else enumerate(value):
            if name in seen:
                return (*where, str(name))
            seen.add(name)
            if isinstance(member, list) and member:
                waiting.append(((*where, str(name)), member))
    return None


_ONE = msgspec.json.Decoder(msgspec.Raw)


def split_json(body: bytes) -> tuple[bytes, int]:
    """The entries of an append, joined by commas as they were spelled, and how many there are.

    An array is flattened one level; any other value is one entry.
    """
    try:
        check_text(body)
        if body[:1] == b"{" and body[-1:] == b"}":
            _ONE.decode(body)
            return body, 1
        if body[:1] == b"[" or body.lstrip(BLANKS)[:1] == b"[":
            count = len(_RAW.decode(body))
            if body[:1] != b"[" or body[-1:] != b"]":
                body = body.strip(BLANKS)
            return (body[1:-1], count) if count else (b"", 0)
        _ONE.decode(body)
        return body.strip(BLANKS), 1
    except RecursionError as reason:
        raise BadRequest("the JSON is nested too deeply", field="body") from reason
    except msgspec.DecodeError as reason:
        raise BadRequest(f"the body is not JSON: {json_fault(reason, body)}", field="body") from reason


def slice_json(joined: bytes, start: int, stop: int) -> bytes:
    """Entries ``start`` to ``stop`` of a stored JSON body, joined by commas."""
    return b",".join(entries_of(joined)[start:stop])


def check_text(body: bytes) -> None:
    """Refuse text that is not UTF-8: decoders do not check all strings."""
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError as reason:
        raise BadRequest(f"the body is not UTF-8: byte {reason.start}", field="body") from reason
