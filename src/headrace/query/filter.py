"""The request and the answer of a filtered read; imports nothing that computes it."""

from __future__ import annotations

from typing import NamedTuple

from headrace.query.tree import Node
from headrace.types import Piece


class Filter(NamedTuple):
    """What a filtered read asks for; ``text`` is how it was spelled, ``asker`` whose answer it is."""

    text: str
    tree: Node
    asker: object = None


class Limits(NamedTuple):
    """How much one answer holds, and how much of the payload it may look at."""

    budget: int
    scan_bytes: int


class Filtered(NamedTuple):
    """What was found, each part one event, and where to go on; how much was looked at, and why it ended early."""

    parts: list[Piece]
    position: int
    scanned_bytes: int
    limit_reached: bool = False
    timed_out: bool = False
