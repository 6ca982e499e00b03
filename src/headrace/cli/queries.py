"""Queries on the command line: where one is wrong is shown below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import BadRequest


@contextmanager
def pointing(query: str, *, as_json: bool) -> Iterator[None]:
    """Mark every fault of a query that the server refuses, for people."""
    try:
        yield
    except BadRequest as refusal:
        marks = _marks(refusal)
        if as_json or not marks:
            raise
        line = "".join("^" if at in marks else " " for at in range(max(marks) + 1))
        # A query may have several lines, and then the marks would stand anywhere.
        shown = "".join(" " if letter.isspace() else letter for letter in query)
        raise BadRequest(f"{refusal.message}\n  {shown}\n  {line}", **refusal.facts) from refusal


def _marks(refusal: BadRequest) -> set[int]:
    faults = refusal.facts.get("problems") or [refusal.facts]
    return {fault["position"] for fault in faults if "position" in fault}
