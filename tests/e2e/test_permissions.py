"""Whatever the umask: of what a server and the commands beside it write, others can open nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from support.polling import wait_until

if TYPE_CHECKING:
    from support.s3 import S3

pytestmark = pytest.mark.e2e

HEADRACE = str(Path(sys.executable).with_name("headrace"))
LONGEST_S = 60
SETTINGS = {
    "HEADRACE_SERVER__PORT": "0",
    "HEADRACE_STORAGE__SEAL_ROWS": "10",
    "HEADRACE_STORAGE__SEAL_AGE_S": "0.1",
    "HEADRACE_STORAGE__CHECKPOINT_PAGES": "1",
    "HEADRACE_LIMITS__TAIL_COLUMNS_BYTES": "1",
    "HEADRACE_STORAGE__DECODED_BYTES": "0",
}
SEARCH = {
    "primaryTimestampField": "at",
    "fields": {
        "at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}], "column": True, "sortable": True},
        "id": {"kind": "integer", "bindings": [{"version": 1, "jsonPointer": "/id"}], "column": True, "exact": True},
    },
}
REGISTRATION = [
    {"kind": "event", "name": "Txn", "schema": {"user": "str", "amount": "f64"}, "keep_events_for": "30d"},
    {
        "kind": "table", "name": "Users", "key": ["user"], "upstreams": ["Txn"],
        "agg": {"total": {"op": "sum", "params": {"field": "amount"}}},
    },
]  # fmt: skip


def open_to_others(*roots: Path) -> dict[str, str]:
    """Files and directories that others may do anything with, and their modes."""
    found = {}
    for root in roots:
        for path in (root, *root.rglob("*")):
            try:
                mode = stat.S_IMODE(path.lstat().st_mode)
            except FileNotFoundError:
                continue
            if mode & 0o077:
                found[str(path.relative_to(root.parent))] = f"{mode:04o}"
    return found


def call(umask: int, environ: dict[str, str], *arguments: object) -> str:
    """What a command says, run under a umask."""
    command = [HEADRACE, *map(str, arguments)]
    done = subprocess.run(
        command, env=environ, umask=umask, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tell_story(http: httpx2.Client) -> None:
    """A stream that is searched, features, and a subscription; all of it published and read again."""

    def post(path: str, body: Any) -> Any:
        answer = http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer

    assert http.put("/v1/stream/orders", headers={"content-type": "application/json"}).is_success
    properties = {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}
    schema = {"type": "object", "properties": properties, "required": ["id", "at"]}
    post("/v1/stream/orders/_schema", {"schema": schema, "search": SEARCH})
    post("/v1/register", {"descriptors": REGISTRATION})
    subscription = {"type": "webhook", "pattern": "orders", "webhook": {"url": "http://localhost:9/"}}
    assert http.put("/v1/stream/__ds/subscriptions/mine", json=subscription).is_success
    for number in range(30):
        post("/v1/stream/orders", [{"id": number, "at": "2026-01-01T00:00:00Z"}])
        post("/v1/push/Txn", {"user": f"u{number}", "amount": 1.0})
    wait_until(
        lambda: "headrace_backlog_bytes 0" in http.get("/metrics").text, LONGEST_S, lambda: "it was not published"
    )
    assert http.get("/v1/stream/orders").json()[0]["id"] == 0
    assert post("/v1/stream/orders/_search", {"q": "id:7"}).json()["hits"]
    assert post("/v1/get", {"table": "Users", "key": "u1"}).json()


@pytest.mark.parametrize(
    ("umask", "far"), [(0o000, False), (0o022, False), (0o000, True)], ids=["000", "022", "000 and a remote store"]
)
def test_nothing_that_is_written_can_be_opened_by_others(
    tmp_path: Path, request: pytest.FixtureRequest, umask: int, far: bool
) -> None:
    bucket: S3 | None = request.getfixturevalue("bucket") if far else None
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    store = {"HEADRACE_STORAGE__OBJECT_STORE": bucket.url} if bucket else {}
    data = tmp_path / "above" / "data"
    environ = {**kept, **SETTINGS, **store, "HEADRACE_STORAGE__DATA_DIR": str(data)}
    key = json.loads(call(umask, environ, "key", "create", "--user", "ada", "--scope", "admin", "--json"))
    with (tmp_path / "server.log").open("w+") as log:
        server = subprocess.Popen([HEADRACE, "serve"], env=environ, umask=umask, stderr=log)
        try:
            headers = {"authorization": f"Bearer {key['token']}"}
            with httpx2.Client(base_url=_address(server, tmp_path / "server.log"), headers=headers) as http:
                tell_story(http)
            call(umask, environ, "backup", tmp_path / "kept" / "backup")
            assert open_to_others(tmp_path / "above", tmp_path / "kept") == {}
        finally:
            server.terminate()
            server.wait(timeout=LONGEST_S)
    call(umask, environ, "restore", tmp_path / "kept" / "backup", "--data-dir", tmp_path / "restored" / "data")
    source = bucket.url if bucket else data / "objects"
    call(umask, kept, "recover", "--from", source, "--data-dir", tmp_path / "recovered" / "data")
    roots = [tmp_path / name for name in ("above", "kept", "restored", "recovered")]
    assert open_to_others(*roots) == {}
    names = {path.name for root in roots for path in root.rglob("*")}
    assert {"headrace.db", "keys.db", "lock", "backup.json"} <= names


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Where a server listens, once it does."""
    deadline = time.monotonic() + LONGEST_S
    while server.poll() is None and time.monotonic() < deadline:
        found = [word for word in log.read_text().split() if word.startswith("http://127.0.0.1:")]
        if found:
            return found[0].split("/v1")[0]
        time.sleep(0.05)
    raise AssertionError(f"the server did not start:\n{log.read_text()}")
