"""The indexes of a stream over HTTP: how far they are, when that is not sent again, and what ends the wait for more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest

from headrace.server.routes.details import DetailsRoute
from headrace.server.routes.index_status import IndexStatusRoute
from headrace.server.routes.route_table import openapi_document
from server.callers import Caller
from server.registries import name_of, post
from support.engine_rig import array
from support.log_stream import SEARCH, Logs
from support.plain_worker import Worker
from support.work_rig import Worker as Idle
from support.work_rig import opened, searched

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api

Code = Callable[[Any], str]
Eventually = Callable[..., None]
SOON = {"storage__seal_rows": "100", "storage__seal_age_s": "0", "pipeline__min_rows": "0", "pipeline__unit_bytes": "1"}
TAG = re.compile(r'W/"index_status:[0-9a-f]{40}"')
KEY = {"jsonPointer": "/service", "required": False}
ABSENT = {
    "configured": False,
    "indexed_segment_count": 0,
    "lag_segments": 0,
    "lag_ms": None,
    "bytes_at_rest": "0",
    "object_count": 0,
    "active_run_count": 0,
    "retired_run_count": 0,
    "fully_indexed_uploaded_segments": True,
    "updated_at": None,
}


@pytest.fixture(scope="module")
def server(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that publishes at once, and for which any number of entries is worth the work."""
    soon = type(server)(tmp_path_factory.mktemp("soon") / "data", SOON).start()
    yield soon
    soon.kill()


@pytest.fixture
def logs(server: ServerProcess) -> Logs:
    return Logs(server.url)


def status(api: Api, path: str) -> dict[str, Any]:
    """The document, after holding it against its description."""
    answer = api.get(f"{path}/_index_status")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text
    assert TAG.fullmatch(answer.headers["etag"])
    described = openapi_document()
    content = described["paths"]["/v1/stream/{name}/_index_status"]["get"]["responses"]["200"]["content"]
    schema = {**content["application/json"]["schema"], "components": described["components"]}
    jsonschema_rs.validate(schema, answer.json())
    found: dict[str, Any] = answer.json()
    return found


def searchable(api: Api, logs: Logs, eventually: Eventually, segments: int) -> str:
    """A stream with search fields, a routing key, and so many segments that no companion covers."""
    path = api.stream()
    assert post(api, path, schema={"type": "object"}, search=SEARCH, routingKey=KEY).status_code == 200
    for number in range(segments):
        logs.append(name_of(path), number * 100, number * 100 + 100)
        eventually(lambda: logs.published(name_of(path)) == number * 100 + 100)  # noqa: B023
    return path


