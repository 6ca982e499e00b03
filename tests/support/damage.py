"""A data directory with every kind of file, and a fixed set of questions about it whose answers are known."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from conftest import ServerProcess
from headrace.reduce.work_units import Unit
from headrace.storage.keys import KeyStore
from support.feature_rig import perform
from support.log_stream import SEARCH, Logs, event
from support.plain_worker import Worker
from support.polling import wait_until

#: While the directory is built: small segments and units.
BUILDING = {
    "storage__seal_rows": "30",
    "storage__seal_age_s": "3600",
    "pipeline__min_rows": "1",
    "pipeline__unit_bytes": "4000",
    "pipeline__fan_out": "3",
}
#: While questions are asked, nothing is sealed or derived.
ASKING = {"storage__seal_rows": "100000", "storage__seal_age_s": "3600", "pipeline__min_rows": "100000"}
#: A server that has not begun to listen by then, or a request that has not been answered, hangs.
PATIENCE_S = 30.0
SEALED, STEP, OPEN = 160, 40, 7
USERS, ENTITIES = 12, 5
_FIRST = "offset=-1"
_FIELDS = {name: {"type": "string"} for name in ("email", "name")}
_TABLE = {
    "n": {"op": "count", "params": {}},
    "total": {"op": "sum", "params": {"field": "amount"}},
}
DESCRIPTORS = [
    {"kind": "event", "name": "Order", "schema": {"user": "str", "amount": "f64"}},
    {"kind": "table", "name": "Users", "key": ["user"], "upstreams": ["Order"], "agg": _TABLE},
]


class Answer(NamedTuple):
    """The status of an answer, its document without what differs from run to run, and the code of its error."""

    status: int
    document: Any
    code: str | None = None


class Question(NamedTuple):
    """A request; ``token`` is that of a key."""

    method: str
    path: str
    body: Any = None
    token: str = ""


def ask(url: str, question: Question) -> Answer:
    """What a server answers, page by page; a status of 0 stands for no answer."""
    entries: list[Any] = []
    path = question.path
    while True:
        found, following = _ask(url, question._replace(path=path))
        if found.status != 200 or not question.path.endswith(_FIRST):
            return found
        entries += found.document
        if following is None:
            return Answer(200, entries)
        path = question.path.removesuffix(_FIRST) + f"offset={following}"


def _ask(url: str, question: Question) -> tuple[Answer, str | None]:
    """What a server answers to one request, and where the next page begins."""
    headers = {"Content-Type": "application/json"}
    if question.token:
        headers["Authorization"] = f"Bearer {question.token}"
    data = None if question.body is None else json.dumps(question.body).encode()
    request = urllib.request.Request(url + question.path, method=question.method, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            following = None if "stream-up-to-date" in answer.headers else answer.headers.get("stream-next-offset")
            return Answer(answer.status, _document(answer.read())), following
    except urllib.error.HTTPError as refused:
        content = refused.read()
        try:
            return Answer(refused.code, None, json.loads(content)["error"]["code"]), None
        except (ValueError, LookupError, TypeError):
            return Answer(refused.code, content.decode(errors="replace")), None
    except (OSError, http.client.HTTPException) as reason:
        return Answer(0, str(reason)), None


def _document(content: bytes) -> Any:
    try:
        return _steady(json.loads(content))
    except ValueError:
        return content.hex()


def _steady(value: Any) -> Any:
    """A document without durations and accounts of how an answer was found; sums of floats depend on the order."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _steady(one) for name, one in value.items() if name not in ("took_ms", "coverage", "profile")}
    return [_steady(one) for one in value] if isinstance(value, list) else value


