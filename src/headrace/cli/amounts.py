"""Amounts on the command line: whole numbers from 1 on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cyclopts import Token


def whole(kind: Any, tokens: Sequence[Token]) -> int:
    """The number that is written there; cyclopts itself would round a fraction, and take what is negative."""
    text = tokens[0].value
    if not (text.isascii() and text.isdigit()) or not int(text):
        raise ValueError(f"{text} is not a whole number from 1 on")
    return int(text)
