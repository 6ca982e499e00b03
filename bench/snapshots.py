"""What a server's states hold of every entity, read from its database and its objects while it runs."""

from __future__ import annotations

import hashlib
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from headrace.engine.entities.entity_type import ENTITIES, EntityType
from headrace.engine.entities.read.snapshots import definition_of
from headrace.format.object_names import state_key
from headrace.format.state_file import StateReader
from headrace.reduce.build_states import merge_inputs
from headrace.reduce.states.coverage import base, merge_row
from headrace.storage.database import Connection, connect
from headrace.storage.derived import States
from headrace.storage.streams import Streams

_CACHE_BYTES = 8 * 1024 * 1024
_EVER = 1 << 62


def packed(directory: Path, entity_type: str) -> dict[bytes, str]:
    """A digest of the packed state of every entity of a type, by its key; all observations must be in states."""
    connection = connect(directory / "headrace.db", cache_bytes=_CACHE_BYTES, readonly=True)
    try:
        return _packed(connection, directory, entity_type)
    finally:
        connection.close()


def _packed(connection: Connection, directory: Path, entity_type: str) -> dict[bytes, str]:
    defined = definition_of(EntityType.load(connection, entity_type))
    row = Streams(connection).by_name(ENTITIES + entity_type)
    assert row is not None
    states = [state for state in States(connection).listed(row.id) if state.table == entity_type]
    found = base(defined, states, row.first_seq, row.next_seq, _EVER)
    assert found.start == row.next_seq and not found.backfilling, found
    lives = {name: life.id for name, life in defined.lives.items()}
    readers = [
        StateReader(directory / "objects" / state_key(row.name, row.incarnation, one.name), one.name)
        for one in found.states
    ]
    numbers = {state.name: number for number, state in enumerate(found.states)}
    rows = merge_inputs([reader.rows(set(lives.values())) for reader in readers])
    digests = {}
    for key, same in groupby(rows, key=itemgetter(0)):
        parts = {number: held for _, number, held in same}
        whole = merge_row(
            defined.reducer, lives, found.chains, lambda state, parts=parts: parts.get(numbers[state.name])
        )  # type: ignore[misc]
        digests[key] = _digest(defined.reducer.pack(whole))
    return digests


def _digest(packed: dict[str, bytes]) -> str:
    return hashlib.sha256(repr(sorted(packed.items())).encode()).hexdigest()[:16]
