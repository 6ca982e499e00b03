"""Append hooks: what the kind of a stream does to entries that are appended to it.

Event sources, entity types and profiles have hooks; a plain stream has none. The hook of a stream is looked up once,
when the stream is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from headrace import decoding
from headrace.errors import CorruptData
from headrace.profiles import table as profiles
from headrace.storage.streams import StreamRow
from headrace.types import RESERVED

if TYPE_CHECKING:
    from headrace.engine.log.append import Terms
    from headrace.engine.log.batch import Batch
    from headrace.engine.log.stream import Stream
    from headrace.errors import BadRequest
    from headrace.schema.entries import Failure
    from headrace.types import Steps


class AppendHook(Protocol):
    """The rules of one stream, compiled. A hook is immutable: a change of the rules makes another one.

    Methods are called on the event loop and on the writer's thread, and do no IO. Entries are JSON values, joined by
    commas.
    """

    @property
    def normalises(self) -> bool:
        """Whether :meth:`normalise` may change entries; where not, it is not called."""

    def normalise(self, joined: bytes, terms: Terms) -> bytes:
        """Entries as they are stored: as many, in the same order. What cannot be is a BadRequest.

        Where the hook is replaced before the entries are on disk, its successor gets the original entries.
        """

    def failures(self, joined: bytes) -> list[Failure]:
        """What is wrong with entries that fit the schema of the stream."""

    def refusal(self, joined: bytes, failures: list[Failure], number: int = 0) -> BadRequest:
        """Why entries do not fit, given what is wrong with them; ``number`` is that of the first entry."""

    @property
    def routes(self) -> bool:
        """Whether entries have routing keys that the hook knows, in place of those of the stream or the request."""

    @property
    def suggests(self) -> bool:
        """Whether the hook knows routing keys where neither the stream nor the request names any."""

    def routing_keys(self, joined: bytes) -> list[str | None]:
        """The routing key of each entry, where :attr:`routes` or :attr:`suggests` says so."""

    def guarantees(self, schema: Any) -> bool:
        """Whether everything that :meth:`normalise` returns is valid under this schema, and need not be validated."""

    @property
    def dedupes(self) -> bool:
        """Whether entries have keys that are stored once."""

    def unique_keys(self, joined: bytes) -> list[str | None]:
        """The key of each entry, where :attr:`dedupes` says so; None for one that is stored in any case."""

    @property
    def dedupe_since(self) -> int:
        """The first entry whose key counts."""

    @property
    def most_keys(self) -> int:
        """How many keys are remembered."""

    @property
    def window_us(self) -> int:
        """For how long a key is remembered."""

    @property
    def follows(self) -> bool:
        """Whether more than entries is stored in their commit: then :meth:`check` and :meth:`note` are called in it."""

    def check(self, batch: Batch, stream: Stream, joined: bytes, keys: list[str | None]) -> None:
        """Refuse entries for what the commit finds, before anything of it is written."""

    def note(self, batch: Batch, stream: Stream, first_seq: int, joined: bytes, at_us: int) -> None:
        """Store what follows from entries that are new."""

    @property
    def kept(self) -> Steps | None:
        """How long entries are kept, in milliseconds; None where that is the stream's own setting."""


class StreamManager(NamedTuple):
    """How the streams of one registry are loaded and retained."""

    #: Makes the hook of a stream out of its row.
    load_hook: Callable[[StreamRow], AppendHook]
    #: Whether retention rules apply to its streams.
    is_retained: bool = True


class _Managed(msgspec.Struct):
    """What the stored rules of every managed stream begin with: the registry that it belongs to."""

    kind: str


_MANAGED = decoding.make_decoder(_Managed)


class AppendHooks:
    """The table of append hooks, by the registry that manages a stream or by its profile."""

    def __init__(self, managers: Mapping[str, StreamManager]) -> None:
        """``managers`` are named as in the stored rules of their streams."""
        self._managers = managers

    def load(self, row: StreamRow) -> AppendHook | None:
        """The hook of a stream; None for a plain one."""
        if row.managed:
            return self._manager(row).load_hook(row)
        hook = profiles.load(row.profile).hook
        if hook is not None and hook.suggests and row.name.startswith(RESERVED):
            # Streams of the server have the routing keys that their registries name, and no others.
            hook = copy(hook)
            hook.suggests = False
        return hook

    def is_retained(self, row: StreamRow) -> bool:
        """Whether retention rules apply to a stream."""
        return not row.managed or self._manager(row).is_retained

    def _manager(self, row: StreamRow) -> StreamManager:
        kind = _MANAGED.decode(row.managed).kind
        manager = self._managers.get(kind)
        if manager is None:
            raise CorruptData(
                f"the stream {row.name!r} belongs to a registry of unknown kind {kind!r}", stream=row.name
            )
        return manager
