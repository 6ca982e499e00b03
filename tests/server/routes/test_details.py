"""The details of a stream: what they say, when they are not sent again, and what ends the wait for a change."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from headrace.server.routes.details import DetailsRoute
from headrace.server.routes.route_table import openapi_document
from headrace.storage.keys import KeyStore
from headrace.types import JSON
from server.callers import Caller
from server.registries import evolve, installed, name_of, registry, rename, shape
from support.engine_rig import Rig, array
from support.log_stream import Logs
from support.plain_worker import Worker

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Answer, Api, Wire

Code = Callable[[Any], str]
Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]
WHOLE = {"type": "integer"}
TAG = re.compile(r'W/"details:[0-9a-f]{40}"')
NONE = {f"{verb}s": "0" for verb in ("put", "get", "head", "list", "delete", "read")}


def details(api: Api, path: str) -> dict[str, Any]:
    answer = api.get(f"{path}/_details")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert TAG.fullmatch(answer.headers["etag"])
    found: dict[str, Any] = answer.json()
    return found


def tag_of(api: Api, path: str) -> str:
    return str(api.get(f"{path}/_details").headers["etag"])


@pytest.fixture(scope="module")
def sealing(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that publishes within seconds."""
    eager = type(server)(tmp_path_factory.mktemp("sealing") / "data", {"storage__seal_age_s": "0"}).start()
    yield eager
    eager.kill()


# -- what they say


def test_an_empty_stream_has_every_field(api: Api) -> None:
    path = api.octets()
    found = details(api, path)
    stream, local = found["stream"], found["storage"]["local_storage"]
    created, epoch = stream.pop("created_at"), stream.pop("epoch")
    assert stream.pop("updated_at") == created
    assert stream.pop("epochs") == [{"epoch": epoch, "after": "0"}]
    assert stream == {
        "name": name_of(path),
        "content_type": "application/octet-stream",
        "profile": "generic",
        "expires_at": None,
        "ttl_seconds": None,
        "stream_seq": None,
        "closed": False,
        "next_offset": "0",
        "sealed_through": "-1",
        "uploaded_through": "-1",
        "segment_count": 0,
        "uploaded_segment_count": 0,
        "pending_rows": "0",
        "pending_bytes": "0",
        "total_size_bytes": "0",
        "wal_rows": "0",
        "wal_bytes": "0",
        "last_append_at": None,
        "last_segment_cut_at": None,
    }
    assert found["profile"] == {"apiVersion": "durable.streams/profile/v1", "profile": {"kind": "generic"}}
    assert found["schema"] == registry(api, path)
    assert found["object_store_requests"] == {**NONE, "by_artifact": []}
    assert int(local.pop("sqlite_shared_total_bytes")) > 0
    nothing = [value for part in found["storage"].values() for value in part.values()]
    assert len(nothing) == 25 and {*nothing} == {"0", 0}
    described = {"stream", "profile", "schema", "emptied_fields", "index_status", "storage", "object_store_requests"}
    assert set(found) == described


def test_entries_are_counted_as_they_come(api: Api) -> None:
    path = api.stream(1, 22, headers={"stream-ttl": "3600"})
    api.post(path, [3, 4], {"stream-seq": "b7"})
    api.post(path, headers={"stream-closed": "true"})
    found = details(api, path)
    stream, local = found["stream"], found["storage"]["local_storage"]
    assert stream["next_offset"] == "4"
    assert stream["ttl_seconds"] == 3600
    assert stream["stream_seq"] == "b7"
    assert stream["closed"] is True
    assert stream["pending_rows"] == "4"
    assert stream["wal_rows"] == "4"
    size = str(len(b"1") + len(b"22") + len(b"3, 4"))
    assert {stream["pending_bytes"], stream["wal_bytes"], stream["total_size_bytes"]} == {size}
    assert {local["total_bytes"], local["wal_retained_bytes"], local["pending_tail_bytes"]} == {size}
    assert stream["last_append_at"] == stream["updated_at"] > stream["created_at"]
    assert stream["expires_at"] > stream["last_append_at"]


