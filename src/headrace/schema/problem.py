"""What is wrong with a document, said so that someone can mend it."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong: where, as a JSON Pointer into what was given, and why."""

    pointer: str
    reason: str
