"""Problems of documents."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One error in a document: a JSON Pointer into it, and the reason."""

    pointer: str
    reason: str
