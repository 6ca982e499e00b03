"""From the answer to an erasure on no route tells anything of the entity, however far the removal has come."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
import pytest

from headrace.engine.assembly import Engine
from headrace.engine.entities.erasure import erasures
from headrace.engine.entities.erasure.erasures import is_over
from headrace.engine.entities.read.snapshots import EntityQuery
from headrace.engine.entities.write.relations import Moved
from headrace.engine.system_streams import System
from headrace.pipeline.kernels import index
from headrace.pipeline.kernels.units import result
from headrace.reduce.work_units import JobName, Result
from headrace.server.main import Server
from headrace.server.routes.route_table import openapi_document
from headrace.server.routes.work import store_url
from support.enhancement_rig import Growing
from support.entity_rig import USER, contact

SECRET = "xyzzy-canary-4711"
EMAIL = f"{SECRET}@x.io"
KEY = f"request about {SECRET}"
STREAM = "/v1/stream/entities/contact"
TYPE = "/v1/entity-types/contact"
PERSON = {
    "entity_type": "contact", "email": EMAIL, "name": f"{SECRET} name", "odd": f"{SECRET} value", f"odd {SECRET}": 1,
    "_meta": {"idempotency_key": f"item {SECRET}"},
}  # fmt: skip

#: Routes that answer with nothing of entities: they are about the server, other kinds of streams, schemas or progress.
APART = {
    "/", "/health", "/health/live", "/health/ready", "/openapi.json", "/v1/server/_mem", "/v1/register", "/v1/registry",
    "/v1/registry/history", "/v1/ping", "/v1/reset", "/v1/registry/rollback", "/v1/push/{event}", "/v1/get",
    "/v1/batch_get", "/v1/tables/{table}/history", "/v1/tables/{table}/history/{id}", "/v1/observe/request",
    "/v1/traces", "/v1/stream/{name}/_otlp/v1/traces", "/v1/stream/{name}/_schema/verifications/{id}",
    "/v1/stream/{name}/_retention", "/v1/stream/{name}/_seal", "/v1/stream/{name}/touch/templates/activate",
    "/v1/stream/{name}/touch/wait", "/v1/read-leases/{id}", "/v1/read-leases/{id}/renew",
    "/v1/work/leases/{id}/heartbeat", "/v1/work/leases/{id}/commit", "/v1/work/leases/{id}/release", "/v1/work/pause",
    "/v1/work/attach", "/v1/registry/events/{event}",
    "/v1/work/resume", "/v1/work/run", "/v1/stream/__ds/jwks.json", "/v1/stream/__ds/subscriptions/{id}",
    "/v1/stream/__ds/subscriptions/{id}/streams", "/v1/stream/__ds/subscriptions/{id}/streams/{path}",
    "/v1/stream/__ds/subscriptions/{id}/claim", "/v1/stream/__ds/subscriptions/{id}/ack",
    "/v1/stream/__ds/subscriptions/{id}/callback", "/v1/stream/__ds/subscriptions/{id}/release",
    "/v1/entity-types/{entity_type}/activate", "/v1/entity-types/{entity_type}/deactivate",
    "/v1/entity-types/{entity_type}/migrate", "/v1/entity-types/{entity_type}/migrations/{run_id}",
    "/v1/entity-types/{entity_type}/migrations/{run_id}/undo", "/v1/observations",
}  # fmt: skip

#: Resources of a stream that are asked without a question.
DOCUMENTS = (
    "_plan", "_plan/rows", "_schema", "_schema/history", "_details", "_index_status", "_routing_keys", "_profile",
    "touch/meta",
)  # fmt: skip
#: Routes that are asked: the template of each, how, its path, and its body or parameters.
Call = tuple[str, str, str, dict[str, Any]]


def calls(gone: str, other: str, kept: str, sources: list[str]) -> Iterator[Call]:
    """Every question whose answer could hold something of the entity."""
    stream, type_, entity = "/v1/stream/{name}", "/v1/entity-types/{entity_type}", "/v1/entities/{id}"
    for more in ({}, {"offset": "-1"}, {"format": "raw"}, {"key": gone}, {"key": other}, {"schema_version": 1}):
        yield stream, "GET", STREAM, more
    for asked in (f'entity_id:"{gone}"', f'user_id:"{USER}"', f'source_id:"mail of {SECRET}"'):
        yield stream, "GET", STREAM, {"filter": asked}
        yield f"{stream}/_search", "GET", f"{STREAM}/_search", {"q": asked}
        yield f"{stream}/_search", "POST", f"{STREAM}/_search", {"q": asked, "size": 50}
    yield stream, "GET", STREAM, {"offset": "-1", "live": "long-poll"}
    yield stream, "HEAD", STREAM, {}
    yield f"{stream}/pk/{{key}}", "GET", f"{STREAM}/pk/{gone}", {}
    for name in DOCUMENTS:
        yield f"{stream}/{name}", "GET", f"{STREAM}/{name}", {}
    rollup = {"rollup": "x", "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z", "interval": "1h"}
    yield f"{stream}/_aggregate", "POST", f"{STREAM}/_aggregate", rollup
    for path in ("/metrics", "/v1/streams", "/v1/server/_details", "/v1/work", "/v1/entity-types", "/v1/erasures"):
        yield path, "GET", path, {}
    yield "/v1/work/lease", "POST", "/v1/work/lease", {"worker": "tests"}
    yield type_, "GET", TYPE, {}
    for name in ("versions", "history", "export", "candidates", "enhancement", "recommendations", "migrations"):
        yield f"{type_}/{name}", "GET", f"{TYPE}/{name}", {}
        yield f"{type_}/{name}", "GET", f"{TYPE}/{name}", {"scope": "global"}
    yield f"{type_}/update", "POST", f"{TYPE}/update", {"dry_run": True, "canonical_name_fields": ["name"]}
    yield f"{type_}/enhance", "POST", f"{TYPE}/enhance", {"dry_run": True}
    yield f"{type_}/reconcile", "POST", f"{TYPE}/reconcile", {"dry_run": True}
    for source in sources:
        yield "/v1/sources/{id}", "GET", f"/v1/sources/{source}", {}
    for more in ({}, {"entity_type": "contact"}, {"search": SECRET[:5]}, {"field.name": PERSON["name"]}):
        yield "/v1/entities", "GET", "/v1/entities", more
    for id in (gone, other, kept):
        for more in (
            {},
            {"explain": "true"},
            {"as_of": "2030-01-01T00:00:00Z"},
            {"at_ingested": "2030-01-01T00:00:00Z"},
        ):
            yield entity, "GET", f"/v1/entities/{id}", more
        for order in ("newest", "oldest"):
            yield f"{entity}/observations", "GET", f"/v1/entities/{id}/observations", {"order": order}
        for field in ("name", "phone"):
            yield f"{entity}/provenance/{{field}}", "GET", f"/v1/entities/{id}/provenance/{field}", {}
    yield "/v1/entities/duplicates", "GET", "/v1/entities/duplicates", {"entity_type": "contact", "threshold": 0.5}
    yield f"{entity}/erase", "POST", f"/v1/entities/{other}/erase", {"dry_run": True}
    for verb in ("correct", "delete", "restore"):
        yield f"{entity}/{verb}", "POST", f"/v1/entities/{other}/{verb}", {"field": "name", "value": 1, "reason": "x"}
    both = {"from_entity_id": other, "to_entity_id": gone}
    yield "/v1/entities/merge", "POST", "/v1/entities/merge", both
    yield "/v1/entities/merge/undo", "POST", "/v1/entities/merge/undo", {"entity_id": other}
    split = {"entity_id": gone, "predicate": {}, "to_entity_id": kept}
    yield "/v1/entities/split", "POST", "/v1/entities/split", split
    yield "/v1/entities/split/undo", "POST", "/v1/entities/split/undo", {"observation_id": "x", "entity_id": gone}


#: These would change something while the entity is there, and are asked only once it is gone.
CHANGING = ("correct", "delete", "restore", "merge", "undo", "split", "lease")


def asked(client: httpx2.Client, call: Call) -> str:
    """The answer to a question, with its head."""
    _, method, path, more = call
    given = {"json": more} if method == "POST" else {"params": more}
    answer = client.request(method, path, **given)  # type: ignore[arg-type]
    assert answer.status_code < 500, (call, answer.text)
    text = f"{answer.status_code} {answer.headers} {answer.text}"
    for name in (f"mail of {SECRET}", f"letter of {SECRET}"):
        if name in path or name in str(more):
            text = text.replace(name, "what was asked for").replace(quote(name), "what was asked for")
    return text


def followed(client: httpx2.Client) -> str:
    """What server-sent events bring up to the end of the stream."""
    found = ""
    with client.stream("GET", STREAM, params={"offset": "-1", "live": "sse"}) as answer:
        for line in answer.iter_lines():
            found += line
            if '"upToDate":true' in line:
                return found
    return found


class Rig(Growing):
    """An engine with states, fragments and an index, which can be asked over HTTP."""

    jobs: tuple[JobName, ...] = ("snapshots", "enhance", "index")
    holds = False

    async def _open(self) -> Engine:
        engine: Engine = await super()._open()
        if self.holds:
            engine.erasure._loop.stopping.set()
        return engine

    def hold(self, holds: bool) -> None:
        """Open the engine again, and let nothing be removed from then on, or go on."""
        self.holds = holds
        self.reopen()

    def performed(self, granted: Any) -> list[Result]:
        indexed = [unit for unit in granted.units if unit.job == "index"]
        rest = granted._replace(units=[unit for unit in granted.units if unit.job != "index"])
        store = store_url(self.engine.objects, self.config.storage.object_store)
        made = [result(index.perform, msgspec.json.encode(unit), store) for unit in indexed]
        return [*super().performed(rest), *(msgspec.convert(msgspec.to_builtins(one), Result) for one in made)]

    def serve(self, ask: Callable[[httpx2.Client], Any]) -> Any:
        """What is answered by a server on this engine."""
        return self.run(self._serve(ask))

    async def _serve(self, ask: Callable[[httpx2.Client], Any]) -> Any:
        config = msgspec.structs.replace(self.config, server=msgspec.structs.replace(self.config.server, port=0))
        server, address = Server(config), asyncio.get_running_loop().create_future()
        system = System.open(writer=self.engine.writer, log=self.engine.log, connect=self.engine.connect, notes=False)
        serving = asyncio.create_task(server._serve(self.engine, system, None, address.set_result))

        def work(url: str) -> Any:
            with httpx2.Client(base_url=url, timeout=20, trust_env=False) as client:
                return ask(client)

        try:
            await asyncio.wait({serving, address}, return_when=asyncio.FIRST_COMPLETED)
            return await asyncio.to_thread(work, address.result())
        finally:
            assert server._server is not None
            server._server.should_exit = True
            await serving
            await system.close()
            server._keys.close()
            gc.unfreeze()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasures, "GRACE_S", 0.0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "data") as rig:
        rig.register_type(contact())
        yield rig


def filled(rig: Rig) -> tuple[str, str, str, list[str]]:
    """An entity with a secret in everything that can be said of it, another that is merged into it, and a third one."""
    rig.analysed()  # fragments are counted ahead from now on
    for number in range(4):
        rig.said(f"{number}@x.io", name=f"n{number}", odd=f"plain {number}")
    rig.said(EMAIL.replace("1", "2"), name="alike")
    kept = rig.said("kept@x.io", name="kept")
    together = rig.store(PERSON, {"entity_type": "contact", "email": "kept@x.io", "phone": "1"}, idempotency_key=KEY)
    gone = together[0]["entity_id"]
    rig.seal_type()
    rig.store({**PERSON, "phone": f"{SECRET} phone", "_meta": {}}, source_id=f"mail of {SECRET}")
    other = rig.said(f"other-{EMAIL}", name=SECRET)
    rig.run(rig.engine.entity_relations.merge(USER, other, gone))
    moved = rig.store({"entity_type": "contact", "email": "kept@x.io", "phone": SECRET})[0]["observation_id"]
    into = rig.engine.snapshots.view(EntityQuery(gone, USER)).group.row
    rig.run(rig.engine.entity_relations.split(USER, kept, into, [Moved(moved, kept, kept)]))
    rig.seal_type()
    assert rig.work()
    rig.store({**PERSON, "phone": f"{SECRET} log", "_meta": {}}, source_id=f"letter of {SECRET}")
    rig.said("kept@x.io", phone="2")
    rows = rig.engine._reader.execute("SELECT DISTINCT source_id FROM sources ORDER BY first_seq")
    return gone, other, kept, [str(row[0]) for row in rows]


def told(client: httpx2.Client, every: list[Call]) -> dict[str, str]:
    """The questions whose answers hold the secret, with these."""
    answers = {f"{call[1]} {call[2]} {call[3]}": asked(client, call) for call in every}
    answers["sse"] = followed(client)
    return {name: answer for name, answer in answers.items() if SECRET in answer}


def entries(client: httpx2.Client) -> tuple[list[Any], str]:
    answer = client.get(STREAM)
    assert answer.headers["stream-up-to-date"] == "true"
    return answer.json(), answer.headers["stream-next-offset"]


def test_every_route_is_asked_or_known_to_answer_nothing_of_entities() -> None:
    asked = {template for template, *_ in calls("gone", "other", "kept", ["source"])} | {"/v1/erasures/{id}"}
    assert asked | APART == set(openapi_document()["paths"]) and not asked & APART


@pytest.mark.e2e
def test_no_route_tells_of_an_entity_from_the_answer_to_its_erasure_on(rig: Rig, tmp_path: Path) -> None:
    gone, other, kept, sources = filled(rig)
    every = list(calls(gone, other, kept, sources))
    rig.hold(True)

    def erase(client: httpx2.Client) -> tuple[str, Any]:
        corrected = {"field": "name", "value": f"{SECRET} corrected", "idempotency_key": f"correction of {SECRET}"}
        assert client.post(f"/v1/entities/{gone}/correct", json=corrected).status_code == 200
        shown = told(client, [call for call in every if not call[2].endswith(CHANGING)])
        for name in (
            "sse",
            "_plan/rows",
            "/v1/sources/",
            "candidates",
            "/_search",
            "filter",
            "/v1/entities/duplicates",
            "explain",
        ):
            assert [one for one in shown if name in one], (name, list(shown))
        before, tag = entries(client), client.get(STREAM).headers["etag"]
        assert client.get(STREAM, headers={"if-none-match": tag}).status_code == 304
        begun = client.post(f"/v1/entities/{gone}/erase", json={})
        assert begun.status_code == 202 and SECRET not in begun.text
        assert client.get(STREAM, headers={"if-none-match": tag}).status_code == 200
        assert told(client, every) == {}
        after = entries(client)
        assert after[1] == before[1] and len(after[0]) == len(before[0])
        changed = [(old, new) for old, new in zip(before[0], after[0], strict=True) if old != new]
        assert {old["entity_id"] for old, _ in changed} == {gone, other, kept}
        assert {new["kind"] for _, new in changed} == {"erased"}
        assert client.get(f"/v1/entities/{kept}").json()["snapshot"]["phone"] == "2"
        return begun.json()["erasure_id"], after

    erasure, after = rig.serve(erase)
    rig.reopen()

    def ask(client: httpx2.Client) -> None:
        assert told(client, every) == {} and entries(client) == after
        assert SECRET not in client.get(f"/v1/erasures/{erasure}").text

    rig.serve(ask)
    assert not is_over(rig.engine.erasure.find(erasure, USER)) and holding(tmp_path)
    rig.hold(False)
    rig.run(ended(rig, erasure))
    rig.serve(ask)
    assert holding(tmp_path) == []


async def ended(rig: Rig, erasure: str) -> None:
    async with asyncio.timeout(30):
        while not is_over(rig.engine.erasure.find(erasure, USER)):
            await asyncio.sleep(0.01)


def holding(directory: Path) -> list[Path]:
    """The files that hold the secret as it stands."""
    return [path for path in directory.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