def test_the_registry_is_the_one_of_schema(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    api.post(path, [{"a": 1}])
    before = details(api, path)
    evolve(api, path, shape(b=WHOLE), rename("a", "b"))
    after = details(api, path)
    assert after["schema"] == registry(api, path) != before["schema"]
    assert after["stream"]["updated_at"] > before["stream"]["updated_at"]


def test_what_is_published_is_counted_as_published(sealing: ServerProcess, api_of: Any, eventually: Eventually) -> None:
    api = api_of(sealing)
    path = api.stream(1, 2, 3)
    eventually(lambda: details(api, path)["stream"]["uploaded_through"] == "2")
    eventually(lambda: details(api, path)["stream"]["wal_rows"] == "0")
    found = details(api, path)
    stream, stored = found["stream"], found["storage"]["object_storage"]
    assert stream["sealed_through"] == "2"
    assert stream["segment_count"] == 1
    assert stream["uploaded_segment_count"] == 1
    assert stream["pending_rows"] == "0"
    assert stream["pending_bytes"] == "0"
    assert stream["wal_bytes"] == "0"
    assert stream["total_size_bytes"] == "3"
    assert stream["last_segment_cut_at"] == stream["updated_at"] > stream["last_append_at"]
    assert stored["segment_object_count"] == 1
    assert stored["indexes_bytes"] == "0"
    assert int(stored["segments_bytes"]) > 0 and int(stored["manifest_bytes"]) > 0
    assert stored["manifest_and_meta_bytes"] == stored["manifest_bytes"]
    assert int(stored["total_bytes"]) == int(stored["segments_bytes"]) + int(stored["manifest_bytes"])


def test_requests_to_the_store_are_counted_by_artifact(
    sealing: ServerProcess, api_of: Any, eventually: Eventually
) -> None:
    api = api_of(sealing)
    path, other = api.stream(1), api.stream()
    eventually(lambda: details(api, path)["stream"]["uploaded_through"] == "0")
    asked = details(api, path)["object_store_requests"]
    rows = {row.pop("artifact"): row for row in asked["by_artifact"]}
    assert set(rows) == {"manifest", "segment"}
    assert rows["segment"]["puts"] == "1"
    assert int(asked["puts"]) == 1 + int(rows["manifest"]["puts"]) > 1
    for row in (asked, *rows.values()):
        assert int(row["reads"]) == sum(int(row[verb]) for verb in ("gets", "heads", "lists"))
    eventually(lambda: details(api, other)["object_store_requests"]["puts"] == "1")


def test_companions_are_counted_as_indexes(start_server: StartServer, api_of: Any, eventually: Eventually) -> None:
    server = start_server(storage__seal_age_s="0", pipeline__min_rows="0")
    api, logs = api_of(server), Logs(server.url)
    logs.create("a")
    logs.append("a", 0, 100)
    eventually(lambda: logs.published("a") == 100)
    tag = tag_of(api, "/v1/stream/a")
    assert Worker(server.url).work() == 1
    found = details(api, "/v1/stream/a")
    stored, families = found["storage"]["object_storage"], found["storage"]["companion_families"]
    assert stored["bundled_companion_object_count"] == 3
    assert stored["indexes_bytes"] == found["index_status"]["bundled_companions"]["bytes_at_rest"] != "0"
    assert int(stored["total_bytes"]) == sum(
        int(stored[f"{part}_bytes"]) for part in ("segments", "indexes", "manifest")
    )
    assert all(int(families[f"{name}_bytes"]) > 0 for name in ("exact", "col", "fts", "agg"))
    assert families["mblk_bytes"] == "0"
    lexicon = int(found["index_status"]["routing_key_lexicon"]["bytes_at_rest"])
    assert lexicon == 0, "without a routing key nobody wants it"
    rows = {row["artifact"]: row for row in found["object_store_requests"]["by_artifact"]}
    assert rows["bundled_companion"]["heads"] == "3"
    assert tag_of(api, "/v1/stream/a") != tag


def test_details_are_as_the_document_describes_them(sealing: ServerProcess, api_of: Any, api: Api) -> None:
    described = openapi_document()
    answer = described["paths"]["/v1/stream/{name}/_details"]["get"]["responses"]["200"]
    schema = {**answer["content"]["application/json"]["schema"], "components": described["components"]}
    eager = api_of(sealing)
    for found in (details(api, api.octets(b"1")), details(eager, eager.stream(1)), details(api, installed(api, {}))):
        jsonschema_rs.validate(schema, found)


# -- who may ask for what


@pytest.mark.parametrize(
    "query", ["live=sse", "live=maybe", "timeout=soon", "timeout_ms=-1", "offset=-1", "x=1", "live=true&live=true"]
)
def test_a_parameter_that_cannot_be_honoured_is_refused(api: Api, code_of: Code, query: str) -> None:
    refused = api.get(f"{api.stream(1)}/_details?{query}")
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


def test_there_are_no_details_without_a_stream(api: Api, code_of: Code) -> None:
    soft, fork = api.stream(1), api.name()
    api.put(fork, headers={"stream-forked-from": soft})
    api.delete(soft)
    for path, status, code in ((api.name(), 404, "not_found"), (soft, 410, "gone")):
        refused = api.get(f"{path}/_details")
        assert refused.status_code == status
        assert code_of(refused) == code
    assert details(api, fork)["stream"]["next_offset"] == "1"


def test_details_are_only_read(api: Api, code_of: Code) -> None:
    for verb in ("POST", "PUT", "DELETE"):
        refused = api.call(verb, f"{api.stream(1)}/_details")
        assert refused.status_code == 405
        assert refused.headers["allow"] == "GET, OPTIONS"


def test_a_key_needs_the_scope_and_the_prefix(start_server: StartServer, api_of: Any) -> None:
    server = start_server()
    api = api_of(server)
    path = api.stream(1)
    store = KeyStore(server.data_dir / "keys.db")
    keys = [store.create(user_id="ada", scopes=["read"], prefix=prefix)[1] for prefix in ("", name_of(path), "other/")]
    store.close()
    found = [api.get(f"{path}/_details", {"authorization": f"Bearer {key}"}).status_code for key in keys]
    assert found == [200, 200, 403]


# -- what the caller has


def test_the_tag_of_what_the_caller_has_is_enough(api: Api) -> None:
    path = api.stream(1)
    tag = tag_of(api, path)
    for given in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
        same = api.get(f"{path}/_details", {"if-none-match": given})
        assert same.status_code == 304
        assert same.content == b""
        assert same.headers["etag"] == tag
        assert same.headers["cache-control"] == "no-store"
    for given in ('"x"', tag[:-2] + '"', tag_of(api, api.stream(1))):
        assert api.get(f"{path}/_details", {"if-none-match": given}).status_code == 200


def test_the_tag_changes_with_the_stream_and_not_with_others(api: Api) -> None:
    path, other = installed(api, shape(a=WHOLE)), api.stream(1)
    tags = [tag_of(api, path)]
    shared = details(api, path)["storage"]["local_storage"]["sqlite_shared_total_bytes"]
    api.post(other, [random.Random(1).randbytes(100_000).hex()])
    assert details(api, path)["storage"]["local_storage"]["sqlite_shared_total_bytes"] != shared
    assert tag_of(api, path) == tags[0]
    for change in (
        lambda: api.post(path, [{"a": 1}]),
        lambda: evolve(api, path, {"type": "object"}),
        lambda: api.post(path, headers={"stream-closed": "true"}),
    ):
        change()
        tags.append(tag_of(api, path))
    assert len(set(tags)) == len(tags)


# -- the wait


def wait(wire: Wire, path: str, tag: str, query: str = "live=long-poll&timeout=8s") -> Wire:
    return wire.request("GET", f"{path}/_details?{query}", b"", f"If-None-Match: {tag}")


@pytest.fixture
def waited(server: ServerProcess, api: Api, connect: Connect, eventually: Eventually) -> Callable[..., Answer]:
    """The answer to someone who waits while a change is made."""

    def change(path: str, make: Callable[[], Any]) -> Answer:
        waiting = wait(connect(server), path, tag_of(api, path))
        eventually(lambda: api.metric("headrace_watchers") == 1)
        make()
        answer = waiting.answer()
        assert api.metric("headrace_watchers") == 0
        return answer

    return change


@pytest.mark.parametrize("mode", ["true", "1", "long-poll"])
def test_a_caller_who_has_something_else_does_not_wait(api: Api, mode: str) -> None:
    path = api.stream(1)
    assert api.get(f"{path}/_details", live=mode, timeout="1h").status_code == 200
    assert api.get(f"{path}/_details", {"if-none-match": '"x"'}, live=mode, timeout="1h").status_code == 200


@pytest.mark.parametrize("mode", ["false", "0", ""])
def test_a_caller_who_does_not_want_to_wait_is_told_at_once(api: Api, mode: str) -> None:
    path = api.stream(1)
    answer = api.get(f"{path}/_details", {"if-none-match": tag_of(api, path)}, live=mode, timeout="1h")
    assert answer.status_code == 304


@pytest.mark.parametrize("given", ["timeout=50ms", "timeout=50", "timeout_ms=50"])
def test_a_wait_without_news_ends_with_what_the_caller_has(api: Api, given: str) -> None:
    path = api.stream(1)
    tag = tag_of(api, path)
    answer = api.get(f"{path}/_details?live=true&{given}", {"if-none-match": tag})
    assert answer.status_code == 304
    assert answer.content == b""
    assert answer.headers["etag"] == tag
    assert api.metric("headrace_watchers") == 0


def test_an_append_ends_the_wait(api: Api, waited: Callable[..., Answer]) -> None:
    path = api.stream(1)
    answer = waited(path, lambda: api.post(path, [2]))
    assert answer.status == 200
    assert answer.headers["etag"] == tag_of(api, path)
    assert b'"next_offset":"2"' in answer.body


def test_closing_ends_the_wait(api: Api, waited: Callable[..., Answer]) -> None:
    path = api.stream(1)
    answer = waited(path, lambda: api.post(path, headers={"stream-closed": "true"}))
    assert answer.status == 200 and b'"closed":true' in answer.body


def test_a_new_schema_ends_the_wait(api: Api, waited: Callable[..., Answer]) -> None:
    path = api.stream()
    answer = waited(path, lambda: evolve(api, path, {"title": "news"}))
    assert answer.status == 200 and b'"title":"news"' in answer.body


def test_deletion_ends_the_wait(api: Api, waited: Callable[..., Answer]) -> None:
    path = api.stream(1)
    answer = waited(path, lambda: api.delete(path))
    assert answer.status == 404
    assert answer.code() == "not_found"


def test_publishing_ends_the_wait(
    sealing: ServerProcess, api_of: Any, connect: Connect, eventually: Eventually
) -> None:
    api = api_of(sealing)
    path = api.stream()
    eventually(lambda: details(api, path)["object_store_requests"]["puts"] == "1")
    seen, wire = "-1", connect(sealing)
    api.post(path, [1])
    while seen == "-1":
        answer = wait(wire, path, tag_of(api, path)).answer()
        assert answer.status == 200
        seen = re.findall(rb'"uploaded_through":"(-?\d+)"', answer.body)[0].decode()
    assert seen == "0"


def test_a_change_that_does_not_show_goes_on_waiting(api: Api, waited: Callable[..., Answer]) -> None:
    path = api.stream(1)

    def change() -> None:
        assert api.post(f"{path}/_retention", {"age": "24h"}).status_code == 204
        assert api.metric("headrace_watchers") == 1
        api.post(path, [2])

    assert b'"next_offset":"2"' in waited(path, change).body


def test_those_who_wait_are_counted_and_listed(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually
) -> None:
    path = api.stream(1)
    tag, wires = tag_of(api, path), [connect(server) for _ in range(3)]
    for wire in wires[:2]:
        wait(wire, path, tag)
    wires[2].request("GET", f"{path}?live=long-poll&offset=now&timeout=8s")
    eventually(lambda: api.metric("headrace_watchers") == 3)
    listed = api.get("/v1/server/_mem").json()["top_streams"]["notifier_waiters"]
    assert listed == [{"stream": name_of(path), "waiters": 1, "details_waiters": 2, "total_waiters": 3}]
    api.post(path, [2])
    assert [wire.answer().status for wire in wires] == [200, 200, 200]


def test_a_caller_who_hangs_up_waits_no_more(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually
) -> None:
    path, wire = api.stream(1), connect(server)
    wait(wire, path, tag_of(api, path))
    eventually(lambda: api.metric("headrace_watchers") == 1)
    wire.close()
    eventually(lambda: api.metric("headrace_watchers") == 0)


def test_only_so_many_may_wait(
    start_server: StartServer, api_of: Any, connect: Connect, eventually: Eventually
) -> None:
    server = start_server(limits__waiters="1")
    api = api_of(server)
    path = api.stream(1)
    tag, first = tag_of(api, path), connect(server)
    wait(first, path, tag)
    eventually(lambda: api.metric("headrace_watchers") == 1)
    refused = wait(connect(server), path, tag).answer()
    assert refused.status == 429
    assert refused.code() == "overloaded"
    api.post(path, [2])
    assert first.answer().status == 200


def test_a_stopping_server_lets_go_of_those_who_wait(
    start_server: StartServer, api_of: Any, connect: Connect, eventually: Eventually
) -> None:
    server = start_server()
    api = api_of(server)
    path, wire = api.stream(1), connect(server)
    wait(wire, path, tag_of(api, path))
    eventually(lambda: api.metric("headrace_watchers") == 1)
    assert server.stop() == 0
    assert wire.answer().status == 304


@pytest.mark.parametrize("change", ["retention", "publish"])
def test_what_the_engine_does_by_itself_ends_the_wait(tmp_path: Path, change: str) -> None:
    async def scenario() -> None:
        resource = DetailsRoute(rig.engine)
        stream = rig.find("a")
        tag = (await Caller().ask(resource, stream).answered).headers["etag"]
        waiting = [Caller().ask(resource, stream, tag, live="true", timeout="60s") for _ in range(3)]
        assert [caller.parked for caller in waiting] == [True, True, True]
        if change == "retention":
            await rig.engine.sweep()
        else:
            await rig.engine.sealer.publish(stream.id)
        replies = await asyncio.wait_for(asyncio.gather(*(caller.answered for caller in waiting)), 10)
        assert [reply.status for reply in replies] == [200, 200, 200]
        assert len({reply.headers["etag"] for reply in replies} - {tag}) == 1
        assert rig.engine.tail.watchers == 0

    with Rig(tmp_path) as rig:
        rig.create("a", JSON, array("one"), retention_bytes=9)
        rig.append("a", array("two"))
        rig.run(scenario())


def test_what_changed_without_waking_anyone_is_told_when_the_time_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        resource, stream = DetailsRoute(rig.engine), rig.find("a")
        tag = (await Caller().ask(resource, stream).answered).headers["etag"]
        waiting = Caller().ask(resource, stream, tag, live="true", timeout="50ms")
        rig.clock.us += 1_000_000
        rig.engine.log.catalog.note_access(stream)
        reply = await asyncio.wait_for(waiting.answered, 10)
        assert reply.status == 200
        assert reply.headers["etag"] != tag

    with Rig(tmp_path) as rig:
        rig.create("a", ttl_s=60)
        rig.run(scenario())
