"""Write a golden data directory or backup: what an earlier commit left behind, and what it answered.

    python tests/golden/write_directory.py COMMIT DIRECTORY PART…

The commit runs from a worktree of its own, with the packages of this environment. The archive holds ``data``, the
data directory with the object store in it, and ``answers.json``. A new format version needs a new archive, written
with the last commit that had the old one. The part ``backup`` makes API keys too, and writes ``backup`` and
``tokens.json`` in place of ``data``.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS_TO_PUBLISH = 60
BACK_UP = """
import json, sys
from pathlib import Path
from headrace.storage.backup import back_up
from headrace.storage.keys import KeyStore
from headrace.types import SystemClock

data, target = Path(sys.argv[1]), Path(sys.argv[2])
keys = KeyStore(data / "keys.db")
_, valid = keys.create(user_id="größe", scopes=["read", "write"], prefix="golden/", name="reader")
key, revoked = keys.create(user_id="gone", scopes=["admin"])
keys.revoke(key.id)
keys.close()
back_up(data, "", target, SystemClock(), lambda done, total: None)
print(json.dumps({"valid": valid, "revoked": revoked}))
"""

#: Requests of each part of the story: what is stored before the first publication, stored after it, and asked.
Request = tuple[str, str, Any]
Story = tuple[list[Request], list[Request], list[Request]]
#: A request and the body that answered it.
Answer = tuple[Request, str]
LENS = {
    "apiVersion": "durable.lens/v1",
    "schema": "golden/orders",
    "from": 1,
    "to": 2,
    "ops": [{"op": "rename", "from": "/amount", "to": "/total"}],
}
FIELDS = {
    "at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}], "column": True},
    "page": {"kind": "keyword", "bindings": [{"version": 1, "jsonPointer": "/page"}], "exact": True},
    "words": {"kind": "text", "analyzer": "unicode_word_v1", "bindings": [{"version": 1, "jsonPointer": "/words"}]},
    "ms": {
        "kind": "integer",
        "bindings": [{"version": 1, "jsonPointer": "/ms"}],
        "column": True,
        "aggregatable": True,
        "sortable": True,
    },
}
ROLLUPS = {"speed": {"intervals": ["1h"], "measures": {"ms": {"kind": "summary", "field": "ms"}}}}
SEARCH = {"primaryTimestampField": "at", "fields": FIELDS, "rollups": ROLLUPS}


def _schema(member: str) -> dict[str, Any]:
    properties = {"id": {"type": "integer"}, member: {"type": "number"}}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _visits(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"at": f"2026-11-15T10:{n:02}:00Z", "page": f"/p{n % 3}", "words": f"visit number {n}", "ms": n * 10}
        for n in range(first, first + count)
    ]


def _observation(name: str, email: str, priority: int, day: int) -> dict[str, Any]:
    entity = {"entity_type": "contact", "name": name, "email": email, "city": "London"}
    return {"entities": [entity], "source_priority": priority, "observed_at": f"2026-01-{day:02}T00:00:00Z"}


JSON, TEXT = "application/json", "text/plain"
STREAM = "/v1/stream/golden"
CONTACT = {
    "entity_type": "contact",
    "schema_version": "1.0.0",
    "schema_definition": {
        "fields": {"name": {"type": "string"}, "email": {"type": "string"}},
        "canonical_name_fields": ["name"],
    },
    "reducer_config": {"merge_policies": {"email": {"strategy": "highest_priority"}}},
    "activate": True,
}
ORDER = {"kind": "event", "name": "Order", "schema": {"user": "str", "amount": "f64"}}
USERS = {
    "kind": "table",
    "name": "Users",
    "upstreams": ["Order"],
    "key": ["user"],
    "agg": {
        "n": {"op": "count", "params": {}},
        "total": {"op": "sum", "params": {"field": "amount"}},
        "last": {"op": "last", "params": {"field": "amount"}},
    },
}
PARTS: dict[str, Story] = {
    "log": (
        [
            ("PUT", f"{STREAM}/plain", JSON),
            ("POST", f"{STREAM}/plain", [{"n": 1}, {"n": 2}]),
            ("PUT", f"{STREAM}/text", TEXT),
            ("POST", f"{STREAM}/text", "first line\n"),
            ("POST", f"{STREAM}/plain", [{"long": "x" * 3_000}]),
        ],
        [
            ("POST", f"{STREAM}/plain", [{"n": 4}]),
            ("POST", f"{STREAM}/text", "second line\n"),
        ],
        [
            ("GET", f"{STREAM}/plain", None),
            ("GET", f"{STREAM}/plain?offset=00000000000000000004000000", None),
            ("GET", f"{STREAM}/text", None),
        ],
    ),
    "schemas": (
        [
            ("PUT", f"{STREAM}/orders", JSON),
            ("POST", f"{STREAM}/orders/_schema", {"schema": _schema("amount")}),
            ("POST", f"{STREAM}/orders", [{"id": 1, "amount": 2.5}, {"id": 2, "amount": 4}]),
            ("POST", f"{STREAM}/orders/_schema", {"schema": _schema("total"), "lens": LENS}),
        ],
        [("POST", f"{STREAM}/orders", [{"id": 3, "total": 8}])],
        [
            ("GET", f"{STREAM}/orders", None),
            ("GET", f"{STREAM}/orders?schema_version=1", None),
            ("GET", f"{STREAM}/orders/_schema", None),
        ],
    ),
    "search": (
        [
            ("PUT", f"{STREAM}/visits", JSON),
            ("POST", f"{STREAM}/visits/_schema", {"schema": {"type": "object"}, "search": SEARCH}),
            ("POST", f"{STREAM}/visits", _visits(0, 20)),
        ],
        [("POST", f"{STREAM}/visits", _visits(20, 5))],
        [
            ("POST", f"{STREAM}/visits/_search", {"q": "page:/p1 ms:>100", "sort": ["ms:asc"]}),
            ("POST", f"{STREAM}/visits/_search", {"q": "words:number", "size": 3, "sort": ["offset:desc"]}),
            (
                "POST",
                f"{STREAM}/visits/_aggregate",
                {"rollup": "speed", "interval": "1h", "from": "2026-11-15T00:00:00Z", "to": "2026-11-16T00:00:00Z"},
            ),
        ],
    ),
    "features": (
        [
            ("POST", "/v1/register", {"nodes": [ORDER, USERS]}),
            ("POST", "/v1/push/Order", [{"user": f"u{n % 3}", "amount": n + 0.5} for n in range(12)]),
        ],
        [("POST", "/v1/push/Order", [{"user": "u1", "amount": 100}])],
        [
            ("POST", "/v1/get", {"table": "Users", "key": "u1"}),
            ("POST", "/v1/get", {"table": "Users", "key": "u2"}),
            ("GET", "/v1/stream/events/Order", None),
        ],
    ),
    "entities": (
        [
            ("POST", "/v1/entity-types", CONTACT),
            ("POST", "/v1/observations", _observation("Ada Lovelace", "ada@example.com", 200, 1)),
            ("POST", "/v1/observations", _observation("Alan Turing", "alan@example.com", 100, 1)),
        ],
        [("POST", "/v1/observations", _observation("ada lovelace", "old@example.com", 100, 2))],
        [("GET", "/v1/entities?entity_type=contact", None)],
    ),
}


def send(url: str, request: Request) -> tuple[int, str]:
    """Send one request; answers its status and body."""
    method, path, content = request
    media_type = content if method == "PUT" else TEXT if isinstance(content, str) else JSON
    body = None if content is None or method == "PUT" else content if isinstance(content, str) else json.dumps(content)
    data = None if body is None else body.encode()
    outgoing = urllib.request.Request(url + path, data, {"Content-Type": media_type}, method=method)
    try:
        with urllib.request.urlopen(outgoing, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class _Commit:
    """The source of an earlier commit in a directory of its own, and its processes."""

    def __init__(self, commit: str, scratch: Path) -> None:
        self._source, self.data = scratch / "source", scratch / "data"
        subprocess.run(["git", "worktree", "add", "--detach", str(self._source), commit], check=True)
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            "PYTHONPATH": str(self._source / "src"),
            "HEADRACE_STORAGE__DATA_DIR": str(self.data),
            "HEADRACE_SERVER__PORT": "0",
        }

    @contextmanager
    def serve(self, **settings: str) -> Iterator[str]:
        command = [sys.executable, "-m", "headrace.server"]
        environ = {**self._environ, **settings}
        with subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip()
            finally:
                process.kill()

    def derive(self, url: str) -> None:
        program = "import sys; from headrace.cli.main import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "pipeline", "--once", "--master", "local[1]"]
        subprocess.run(command, env={**self._environ, "HEADRACE_URL": url}, check=True, timeout=300)

    def back_up(self, target: Path) -> str:
        """Make keys and a backup; answers the tokens as JSON."""
        command = [sys.executable, "-c", BACK_UP, str(self.data), str(target)]
        return subprocess.run(command, env=self._environ, check=True, stdout=subprocess.PIPE, text=True).stdout

    def remove(self) -> None:
        subprocess.run(["git", "worktree", "remove", "--force", str(self._source)], check=True)


def _story(server: _Commit, parts: list[str]) -> dict[str, list[Answer]]:
    """Perform the parts of the story; answers what was answered when all was published, and in the end."""
    stories = [PARTS[part] for part in parts if part in PARTS]
    questions = [request for _, _, questions in stories for request in questions]
    settings = {"HEADRACE_PIPELINE__MIN_ROWS": "1"} if "derived" in parts else {}
    if "store" in parts:
        settings["HEADRACE_STORAGE__SEAL_AGE_S"] = "1"
    with server.serve(**settings) as url:
        _perform(url, [request for before, _, _ in stories for request in before])
        if "store" in parts:
            _wait_until_published(server.data, stories, parts)
        if "derived" in parts:
            server.derive(url)
        published = [_question(url, request) for request in questions]
    if "store" in parts:
        settings["HEADRACE_STORAGE__SEAL_AGE_S"] = "3600"
    with server.serve(**settings) as url:
        _perform(url, [request for _, after, _ in stories for request in after])
        answers = [_question(url, request) for request in questions]
    return {"published": published if "store" in parts else [], "all": answers}


def _wait_until_published(data: Path, stories: list[Story], parts: list[str]) -> None:
    created = sum(method == "PUT" for before, _, _ in stories for method, _, _ in before)
    managed = len({"features", "entities"} & set(parts))
    deadline = time.monotonic() + SECONDS_TO_PUBLISH
    while len({path.parent for path in data.glob("objects/manifests/*/*/*.json")}) < created + managed:
        assert time.monotonic() < deadline, "not every stream was published"
        time.sleep(0.5)
    time.sleep(2)  # a manifest may precede the events that came last


def _question(url: str, request: Request) -> Answer:
    status, body = send(url, request)
    assert status == 200, (request, status, body)
    return request, body


def _perform(url: str, requests: list[Request]) -> None:
    for request in requests:
        status, body = send(url, request)
        assert status < 300, (request, status, body)


def main(commit: str, directory: str, *parts: str) -> None:
    """Write the archive of one commit."""
    with tempfile.TemporaryDirectory() as scratch:
        server = _Commit(commit, Path(scratch))
        try:
            answers = _story(server, list(parts))
            texts = {"answers.json": json.dumps(answers, indent=1)}
            if "backup" in parts:
                texts["tokens.json"] = server.back_up(Path(scratch) / "backup")
            path = Path(directory) / f"{commit}.tar.xz"
            with tarfile.open(path, "w:xz") as archive:
                name = "backup" if "backup" in parts else "data"
                archive.add(Path(scratch) / name, name, filter=_without_caches)
                for file_name, text in texts.items():
                    entry = tarfile.TarInfo(file_name)
                    entry.size = len(text.encode())
                    archive.addfile(entry, io.BytesIO(text.encode()))
        finally:
            server.remove()
    print(path, path.stat().st_size)


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name in {"reserve", "cache", "sealing", "headrace.db-shm"} else entry


if __name__ == "__main__":
    main(*sys.argv[1:])
