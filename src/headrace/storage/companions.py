"""The rows of ``companions``: what was derived from the entries of a stream, and in which objects it lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from headrace import decoding
from headrace.format.companion.layout import Companion
from headrace.format.companion.names import companion_key
from headrace.storage.derived import Derived


class Companions(Derived[Companion]):
    """Those that count are listed by their first entries; of those that begin together the newest comes last."""

    table = "companions"
    order = "first_seq, id"
    decoder = decoding.make_decoder(Companion)

    def are_there(self) -> bool:
        """Whether any stream has one."""
        return bool(self._connection.execute("SELECT EXISTS (SELECT 1 FROM companions)").get)

    def add(self, stream: int, companion: Companion) -> None:
        """List a companion; once more is no more."""
        document = msgspec.json.encode(companion).decode()
        values = (stream, companion.name, companion.first_seq, companion.count, document)
        sql = "INSERT OR IGNORE INTO companions (stream, name, first_seq, count, document) VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(sql, values)


def object_keys(stream: str, incarnation: str, companions: Iterable[Companion]) -> Iterator[str]:
    """The keys of all objects of some companions."""
    for companion in companions:
        yield from (companion_key(stream, incarnation, companion.name, part) for part in companion.parts)