class _Builder:
    """Fills a server with streams, tables and entities."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.logs = Logs(server.url)

    def post(self, path: str, body: Any) -> Any:
        return self.logs.ask("POST", path, body)

    def fill(self) -> list[str]:
        """Everything that is to be sealed, and what stays in the log; answers the ids of entities."""
        self.logs.create("logs", SEARCH)
        self._lenses()
        self.post("/v1/register", {"descriptors": DESCRIPTORS})
        self.post("/v1/entity-types", _contact())
        ids: list[str] = []
        for start in range(0, SEALED, STEP):
            self._append(start, start + STEP, ids)
            self._publish(start + STEP)
            self._derive()
        self._append(SEALED, SEALED + OPEN, ids)
        self.logs.ask("PUT", "/v1/stream/__ds/subscriptions/sub", {"type": "pull-wake", "pattern": "raw/*", **_WAKE})
        return sorted(set(ids))[:ENTITIES]

    def _lenses(self) -> None:
        shape: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        self.logs.ask("PUT", "/v1/stream/notes")
        self.post("/v1/stream/notes/_schema", {"schema": {**shape, "additionalProperties": False}})
        self.post("/v1/stream/notes", [{"a": number} for number in range(40)])
        renamed = {**shape, "properties": {"b": {"type": "integer"}}, "required": ["b"], "additionalProperties": False}
        op = {"op": "rename", "from": "/a", "to": "/b"}
        lens = {"apiVersion": "durable.lens/v1", "schema": "notes", "from": 1, "to": 2, "ops": [op]}
        self.post("/v1/stream/notes/_schema", {"schema": renamed, "lens": lens})
        self.post("/v1/stream/notes", [{"b": number} for number in range(40, 45)])

    def _append(self, start: int, stop: int, ids: list[str]) -> None:
        self.logs.append("logs", start, stop)
        orders = [{"user": f"u{number % USERS}", "amount": number / 4} for number in range(start, stop)]
        self.post("/v1/push/Order", orders)
        entities = [
            {"entity_type": "contact", "email": f"{number % USERS}@x.y", "name": f"name {number}"}
            for number in range(start, stop)
        ]
        stored = self.post("/v1/observations", {"entities": entities})["entities"]
        ids += [one["entity_id"] for one in stored]

    def _is_published(self, stream: str, stop: int) -> bool:
        return self.logs.published(stream) >= stop

    def _publish(self, stop: int) -> None:
        for stream in ("logs", "events/Order", "entities/contact"):
            wait_until(partial(self._is_published, stream, stop), reason=partial("{} is not sealed".format, stream))

    def _derive(self) -> None:
        Worker(self.server.url).work()
        while True:
            body = {"worker": "tests", "limit": 100, "jobs": ["features", "snapshots"]}
            leased = self.post("/v1/work/lease", body)
            if leased["lease"] is None:
                return
            results = [perform(msgspec.convert(unit, Unit), leased["store"]) for unit in leased["units"]]
            body = {"token": leased["lease"]["token"], "results": msgspec.to_builtins(results)}
            self.post(f"/v1/work/leases/{leased['lease']['id']}/commit", body)


_WAKE = {"wake_stream": "wake"}


def _contact() -> dict[str, Any]:
    return {
        "entity_type": "contact",
        "schema_version": "1.0.0",
        "schema_definition": {"fields": _FIELDS, "canonical_name_fields": ["email"]},
        "reducer_config": {"merge_policies": {"name": {"strategy": "last_write"}}},
        "activate": True,
    }


def _questions(ids: list[str], tokens: dict[str, str]) -> list[Question]:
    admin = tokens["admin"]
    span = {"from": event(0)["ts"], "to": event(SEALED + OPEN)["ts"]}
    aggregate = {"rollup": "requests", "interval": "1h", "group_by": ["service"], **span}
    gets = [{"table": "Users", "key": f"u{number}"} for number in range(USERS + 1)]
    found = [
        Question("GET", "/v1/stream/logs?offset=-1"),
        Question("GET", "/v1/stream/notes?offset=-1"),
        Question("GET", "/v1/stream/notes/_schema"),
        Question("GET", "/v1/stream/events/Order?offset=-1"),
        Question("GET", "/v1/stream/entities/contact?offset=-1"),
        Question("POST", "/v1/stream/logs/_search", {"q": "status:>=500", "size": 500, "track_total_hits": True}),
        Question("POST", "/v1/stream/logs/_search", {"q": "payment -login", "size": 500, "track_total_hits": True}),
        Question("POST", "/v1/stream/logs/_search", {"q": "request:r00000*", "size": 5, "sort": ["duration:asc"]}),
        Question("POST", "/v1/stream/logs/_aggregate", aggregate),
        Question("POST", "/v1/stream/events/Order/_search", {"q": "user:u3", "size": 50, "track_total_hits": True}),
        Question("POST", "/v1/batch_get", {"requests": gets}),
        Question("GET", "/v1/entities?entity_type=contact&limit=50"),
        *(Question("GET", f"/v1/entities/{id}") for id in ids),
        Question("GET", "/v1/registry"),
        Question("GET", "/v1/entity-types"),
        Question("GET", "/v1/streams"),
        Question("GET", "/v1/stream/__ds/subscriptions/sub"),
    ]
    asked = [one._replace(token=admin) for one in found]
    asked += [Question("GET", "/v1/stream/notes?offset=-1", token=tokens[name]) for name in ("reader", "revoked")]
    return [*asked, Question("POST", "/v1/stream/notes", [{"b": 1}], token=tokens["reader"])]


def build(path: Path, **settings: str) -> list[Question]:
    """Make a data directory as a killed server leaves it, and answer the questions that may be asked about it."""
    live = path.with_name(path.name + "-live")
    server = ServerProcess(live, {**BUILDING, **settings}).start()
    try:
        ids = _Builder(server).fill()
        keys = KeyStore(live / "keys.db")
        made = {
            "admin": keys.create(user_id="local", scopes=["read", "write", "admin"]),
            "reader": keys.create(user_id="local", scopes=["read"], prefix="notes"),
            "revoked": keys.create(user_id="local", scopes=["read"]),
        }
        keys.revoke(made["revoked"][0].id)
        questions = _questions(ids, {name: token for name, (_, token) in made.items()})
        _await_keys(server.url, questions)
        list(answers(server.url, questions))  # fills the caches
        _await_wal(live / "keys.db-wal")
        server.kill()
        shutil.copytree(live, path)  # before the last connection to the keys moves their WAL into the database
        keys.close()
    finally:
        server.kill()
    return questions


def _await_wal(path: Path) -> None:
    """Wait until the server has removed the notes of the last change of keys, which is moved into the file at once."""
    wait_until(lambda: path.stat().st_size, reason=lambda: "the server does not write to the keys")


def _await_keys(url: str, questions: list[Question]) -> None:
    """Wait until the server refuses the key that was revoked."""
    wait_until(lambda: ask(url, questions[-2]).status == 401, reason=lambda: "the server does not see the keys")


def copied(source: Path, target: Path, own: Path | None = None) -> Path:
    """A copy of a directory: databases and the file that is ``own`` are copied, others are linked."""

    def copy(one: str, other: str) -> None:
        path = Path(one)
        if path == own or path.name.startswith(("headrace.db", "keys.db", "lock")):
            shutil.copyfile(one, other)
        else:
            Path(other).hardlink_to(one)

    shutil.copytree(source, target, copy_function=copy)
    return target


class Running:
    """A server on a directory; ``url`` is empty where it refused to start or hangs."""

    def __init__(self, path: Path, settings: Mapping[str, str]) -> None:
        from conftest import _begin

        self._server = ServerProcess(path, {**ASKING, **settings})
        self._server.process = _begin(self._server._environ, self._server._log)
        stdout = self._server.process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], PATIENCE_S)
        self.hangs = not readable
        self.url = stdout.readline().strip() if readable else ""

    def log(self) -> str:
        return self._server.log()

    def end(self) -> None:
        """Ask it to finish."""
        assert self._server.stop() == 0

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            self._server.kill()
        process = self._server.process
        if process is not None:
            process.wait(timeout=PATIENCE_S)
            assert process.stdout is not None
            process.stdout.close()


def answers(url: str, questions: list[Question]) -> Iterator[Answer]:
    """The answers to all questions; what a server cannot answer at the moment is asked again."""
    for question in questions:
        found = ask(url, question)
        for _ in range(20):
            if found.status not in (408, 429, 503):
                break
            time.sleep(0.05)
            found = ask(url, question)
        yield found