def families(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {family["family"]: family for family in found["search_families"]}


# -- what it says


def test_a_stream_without_search_fields_has_every_field(api: Api) -> None:
    path = api.octets()
    found = status(api, path)
    manifest = found.pop("manifest")
    assert manifest["generation"] == manifest["uploaded_generation"]
    assert manifest["last_uploaded_etag"] is None
    assert found == {
        "stream": name_of(path),
        "profile": "generic",
        "desired_index_plan_generation": 0,
        "segments": {"total_count": 0, "uploaded_count": 0},
        "routing_key_index": ABSENT,
        "routing_key_lexicon": ABSENT,
        "exact_indexes": [],
        "bundled_companions": {
            "object_count": 0,
            "bytes_at_rest": "0",
            "fully_indexed_uploaded_segments": True,
        },
        "search_families": [],
        "done": [],
    }


def test_indexes_are_behind_until_companions_cover_the_segments(
    server: ServerProcess, api: Api, logs: Logs, eventually: Eventually
) -> None:
    path = searchable(api, logs, eventually, 2)
    before = status(api, path)
    assert before["segments"] == {"total_count": 2, "uploaded_count": 2}
    assert before["desired_index_plan_generation"] == 1
    assert before["manifest"]["generation"] > 0 and int(before["manifest"]["last_uploaded_size_bytes"]) > 0
    keys = before["routing_key_index"]
    assert keys["indexed_segment_count"] == 2
    assert keys["lag_segments"] == 0
    assert keys["lag_ms"] == "0"
    assert keys["configured"] and keys["fully_indexed_uploaded_segments"]
    for index in (before["routing_key_lexicon"], *before["exact_indexes"]):
        assert index["indexed_segment_count"] == 0
        assert index["lag_segments"] == 2
        assert index["lag_ms"] is None
        assert not index["fully_indexed_uploaded_segments"] and index["updated_at"] is None
    assert not before["bundled_companions"]["fully_indexed_uploaded_segments"]

    Worker(server.url).work_once(limit=1)
    half = status(api, path)
    for family in half["search_families"]:
        assert family["covered_segment_count"] == 1
        assert family["contiguous_covered_segment_count"] == 1
        assert family["lag_segments"] == 1
        assert family["stale_segment_count"] == 0
        assert family["plan_generation"] == 1
        assert int(family["lag_ms"]) > 0

    Worker(server.url).work(jobs=["index"])
    after = status(api, path)
    assert [index["name"] for index in after["exact_indexes"]] == [
        "duration", "request", "service", "status", "tags", "ts",
    ]  # fmt: skip
    assert [index["kind"] for index in after["exact_indexes"]][:2] == ["float", "keyword"]
    for index in (after["routing_key_lexicon"], *after["exact_indexes"]):
        assert index["indexed_segment_count"] == 2
        assert index["lag_segments"] == 0
        assert index["lag_ms"] == "0"
        assert index["active_run_count"] == 2
        assert index["retired_run_count"] == 0
        assert index["object_count"] == 2
        assert index["fully_indexed_uploaded_segments"] and int(index["bytes_at_rest"]) > 0
        assert index["updated_at"] is not None
    assert not any(index["stale_configuration"] for index in after["exact_indexes"])
    assert set(families(after)) == {"exact", "col", "fts", "agg"}
    assert families(after)["agg"]["fields"] == ["requests"]
    bundled = after["bundled_companions"]
    assert bundled["object_count"] == 6
    assert bundled["fully_indexed_uploaded_segments"] is True
    shares = [int(family["bytes_at_rest"]) for family in after["search_families"]]
    assert sum(shares) + int(after["routing_key_lexicon"]["bytes_at_rest"]) == int(bundled["bytes_at_rest"])


def test_a_changed_field_is_told_as_stale(server: ServerProcess, api: Api, logs: Logs, eventually: Eventually) -> None:
    path = searchable(api, logs, eventually, 1)
    Worker(server.url).work()
    fields = {**SEARCH["fields"], "service": {**SEARCH["fields"]["service"], "normalizer": "lowercase_v1"}}
    assert post(api, path, search={**SEARCH, "fields": fields}).status_code == 200
    found = status(api, path)
    stale = {index["name"]: index["stale_configuration"] for index in found["exact_indexes"]}
    assert [name for name, is_stale in stale.items() if is_stale] == ["service"]
    assert families(found)["exact"]["stale_segment_count"] == 1
    assert families(found)["exact"]["lag_segments"] == 1
    assert families(found)["agg"]["stale_segment_count"] == 1, "the rollup has the field for a dimension"
    assert families(found)["exact"]["plan_generation"] == 2
    Worker(server.url).work()
    found = status(api, path)
    assert not any(index["stale_configuration"] for index in found["exact_indexes"])
    assert {family["lag_segments"] for family in found["search_families"]} == {0}


def test_events_after_the_last_segment_are_how_far_it_is_behind(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        searched(rig, "s", 10)
        Idle(rig).work()
        rig.clock.us += 5_000_000
        rig.append("s", array({"user": "late"}))
        told = msgspec.to_builtins(IndexStatusRoute(rig.engine).describe(rig.find("s")))
    assert {index["lag_ms"] for index in (*told["exact_indexes"], *told["search_families"])} == {"5000"}
    assert {index["lag_segments"] for index in (*told["exact_indexes"], *told["search_families"])} == {0}


def test_it_is_the_one_of_the_details(server: ServerProcess, api: Api, logs: Logs, eventually: Eventually) -> None:
    path = searchable(api, logs, eventually, 1)
    Worker(server.url).work()

    def is_same() -> bool:
        # The manifest that lists the companion comes by itself.
        return bool(api.get(f"{path}/_details").json()["index_status"] == status(api, path))

    eventually(is_same)


# -- what the caller has, and who may ask


def test_the_tag_of_what_the_caller_has_is_enough(api: Api) -> None:
    path = api.octets()
    tag = api.get(f"{path}/_index_status").headers["etag"]
    other = api.get(f"{path}/_details").headers["etag"]
    assert api.get(f"{path}/_index_status", {"if-none-match": other}).status_code == 200
    same = api.get(f"{path}/_index_status", {"if-none-match": tag}, live="true", timeout="20ms")
    assert same.status_code == 304
    assert same.content == b""
    assert same.headers["etag"] == tag


@pytest.mark.parametrize("query", ["live=sse", "timeout=soon", "limit=1"])
def test_a_parameter_that_cannot_be_honoured_is_refused(api: Api, code_of: Code, query: str) -> None:
    refused = api.get(f"{api.octets()}/_index_status?{query}")
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


def test_there_is_no_status_without_a_stream(api: Api, code_of: Code) -> None:
    refused = api.get(f"{api.name()}/_index_status")
    assert refused.status_code == 404
    assert code_of(refused) == "not_found"
    refused = api.post(f"{api.octets()}/_index_status", {})
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, OPTIONS"


# -- the wait


@pytest.mark.parametrize("resource", [DetailsRoute, IndexStatusRoute])
def test_a_companion_ends_the_wait_by_itself(
    tmp_path: Path, resource: type[DetailsRoute] | type[IndexStatusRoute]
) -> None:
    async def scenario() -> None:
        watched, stream, other = resource(rig.engine), rig.find("s"), rig.find("t")
        tags = [(await Caller().ask(watched, one).answered).headers["etag"] for one in (stream, other)]
        waiting = [
            Caller().ask(watched, one, tag, live="true", timeout="60s")
            for one, tag in zip((stream, stream, other), (tags[0], *tags), strict=True)
        ]
        assert [caller.parked for caller in waiting] == [True, True, True]
        grant = await rig.engine.work.lease("w", limit=1)
        assert grant is not None
        await rig.engine.work.commit(grant.lease.id, grant.lease.token, Idle(rig).made(grant))
        replies = await asyncio.wait_for(asyncio.gather(*(caller.answered for caller in waiting[:2])), 10)
        assert [reply.status for reply in replies] == [200, 200]
        assert replies[0].headers["etag"] != tags[0]
        assert stream.head.published_seq == 20 and not waiting[2].answered.done()
        rig.engine.tail.end()
        assert (await waiting[2].answered).status == 304

    with opened(tmp_path) as rig:
        searched(rig, "s", 20)
        rig.create("t")
        rig.run(scenario())
