"""Which companions answer for a stream; what they leave out has to be read from segments and the log."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from headrace.engine.log.stream import Stream
from headrace.engine.search.companion_cover import is_current, may_answer, widest
from headrace.engine.search.definitions import Defined, Definitions
from headrace.format.companion.layout import Companion
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, Stamp

#: Companions that are kept decoded, of all streams together, and questions that are kept answered of each.
_KEPT = 20_000
_QUESTIONS = 64

Question = tuple[int, frozenset[str] | None, frozenset[str], bool]


class _Known:
    """The companions of one stream as of a stamp, and which of them answer for what."""

    def __init__(self, stamp: Stamp, companions: list[Companion]) -> None:
        self.stamp = stamp
        self.companions = companions
        self.answers: dict[Question, list[Companion]] = {}


class CompanionCoverage:
    """Looks companions up; for the thread of its connection."""

    def __init__(self, connection: Connection, definitions: Definitions) -> None:
        self._companions = Companions(connection)
        self._definitions = definitions
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._kept = 0

    def defined(self, stream: Stream) -> Defined | None:
        """What is derived from a stream; None without a search configuration."""
        registry = stream.head.registry
        if registry is None:
            return None
        return self._definitions.of(stream.id, registry.revision, lambda: registry.registry)

    def listed(self, stream: Stream) -> list[Companion]:
        """All companions of a stream that count, current or not, by their first entries."""
        return list(self._look(stream).companions)

    def companions(
        self,
        stream: Stream,
        *,
        fields: Collection[str] | None = None,
        rollups: Collection[str] = (),
        keys: bool = False,
    ) -> list[Companion]:
        """Companions that may answer for these fields and rollups as they are defined now, the widest, in order.

        Without fields: those that hold everything that is defined. None overlaps another; there may be gaps between
        them. The first may begin before the first retained entry.
        """
        defined = self.defined(stream)
        registry = stream.head.registry
        if defined is None or registry is None:
            return []
        cached = self._look(stream)
        field_names = None if fields is None else frozenset(fields)
        question = registry.revision, field_names, frozenset(rollups), keys
        answer = cached.answers.get(question)
        if answer is None:
            if len(cached.answers) >= _QUESTIONS:
                cached.answers.clear()
            answer = cached.answers[question] = _answering(cached.companions, defined, *question[1:])
        start = max(stream.head.first_seq, defined.registry.readable_from)
        return [companion for companion in answer if companion.end_seq > start]

    def _look(self, stream: Stream) -> _Known:
        stamp = self._companions.stamp(stream.id)
        cached = self._known.get(stream.id)
        if cached is None or cached.stamp != stamp:
            self._forget(stream.id)
            cached = self._known[stream.id] = _Known(stamp, self._companions.listed(stream.id))
            self._kept += len(cached.companions)
            while self._kept > _KEPT and len(self._known) > 1:
                self._forget(next(iter(self._known)))
        self._known.move_to_end(stream.id)
        return cached

    def _forget(self, stream: int) -> None:
        cached = self._known.pop(stream, None)
        self._kept -= 0 if cached is None else len(cached.companions)


def _answering(
    companions: list[Companion], defined: Defined, fields: frozenset[str] | None, rollups: frozenset[str], keys: bool
) -> list[Companion]:
    if fields is None:
        return widest(companion for companion in companions if is_current(companion, defined))
    return widest(
        companion
        for companion in companions
        if companion.keys >= keys and may_answer(companion, defined, fields, rollups)
    )
