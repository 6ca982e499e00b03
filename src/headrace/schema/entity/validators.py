"""The validators that there are: what a field can ask of its values by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.schema.date_time import is_date_time
from headrace.schema.entity.nodes import Type
from headrace.schema.entity.values import is_day

_TEXT: tuple[Type, ...] = ("string", "date")
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])"
_URL = rf"[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s/?#@]+@)?{_HOST}(?::[0-9]{{1,5}})?(?:[/?#]\S*)?"
_UUID = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_PHONE = re.compile(r"\+?[0-9(][0-9 ().-]*[0-9]")


class Validator(NamedTuple):
    """A validator: the types it can judge, what it accepts, and that in words."""

    types: tuple[Type, ...]
    accepts: Callable[[Any], bool]
    wants: str


def _matching(pattern: str) -> Callable[[Any], bool]:
    compiled = re.compile(pattern)
    return lambda value: compiled.fullmatch(value) is not None


def _email(value: str) -> bool:
    """One local part without blanks and a domain of labels; the whole is no longer than mail allows."""
    local, at, domain = value.rpartition("@")
    if not at or not 1 <= len(local) <= 64 or len(domain) > 253 or ".." in local:
        return False
    return _LOCAL(local) and "." in domain and _DOMAIN(domain)


def _phone(value: str) -> bool:
    return _PHONE.fullmatch(value) is not None and 5 <= sum(map(str.isdigit, value)) <= 15


_LOCAL = _matching(r"[^\s@.\"(),:;<>\[\]\\](?:[^\s@\"(),:;<>\[\]\\]*[^\s@.\"(),:;<>\[\]\\])?")
_DOMAIN = _matching(rf"{_LABEL}(?:\.{_LABEL})*")

VALIDATORS: dict[str, Validator] = {
    "email": Validator(("string",), _email, "an address such as name@example.org"),
    "url": Validator(("string",), _matching(_URL), "an absolute address such as https://example.org/page"),
    "iso_date": Validator(_TEXT, is_day, "a day such as 2026-01-31"),
    "iso_datetime": Validator(_TEXT, is_date_time, "a moment with a zone such as 2026-01-31T12:00:00Z"),
    "phone": Validator(("string",), _phone, "a telephone number of 5 to 15 digits"),
    "currency": Validator(("string",), _matching("[A-Z]{3}"), "a currency code of three capitals"),
    "country": Validator(("string",), _matching("[A-Z]{2}"), "a country code of two capitals"),
    "slug": Validator(("string",), _matching("[a-z0-9]+(?:-[a-z0-9]+)*"), "small letters, digits and single hyphens"),
    "uuid": Validator(("string",), _matching(_UUID), "a UUID"),
    "non_empty": Validator(
        ("string", "date", "array", "object"),
        lambda value: bool(value.strip() if isinstance(value, str) else value),
        "something that is not empty",
    ),
    "integer": Validator(("number",), lambda value: value == value // 1, "a whole number"),
    "positive": Validator(("number",), lambda value: value > 0, "a number above zero"),
    "non_negative": Validator(("number",), lambda value: value >= 0, "a number not below zero"),
}
