"""The request and the answer of a filtered read; imports nothing that computes it."""

from __future__ import annotations

from typing import NamedTuple

from headrace.query.tree import Node
from headrace.types import Piece


class Filter(NamedTuple):
    """What a filtered read asks for; ``text`` is how it was spelled, ``asker`` who gets the answer."""

    text: str
    tree: Node
    asker: object = None


class Limits(NamedTuple):
    """How much one answer holds, and how much of the payload it may scan."""

    budget: int
    scan_bytes: int


class Filtered(NamedTuple):
    """The matching events, the next position, how many bytes were scanned, and why it ended early."""

    parts: list[Piece]
    position: int
    scanned_bytes: int
    limit_reached: bool = False
    timed_out: bool = False
