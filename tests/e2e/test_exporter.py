"""A real OpenTelemetry exporter sends real spans, over protobuf and gzip; they are found, summed up and joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from server.conftest import Api

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = pytest.mark.e2e
trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the OpenTelemetry SDK is not installed")


@pytest.fixture
def api(start_server: StartServer) -> Iterator[Api]:
    settings = {"system__traces_stream": "spans", "system__traces_auto_create": "true"}
    made = Api(start_server(**settings).url)
    yield made
    made.client.close()


def exported(api: Api, requests: int) -> None:
    """So many requests, each with a child that fails."""
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind

    provider = trace.TracerProvider(resource=Resource.create({"service.name": "shop"}))
    exporter = OTLPSpanExporter(endpoint=f"{api.url}/v1/traces", compression=Compression.Gzip)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("tests", "1.0")
    for number in range(requests):
        told = {"request.id": f"r-{number}", "http.request.method": "GET", "http.response.status_code": 200}
        with tracer.start_as_current_span("GET /x", kind=SpanKind.SERVER, attributes=told) as served:
            served.add_event("cache", {"hit": False})
            with pytest.raises(ValueError, match="boom"), tracer.start_as_current_span("child"):
                raise ValueError("boom")
    assert provider.force_flush()
    provider.shutdown()


def test_spans_of_a_real_exporter_are_found_summed_up_and_joined(api: Api) -> None:
    exported(api, 20)
    path = "/v1/stream/spans"
    assert api.get(f"{path}/_profile").json()["profile"] == {"kind": "otel-traces"}
    (hit,) = api.get(f"{path}/_search", q="req:r-7").json()["hits"]
    root: dict[str, Any] = hit["source"]
    assert root["service"] == "shop"
    assert root["kind"] == "server"
    assert root["http"]["statusCode"] == 200
    assert root["eventNames"] == ["cache"]
    assert len(api.get(f"{path}/_search", q="boom", size=50).json()["hits"]) == 20
    window = {"from": "2020-01-01T00:00:00Z", "to": "2120-01-01T00:00:00Z", "interval": "1h"}
    answer = api.post(f"{path}/_aggregate", {"rollup": "http_server", "group_by": ["service"], **window}).json()
    assert sum(bucket["groups"][0]["measures"]["requests"]["count"] for bucket in answer["buckets"]) == 20
    question = {"streams": {"traces": "spans"}, "lookup": {"requestId": "r-7"}, "include": {"events": False}}
    found = api.post("/v1/observe/request", question).json()
    assert found["trace"]["rootSpanId"] == root["spanId"]
    assert [error["message"] for error in found["trace"]["errors"]] == ["boom"]
    assert found["trace"]["tree"][0]["children"][0]["name"] == "child"
