"""The hook that a profile, an event source or an entity type has on the appends to its stream.

It implements ``headrace.engine.log.append_hook.AppendHook``, which is in a layer above, and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from headrace.errors import BadRequest
from headrace.schema.canonical import same
from headrace.schema.entries import Failure, entries_of, read
from headrace.schema.routing_key import MAX_FAILURES

_ENCODE = msgspec.json.Encoder(decimal_format="number").encode


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


def refuse_entries(failures: list[Failure]) -> NoReturn:
    """Refuse an append; the first failures are named."""
    raise refusal(sorted(failures, key=lambda failure: failure.index)[:MAX_FAILURES])


class RecordHook(Hook):
    """A hook that makes a canonical record of each entry, and routes it by a member of the record."""

    normalises = True
    suggests = True
    #: The schema that every record fits.
    schema: Any = True

    def make_record(self, raw_record: dict[str, Any]) -> Any:
        """The canonical record, which msgspec can encode; raises Misfit. The raw one may be used up."""
        raise NotImplementedError

    def normalise(self, joined: bytes, terms: Any) -> bytes:
        """Entries as canonical records."""
        values, failures = read(joined)
        encoded, _, misfits = self.encode_records(values)
        if failures or misfits:
            refuse_entries(failures + misfits)
        return encoded

    def encode_records(self, values: Sequence[Any]) -> tuple[bytes, int, list[Failure]]:
        """The records of those values that have one, joined by commas; how many they are; and why others have none."""
        records: list[Any] = []
        failures: list[Failure] = []
        for index, value in enumerate(values):
            if type(value) is not dict:
                failures.append(Failure(index, "", "is no object"))
                continue
            try:
                records.append(self.make_record(value))
            except Misfit as misfit:
                failures.append(Failure(index, misfit.pointer, misfit.reason))
        return _ENCODE(records)[1:-1], len(records), failures

    def guarantees(self, schema: Any) -> bool:
        """Records fit the schema that the profile brings."""
        return same(schema, self.schema)
