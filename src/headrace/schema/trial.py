"""A trial: stored events are checked against a proposed registry, whatever its proof says."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from headrace.errors import CorruptData
from headrace.schema import entries
from headrace.schema.document import Validator
from headrace.schema.entries import entries_of
from headrace.schema.lens import document as lens_document
from headrace.schema.lens.chain import LensChain
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.values import LensFailure
from headrace.schema.registry import Registry

#: How many events that would fail are named.
MAX_NAMED = 100
MAX_TEXT = 300

#: What an event fails at: a lens, or the proposed schema.
Cause = Literal["lens", "schema"]

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class Misfit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event that would fail: where in it, and why.

    At a lens the pointer leads into the event as it came there, else into what the lenses made of it.
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

    @property
    def failing(self) -> int:
        """How many events would fail."""
        return self.lens + self.schema

    def __add__(self, other: Findings) -> Findings:
        """What was found in both, which have no event in common."""
        if not other.misfits:
            misfits = self.misfits
        else:
            misfits = tuple(heapq.merge(self.misfits, other.misfits, key=_seq))[:MAX_NAMED]
        return Findings(self.events + other.events, self.lens + other.lens, self.schema + other.schema, misfits)


def _seq(misfit: Misfit) -> int:
    return misfit.seq


class Trial:
    """A registry whose newest version is proposed, compiled once to check many events."""

    def __init__(self, registry: Registry) -> None:
        self._target = registry.current_version
        self._chain = LensChain({n: _lens(document) for n, document in registry.lenses.items()}, registry.schemas)
        self._validator = Validator(registry.current_schema)

    def check(self, first_seq: int, version: int, joined: bytes, count: int) -> Findings:
        """Check consecutive events of one version, joined by commas."""
        try:
            carried = self._carry(joined, version)
            if not self._validator.failures(carried):
                return Findings(count)
        except (LensFailure, RecursionError):
            pass
        misfits = list(self._misfits(first_seq, version, joined))
        lens = sum(misfit.cause == "lens" for misfit in misfits)
        return Findings(count, lens, len(misfits) - lens, tuple(misfits[:MAX_NAMED]))

    def _carry(self, joined: bytes, version: int) -> bytes:
        # Events that came before the first schema are taken as they are.
        return self._chain.promote(joined, version or self._target, self._target)

    def _misfits(self, first_seq: int, version: int, joined: bytes) -> Iterator[Misfit]:
        """The events that would fail; only the first ones have the reason of a schema failure."""
        named = 0
        for seq, entry in enumerate(entries_of(joined), start=first_seq):
            misfit = self._judge(seq, version, bytes(entry), explains=named < MAX_NAMED)
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


def _misfit(seq: int, cause: Cause, pointer: str, reason: str) -> Misfit:
    return Misfit(seq, cause, pointer[:MAX_TEXT], reason[:MAX_TEXT])


def _lens(document: Any) -> Lens:
    lens = lens_document.parse(document)
    if isinstance(lens, list):
        raise CorruptData(f"a lens cannot be read: {lens[0].reason}", pointer=lens[0].pointer)
    return lens
