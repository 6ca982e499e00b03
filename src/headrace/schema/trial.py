"""A trial: stored events are checked against a proposed registry, whatever its proof says."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from headrace.schema import entries
from headrace.schema import pointer as pointers
from headrace.schema.containment.check import format_json
from headrace.schema.document import Validator
from headrace.schema.entries import entries_of
from headrace.schema.lens.values import LensFailure
from headrace.schema.registry import Registry
from headrace.schema.routing_key import RoutingKey
from headrace.schema.view import chain_of

#: How many events that would fail are named.
MAX_NAMED = 100
MAX_TEXT = 300

#: What an event fails at: a lens, the proposed schema, or the routing key that comes with a first schema.
Cause = Literal["lens", "schema", "key"]

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class Misfit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event that would fail: where in it, and why.

    At a lens the pointer leads into the event as it came there, at the schema into what the lenses made of it.
    """

    seq: Count
    cause: Cause
    pointer: _Text
    reason: _Text


class Findings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many events were checked, how many would fail at what, and the first of those."""

    events: Count = 0
    lens: Count = 0
    schema: Count = 0
    misfits: Annotated[tuple[Misfit, ...], msgspec.Meta(max_length=MAX_NAMED)] = ()
    key: Count = 0

    @property
    def failing(self) -> int:
        """How many events would fail."""
        return self.lens + self.schema + self.key

    def __add__(self, other: Findings) -> Findings:
        """What was found in both, which have no event in common."""
        if not other.misfits:
            misfits = self.misfits
        else:
            misfits = tuple(heapq.merge(self.misfits, other.misfits, key=_seq))[:MAX_NAMED]
        return Findings(
            self.events + other.events,
            self.lens + other.lens,
            self.schema + other.schema,
            misfits,
            self.key + other.key,
        )


def _seq(misfit: Misfit) -> int:
    return misfit.seq


class Trial:
    """A registry whose newest version is proposed, compiled once to check many events.

    With a first version and a routing key, every event must have been appended with the key that it holds.
    """

    def __init__(self, registry: Registry) -> None:
        self._target = registry.current_version
        self._chain = chain_of(registry)
        self._validator = Validator(registry.current_schema)
        self.checks_keys = checks_keys(registry)
        key = registry.routing_key if self.checks_keys else None
        self._routing = None if key is None else RoutingKey(pointers.parse(key.pointer) or (), key.required)

    def check(
        self, first_seq: int, version: int, joined: bytes, count: int, keys: Sequence[str | None] = ()
    ) -> Findings:
        """Check consecutive events of one version, joined by commas; ``keys`` are those they were appended with."""
        try:
            carried = self._carry(joined, version)
            if not self._validator.failures(carried) and self._have_keys(joined, keys):
                return Findings(count)
        except (LensFailure, RecursionError):
            pass
        misfits = list(self._misfits(first_seq, version, joined, keys))
        causes = Counter(misfit.cause for misfit in misfits)
        return Findings(count, causes["lens"], causes["schema"], tuple(misfits[:MAX_NAMED]), causes["key"])

    def _have_keys(self, joined: bytes, keys: Sequence[str | None]) -> bool:
        return self._routing is None or self._routing.keys(joined) == (list(keys), [])

    def _explain_key(self, entry: bytes, key: str | None) -> str:
        """Why an event was appended with another key than it holds; empty if it was not."""
        assert self._routing is not None
        derived, failures = self._routing.keys(entry)
        if failures:
            return failures[0].reason
        before, now = ("no key" if value is None else f"the key {format_json(value)}" for value in (key, derived[0]))
        return "" if derived[0] == key else f"it was appended with {before}, and holds {now}"

    def _carry(self, joined: bytes, version: int) -> bytes:
        return self._chain.promote(joined, version, self._target)

    def _misfits(self, first_seq: int, version: int, joined: bytes, keys: Sequence[str | None]) -> Iterator[Misfit]:
        """The events that would fail; only the first ones have the reason of a schema failure."""
        named = 0
        for index, entry in enumerate(entries_of(joined)):
            seq, event = first_seq + index, bytes(entry)
            misfit = self._judge(seq, version, event, explains=named < MAX_NAMED)
            if misfit is None and self._routing is not None and (reason := self._explain_key(event, keys[index])):
                misfit = _misfit(seq, "key", pointers.text(self._routing.path), reason)
            if misfit is not None:
                named += 1
                yield misfit

    def _judge(self, seq: int, version: int, entry: bytes, *, explains: bool) -> Misfit | None:
        try:
            carried = self._carry(entry, version)
        except LensFailure as failure:
            return _misfit(seq, "lens", failure.where, failure.reason)
        except RecursionError:
            return _misfit(seq, "lens", "", entries.TOO_DEEP)
        if explains:
            failures = self._validator.failures(carried)
            return _misfit(seq, "schema", failures[0].pointer, failures[0].reason) if failures else None
        values, lost = entries.read(carried)
        return None if not lost and self._validator.accepts(values[0]) else _misfit(seq, "schema", "", "")


def checks_keys(registry: Registry) -> bool:
    """Whether a trial of a registry compares the keys of events too."""
    return registry.current_version == 1 and registry.routing_key is not None


def _misfit(seq: int, cause: Cause, pointer: str, reason: str) -> Misfit:
    return Misfit(seq, cause, pointer[:MAX_TEXT], reason[:MAX_TEXT])
