"""Registries of an engine on a rig: changed whole, and looked at where they are stored."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec

from headrace.schema.registry import Registry
from headrace.schema.update import SchemaUpdate, parse_update
from headrace.storage.page_checksums import checksum_vfs
from headrace.types import JSON
from server.registries import lens
from support.engine_rig import Rig, array, one_by_one


def update(**body: Any) -> SchemaUpdate:
    """A change request as the server would read it."""
    parsed = parse_update(body)
    assert isinstance(parsed, SchemaUpdate), parsed
    return parsed


def change(rig: Rig, name: str, **body: Any) -> Registry:
    """Change the registry of a stream; raises where that is refused."""
    _, registry = rig.run(rig.engine.schemas.apply(rig.find(name), update(**body)))
    return registry


def evolve(rig: Rig, name: str, schema: Any, *ops: dict[str, Any]) -> Registry:
    """Take a stream to its next version."""
    return change(rig, name, schema=schema, lens=lens(name, registry(rig, name).current_version, *ops))


def registry(rig: Rig, name: str) -> Registry:
    """The registry of a stream as readers see it."""
    return rig.engine.schemas.registry(rig.find(name))


def stream_with(rig: Rig, name: str, schema: Any, *events: Any) -> None:
    """A new stream with its first schema and its first events, all in one append."""
    rig.create(name, JSON)
    change(rig, name, schema=schema)
    if events:
        rig.append(name, array(*events))


def read(rig: Rig, name: str, version: int | None = None, key: str | None = None) -> list[Any]:
    """Every event, in one version."""
    stream = rig.find(name)
    found = rig.engine.log.read(stream, stream.head, 0, budget=1 << 30, version=version, key=key)
    assert found.position == stream.head.next_seq
    return [msgspec.json.decode(entry) for part in found.parts for entry in one_by_one(stream, part)]


def versions(rig: Rig, name: str) -> list[tuple[int, int, int]]:
    """The appends of a stream, its ancestors' not included: where each begins, its events, and their version."""
    stream = rig.find(name)
    rows = rig.engine.wal.scan(stream.id, 0, stream.head.next_seq)
    return [(row.seq, row.count, row.version) for row in rows]


def stored(rig: Rig, table: str = "registries") -> int:
    """How many rows a table has."""
    return int(rig.engine.streams._connection.execute(f"SELECT count(*) FROM {table}").get)


def forget_carried_bindings(data_dir: Path, name: str, version: int) -> None:
    """Store the newest registry of a stream as it was stored before bindings followed a lens."""
    with closing(apsw.Connection(str(data_dir / "headrace.db"), vfs=checksum_vfs())) as database, database:
        of_stream = "stream = (SELECT id FROM streams WHERE name = ?) ORDER BY revision DESC LIMIT 1"
        row = database.execute(f"SELECT stream, revision, document FROM registries WHERE {of_stream}", (name,))
        stream, revision, text = row.fetchone()
        document = json.loads(text)
        for field in document["search"]["fields"].values():
            field["bindings"] = [one for one in field["bindings"] if one["version"] < version]
        change = "UPDATE registries SET document = ? WHERE stream = ? AND revision = ?"
        database.execute(change, (json.dumps(document), stream, revision))
