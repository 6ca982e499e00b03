"""The hook that a profile, an event source or an entity type has on the appends to its stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from headrace.errors import BadRequest
from headrace.schema.canonical import same
from headrace.schema.entries import Failure, entries_of, read
from headrace.schema.routing_key import MAX_FAILURES
from headrace.types import Steps

_ENCODE = msgspec.json.Encoder(decimal_format="number").encode


class Misfit(Exception):
    """Why a profile does not take a record: where in it, and the reason."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(reason)
        self.pointer = pointer
        self.reason = reason


class AppendHook:
    """The rules of one stream, compiled; this class takes entries as they are.

    A hook is immutable: a change of the rules makes another one. Methods are called on the event loop and on the
    writer's thread, and do no IO. Entries are JSON values, joined by commas.
    """

    #: Whether :meth:`normalise` may change entries; where not, it is not called.
    normalises = False
    #: Whether entries have routing keys that the hook knows, in place of those of the stream or the request.
    assigns_keys = False
    #: Whether the hook knows routing keys where neither the stream nor the request names any.
    suggests_keys = False
    #: Whether entries have keys that are stored once.
    deduplicates = False
    #: The first entry whose key counts, how many keys are remembered, and for how long.
    dedupe_since = 0
    max_dedupe_keys = 0
    dedupe_window_us = 0
    #: Whether more than entries is stored in their commit: then :meth:`check_commit` and :meth:`extend_commit` are
    #: called in it.
    extends_commit = False
    #: Whether entries have a time of their own, which :meth:`failures` checks.
    has_event_time = False
    #: Whether they can be late, which :meth:`count_late` counts.
    can_be_late = False
    #: How long entries are kept, in milliseconds, by the first entry; None where that is the stream's own setting.
    lifetimes_ms: Steps | None = None

    def normalise(self, joined: bytes, terms: Any) -> bytes:
        """Return entries as they are stored: as many, in the same order; raises BadRequest for what cannot be.

        Where the hook is replaced before the entries are on disk, its successor gets the original entries.
        """
        return joined

    def guarantees(self, schema: Any) -> bool:
        """Whether everything that :meth:`normalise` returns fits this schema, so that nothing validates it again."""
        return False

    def failures(self, joined: bytes, timestamp_us: int | None = None) -> list[Failure]:
        """Return what is wrong with entries that fit the schema of the stream.

        They are appended now, or at the time that their request gives.
        """
        return []

    def count_late(self, joined: bytes, at_us: int) -> int:
        """Count the entries that are late when they are appended at a time."""
        return 0

    def refusal(self, joined: bytes, failures: list[Failure], number: int = 0) -> BadRequest:
        """Make the error for entries that do not fit; ``number`` is that of the first entry."""
        return refusal(failures, number)

    def routing_keys(self, joined: bytes) -> list[str | None]:
        """Return the routing key of each entry, where :attr:`assigns_keys` or :attr:`suggests_keys` says so."""
        return [None] * len(entries_of(joined))

    def dedupe_keys(self, joined: bytes) -> list[str | None]:
        """Return the key of each entry, where :attr:`deduplicates` says so; None for one that is always stored."""
        return [None] * len(entries_of(joined))

    def check_commit(self, batch: Any, stream: Any, joined: bytes, keys: list[str | None]) -> None:
        """Refuse entries for what the commit reads, before anything of it is written."""

    def extend_commit(self, batch: Any, stream: Any, first_seq: int, joined: bytes, at_us: int) -> None:
        """Store what follows from entries that are new."""


def refusal(failures: list[Failure], number: int = 0) -> BadRequest:
    """The error for entries that a profile does not take."""
    problems = [
        {"index": number + failure.index, "pointer": failure.pointer, "reason": failure.reason} for failure in failures
    ]
    first = problems[0]
    where = first["pointer"] or "its root"
    message = f"event {number + failures[0].index + 1} does not fit: {first['reason']} (at {where})"
    return BadRequest(message, field="body", failures=problems)


def refuse_entries(failures: list[Failure]) -> NoReturn:
    """Refuse an append; the first failures are named."""
    raise refusal(sorted(failures, key=lambda failure: failure.index)[:MAX_FAILURES])


class RecordHook(AppendHook):
    """A hook that makes a canonical record of each entry, and routes it by a member of the record."""

    normalises = True
    suggests_keys = True
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
