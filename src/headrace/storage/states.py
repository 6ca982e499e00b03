"""The rows of ``states``: what features have folded of the events of a stream, and in which objects it lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from headrace import decoding
from headrace.format.state.layout import State
from headrace.format.state.names import state_key
from headrace.storage.derived import Derived


class States(Derived[State]):
    """Those that count are listed by table and first event."""

    table = "states"
    order = '"table", first_seq, id'
    decoder = decoding.make_decoder(State)

    def add(self, stream: int, state: State) -> None:
        """List a state."""
        document = msgspec.json.encode(state).decode()
        values = (stream, state.table, state.name, state.first_seq, state.count, document)
        sql = 'INSERT INTO states (stream, "table", name, first_seq, count, document) VALUES (?, ?, ?, ?, ?, ?)'
        self._connection.execute(sql, values)


def object_keys(stream: str, incarnation: str, states: Iterable[State]) -> Iterator[str]:
    """The keys of the objects of some states."""
    return (state_key(stream, incarnation, state.name) for state in states)
