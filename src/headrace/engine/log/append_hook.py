"""What a stream's entries are to whoever it belongs to: the hook through which they are normalised, told apart and
judged on the one way into the log.

An event source, an entity type and a profile are kinds. A plain stream has none, and pays nothing for those that do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headrace.engine.log.append import Terms
    from headrace.engine.log.batch import Batch
    from headrace.engine.log.stream import Stream
    from headrace.errors import BadRequest
    from headrace.schema.entries import Failure
    from headrace.types import Steps


class Kind(Protocol):
    """The rules of one stream, ready for use. They are never changed, only replaced: another object says other things.

    Methods are called on the event loop and on the writer's thread, and do no IO. Entries are JSON values, joined by
    commas.
    """

    @property
    def normalises(self) -> bool:
        """Whether :meth:`normalised` may change entries; where not, it is not called."""

    def normalised(self, joined: bytes, terms: Terms) -> bytes:
        """Entries as they are stored: as many, in the same order. What cannot be is a BadRequest.

        Where the kind is replaced before the entries are on disk, its successor gets them as they came.
        """

    def failures(self, joined: bytes) -> list[Failure]:
        """What is wrong with entries that fit the schema of the stream."""

    def refusal(self, joined: bytes, failures: list[Failure], number: int = 0) -> BadRequest:
        """Why entries do not fit, given what is wrong with them; ``number`` is that of the first entry."""

    @property
    def routes(self) -> bool:
        """Whether entries have routing keys that the kind knows, in place of those of the stream or the request."""

    @property
    def suggests(self) -> bool:
        """Whether the kind knows routing keys where neither the stream nor the request names any."""

    def routed(self, joined: bytes) -> list[str | None]:
        """The routing key of each entry, where :attr:`routes` or :attr:`suggests` says so."""

    def vouches(self, schema: Any) -> bool:
        """Whether everything that :meth:`normalised` gives fits this schema, so that nobody need look again."""

    @property
    def dedupes(self) -> bool:
        """Whether entries have keys that are stored once."""

    def unique(self, joined: bytes) -> list[str | None]:
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
