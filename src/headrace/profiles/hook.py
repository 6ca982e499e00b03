"""The hook that a profile, an event source or an entity type has on the appends to its stream.

It implements ``headrace.engine.log.append_hook.AppendHook``, which is in a layer above, and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace.errors import BadRequest
from headrace.schema.entries import Failure, entries_of

Made = TypeVar("Made")


class Misfit(Exception):
    """Why a profile does not take a record: where in it, and the reason."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(reason)
        self.pointer = pointer
        self.reason = reason


class Hook:
    """A hook that takes entries as they are."""

    normalises = False
    #: Whether it knows a routing key where neither the stream nor the request names one.
    suggests = False
    routes = False
    dedupes = False
    follows = False
    dedupe_since = 0
    most_keys = 0
    window_us = 0
    kept: tuple[tuple[int, int | None], ...] | None = None

    def normalise(self, joined: bytes, terms: Any) -> bytes:
        """Entries as they are stored."""
        return joined

    def guarantees(self, schema: Any) -> bool:
        """Whether everything that :meth:`normalise` gives fits this schema, so that nobody need look again."""
        return False

    def failures(self, joined: bytes) -> list[Failure]:
        """What is wrong with entries that fit the schema of the stream."""
        return []

    def refusal(self, joined: bytes, failures: list[Failure], number: int = 0) -> BadRequest:
        """Why entries do not fit; ``number`` is that of the first entry."""
        return refusal(failures, number)

    def routing_keys(self, joined: bytes) -> list[str | None]:
        """The routing key of each entry: none has one."""
        return [None] * len(entries_of(joined))

    def check(self, batch: Any, stream: Any, joined: bytes, keys: Any) -> None:
        """Nothing speaks against entries that the commit could find."""

    def note(self, batch: Any, stream: Any, first_seq: int, joined: bytes, at_us: int) -> None:
        """Nothing follows from entries."""

    def unique_keys(self, joined: bytes) -> list[str | None]:
        """The key of each entry that is stored once: none is."""
        return [None] * len(entries_of(joined))


def refusal(failures: list[Failure], number: int = 0) -> BadRequest:
    """The error for entries that a profile does not take."""
    problems = [
        {"index": number + failure.index, "pointer": failure.pointer, "reason": failure.reason} for failure in failures
    ]
    first = problems[0]
    where = first["pointer"] or "its root"
    message = f"event {first['index']} does not fit: {first['reason']} (at {where})"
    return BadRequest(message, field="body", failures=problems)


def make_records(values: Sequence[Any], make: Callable[[dict[str, Any]], Made]) -> tuple[list[Made], list[Failure]]:
    """What a profile makes of records, and why it does not take the others."""
    taken: list[Made] = []
    failures: list[Failure] = []
    for index, value in enumerate(values):
        if type(value) is not dict:
            failures.append(Failure(index, "", "is no object"))
            continue
        try:
            taken.append(make(value))
        except Misfit as misfit:
            failures.append(Failure(index, misfit.pointer, misfit.reason))
    return taken, failures
