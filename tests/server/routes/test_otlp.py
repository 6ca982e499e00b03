"""Exports over HTTP: both encodings, compressed or not, to a stream or to the configured one; and what they answer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from server.conftest import Api
from support.otlp_exports import CHILD, ROOT, TRACE, export, json_export, json_span, span

if TYPE_CHECKING:
    from tests.conftest import StartServer

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]


def traces(api: Api, **settings: Any) -> str:
    path = api.stream()
    answer = api.post(f"{path}/_profile", {"profile": {"kind": "otel-traces", **settings}})
    assert answer.status_code == 200, answer.text
    return path


def send(api: Api, path: str, body: bytes, headers: dict[str, str]) -> Any:
    return api.post(f"{path}/_otlp/v1/traces", body, headers)


def test_a_protobuf_export_is_answered_in_protobuf(api: Api) -> None:
    path = traces(api)
    given = {"request.id": "req_1", "db.system": "postgresql", "authorization": "Bearer s"}
    answer = send(api, path, export(span(span=CHILD, parent=ROOT, given=given, status=(1, "ok"))), PROTOBUF)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert answer.content == b""
    assert answer.headers["stream-next-offset"] == api.offset(path)
    (found,) = api.get(path, key=TRACE).json()
    assert found["spanId"] == CHILD
    assert found["parentSpanId"] == ROOT
    assert found["requestId"] == "req_1"
    assert found["service"] == "checkout"
    assert found["kind"] == "server"
    assert found["duration"] == 123
    assert found["attributes"]["authorization"] == "[REDACTED]"
    assert found["instrumentationScope"]["name"] == "tests"


@pytest.mark.parametrize("packed", [False, True])
def test_a_json_export_is_answered_in_json(api: Api, packed: bool) -> None:
    path = traces(api)
    body = json.dumps(json_export(json_span())).encode()
    headers = {**JSON, "content-encoding": "gzip"} if packed else JSON
    answer = send(api, path, gzip.compress(body) if packed else body, headers)
    assert answer.status_code == 200
    assert answer.json() == {}
    assert [found["traceId"] for found in api.get(path).json()] == [TRACE]


def test_a_packed_protobuf_export_is_taken(api: Api) -> None:
    path = traces(api)
    body = gzip.compress(export(*[span(given={"pad": "x" * 500})] * 400))
    assert send(api, path, body, {**PROTOBUF, "content-encoding": "gzip"}).status_code == 200
    assert api.get(f"{path}/_details").json()["stream"]["next_offset"] == "400"


def test_spans_that_are_none_are_told_and_the_others_are_kept(api: Api) -> None:
    path = traces(api)
    bad = json_span(traceId="0" * 32)
    answer = send(api, path, json.dumps(json_export(json_span(), bad)).encode(), JSON)
    assert answer.status_code == 200
    partial = answer.json()["partialSuccess"]
    assert partial["rejectedSpans"] == 1
    assert "traceId" in partial["errorMessage"]
    assert len(api.get(path).json()) == 1
    answer = send(api, path, export(span(), span(span="0" * 16)), PROTOBUF)
    assert answer.content[:4] == bytes([0x0A, len(answer.content) - 2, 0x08, 1])
    assert b"spanId" in answer.content


def test_spans_beyond_the_limit_are_told(api: Api) -> None:
    path = traces(api, otlpLimits={"maxSpansPerRequest": 1})
    answer = send(api, path, export(span(), span(span=CHILD)), PROTOBUF)
    assert answer.status_code == 200
    assert b"too many spans" in answer.content
    assert len(api.get(path).json()) == 1


def test_an_export_of_nothing_is_fine(api: Api) -> None:
    path = traces(api)
    assert send(api, path, b'{"resourceSpans":[]}', JSON).json() == {}
    assert api.get(path).json() == []


@pytest.mark.parametrize(
    ("body", "headers", "status", "told"),
    [
        (b"x", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (b"\xff", PROTOBUF, 400, "bad_request"),
        (b"{", JSON, 400, "bad_request"),
        (b"x", {**JSON, "content-encoding": "br"}, 415, "unsupported_media_type"),
    ],
)
def test_what_is_no_export_is_refused(
    api: Api, code_of: Code, body: bytes, headers: dict[str, str], status: int, told: str
) -> None:
    answer = send(api, traces(api), body, headers)
    assert answer.status_code == status
    assert code_of(answer) == told


def test_what_is_too_large_is_refused(api: Api) -> None:
    body = json.dumps(json_export(json_span())).encode()
    small = traces(api, otlpLimits={"maxCompressedBytes": 48})
    answer = send(api, small, gzip.compress(body), {**JSON, "content-encoding": "gzip"})
    assert answer.status_code == 413
    assert "compressed OTLP body too large" in answer.json()["error"]["message"]
    small = traces(api, otlpLimits={"maxDecodedBytes": 64})
    answer = send(api, small, body, JSON)
    assert answer.status_code == 413
    assert "decoded OTLP body too large" in answer.json()["error"]["message"]


def test_other_streams_take_no_exports(api: Api, code_of: Code) -> None:
    answer = send(api, api.stream(), export(span()), PROTOBUF)
    assert answer.status_code == 404
    assert code_of(answer) == "not_found"
    assert "otel-traces" in answer.json()["error"]["message"]
    assert send(api, api.name(), export(span()), PROTOBUF).status_code == 404


def test_spans_are_found_and_summed_up(api: Api) -> None:
    path = traces(api)
    server = {
        "http.request.method": "GET",
        "http.route": "/checkout",
        "http.response.status_code": 500,
        "request.id": "r",
    }
    failed = [("exception", {"exception.type": "Error", "exception.message": "Checkout failed"})]
    root = span(given=server, events=failed, status=(2, "failed"))
    child = span(span=CHILD, parent=ROOT, name="SELECT cart", kind=1, millis=8, status=(2, "db failed"))
    assert send(api, path, export(root, child), PROTOBUF).status_code == 200
    for query, found in (
        (f"trace:{TRACE} req:r status:>=500", [ROOT]),
        ("events.name:exception", [ROOT]),
        ("exception", [ROOT]),
        ("Checkout", [ROOT]),
        ("svc:checkout kind:internal", [CHILD]),
        (f"parent:{ROOT} error:true", [CHILD]),
    ):
        hits = api.get(f"{path}/_search", q=query).json()["hits"]
        assert [hit["source"]["spanId"] for hit in hits] == found, query
    window = {"from": "2026-02-25T12:00:00Z", "to": "2026-02-25T12:01:00Z", "interval": "1m"}
    groups = ["service", "http.method", "http.route", "http.statusCode"]
    answer = api.post(f"{path}/_aggregate", {"rollup": "http_server", "group_by": groups, **window}).json()
    ((group,),) = [bucket["groups"] for bucket in answer["buckets"]]
    assert group["key"]["http.method"] == "get"
    assert group["measures"]["requests"] == {"count": 1}
    assert group["measures"]["latency"]["sum"] == 123
    answer = api.post(f"{path}/_aggregate", {"rollup": "spans", "group_by": ["service"], **window}).json()
    measures = answer["buckets"][0]["groups"][0]["measures"]
    assert measures["spans"] == {"count": 2}
    assert measures["errors"] == {"count": 2}


# -- the configured stream


@pytest.fixture
def collecting(start_server: StartServer) -> Iterator[Callable[..., Api]]:
    made: list[Api] = []

    def start(**settings: str) -> Api:
        made.append(Api(start_server(data=f"d{len(made)}", **settings).url))
        return made[-1]

    yield start
    for api in made:
        api.client.close()


def test_the_configured_stream_is_made_by_the_first_export(collecting: Callable[..., Api]) -> None:
    api = collecting(system__traces_stream="spans", system__traces_auto_create="true")
    for _ in range(2):
        assert api.post("/v1/traces", export(span()), PROTOBUF).status_code == 200
    assert api.get("/v1/stream/spans/_profile").json()["profile"] == {"kind": "otel-traces"}
    assert len(api.get("/v1/stream/spans").json()) == 2
    packed = gzip.compress(json.dumps(json_export(json_span())).encode())
    assert api.post("/v1/traces", packed, {**JSON, "content-encoding": "gzip"}).json() == {}


def test_a_stream_that_is_not_there_is_missed(collecting: Callable[..., Api], code_of: Code) -> None:
    api = collecting(system__traces_stream="spans")
    assert code_of(api.post("/v1/traces", export(span()), PROTOBUF)) == "not_found"


def test_without_a_configured_stream_exports_are_refused(api: Api) -> None:
    answer = api.post("/v1/traces", export(span()), PROTOBUF)
    assert answer.status_code == 400
    assert "system.traces_stream" in answer.json()["error"]["message"]
    assert api.get("/v1/traces").status_code == 405
