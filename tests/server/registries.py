"""How tests speak about registries: shapes, lenses, and streams that have gone through versions of them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.format.body_compression import unpack

if TYPE_CHECKING:
    import httpx2
    from tests.server.conftest import Api

WHOLE: dict[str, Any] = {"type": "integer"}
TEXT: dict[str, Any] = {"type": "string"}
API_VERSION = "durable.streams/schema-registry/v1"


def shape(*optional: str, **members: Any) -> dict[str, Any]:
    """An object with just these members, all but the named ones required."""
    required = [name for name in members if name not in optional]
    return {"type": "object", "properties": members, "required": required, "additionalProperties": False}


def name_of(path: str) -> str:
    """The name of the stream with this path."""
    return path.removeprefix("/v1/stream/")


def lens(path: str, start: int, *ops: dict[str, Any], end: int | None = None) -> dict[str, Any]:
    """A lens of this stream from one version to the next."""
    to = start + 1 if end is None else end
    return {"apiVersion": "durable.lens/v1", "schema": name_of(path), "from": start, "to": to, "ops": list(ops)}


def rename(source: str, target: str, **more: Any) -> dict[str, Any]:
    """The op that moves one member of an event."""
    return {"op": "rename", "from": f"/{source}", "to": f"/{target}", **more}


def post(api: Api, path: str, **body: Any) -> httpx2.Response:
    """Ask for a change of the registry."""
    return api.post(f"{path}/_schema", body)


def registry(api: Api, path: str) -> dict[str, Any]:
    """The registry as it is served."""
    answer = api.get(f"{path}/_schema")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def evolve(api: Api, path: str, schema: Any, *ops: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Take a stream to its next version; the lens is left out where there are no ops."""
    body = {"schema": schema, **more}
    if ops:
        body["lens"] = lens(path, registry(api, path)["currentVersion"], *ops)
    answer = post(api, path, **body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def installed(api: Api, schema: Any, **more: Any) -> str:
    """A new JSON stream with its first schema."""
    path = api.stream()
    evolve(api, path, schema, **more)
    return path


def append(api: Api, path: str, *events: Any, **headers: str) -> str:
    """Append events in one request; answers the new tail."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = api.post(path, list(events), named)
    assert answer.status_code in (200, 204), answer.text
    return str(answer.headers["stream-next-offset"])


def problems(response: httpx2.Response) -> list[str]:
    """Where a refused update is wrong."""
    return [problem["pointer"] for problem in response.json()["error"]["problems"]]


def unchanged(api: Api, path: str, before: dict[str, Any]) -> bool:
    """Whether neither the registry nor its history have moved."""
    revisions = api.get(f"{path}/_schema/history").json()["revisions"]
    return registry(api, path) == before and (not revisions or revisions[-1]["registry"] == before)


def stored(data_dir: Path, name: str) -> list[tuple[int, int, int, list[Any]]]:
    """The appends to a stream on disk: where each begins, how many events it has, their version, and the events."""
    with closing(sqlite3.connect(f"file:{data_dir}/headrace.db?mode=ro", uri=True)) as database:
        found = database.execute(
            "SELECT wal.seq, count, version, packed, body FROM wal JOIN streams ON streams.id = wal.stream"
            " WHERE name = ? ORDER BY wal.seq",
            (name,),
        ).fetchall()
    bodies = [bytes(body) if size is None else unpack(bytes(body), size) for *_, size, body in found]
    return [(*row[:3], json.loads(b"[" + body + b"]")) for row, body in zip(found, bodies, strict=True)]


def version_at(document: dict[str, Any], seq: int) -> int:
    """The version that the boundaries of a registry give an event."""
    return max(edge["version"] for edge in document["boundaries"] if edge["offset"] <= seq)
