"""A real application watched by Headrace: its requests through the middleware, its spans through OpenTelemetry."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import uvicorn
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import headrace as hr

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

pytestmark = pytest.mark.e2e

REQUESTS = 20
LOGGER = logging.getLogger("tests.telemetry")


class Traced:
    """A span around every request, as instrumentation makes it."""

    def __init__(self, app: Any, tracer: trace.Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        facts = {
            "http.request.method": scope["method"],
            "http.route": "/orders/{id}",
            "url.path": scope["path"],
            "request.id": headers["x-request-id"],
            "http.request.header.authorization": "Bearer secret",
        }
        name = f"{scope['method']} /orders/{{id}}"
        with self._tracer.start_as_current_span(name, kind=SpanKind.SERVER, attributes=facts) as span:

            async def sending(message: Any) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._app(scope, receive, sending)


def _shop(tracer: trace.Tracer) -> Starlette:
    async def order(request: Request) -> Response:
        number = int(request.path_params["id"])
        hr.add_log_fields(user=f"u{number % 3}", card={"token": "secret"})
        with tracer.start_as_current_span("SELECT orders", kind=SpanKind.CLIENT, attributes={"db.system": "sqlite"}):
            LOGGER.info("looking for order %d", number)
        if number % 5 == 4:
            raise LookupError(f"order {number} has gone astray")
        return PlainTextResponse("tea")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield

    return Starlette(routes=[Route("/orders/{id}", order)], lifespan=lifespan)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the events and the spans of an application that has handled some requests and ended."""
    from tests.conftest import ServerProcess

    settings = {"system__traces_stream": "traces", "system__traces_auto_create": "true"}
    server = ServerProcess(tmp_path_factory.mktemp("telemetry") / "data", settings).start()
    try:
        _run_shop(server.url)
        yield server
    finally:
        server.kill()


def _run_shop(url: str) -> None:
    exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces", compression=Compression.Gzip)
    provider = TracerProvider(resource=Resource.create({"service.name": "shop", "service.version": "7"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("tests", "1")
    with hr.Client(url) as client:
        logs = client.stream("logs")
        logs.create()
        logs.set_profile("evlog", {"observability": {"request": {"tracesStream": "traces"}}})
        sender = hr.LogSender(logs, service="shop", version="7")
        handler = hr.LogHandler(sender)
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.INFO)
        try:
            _serve(Traced(hr.RequestLogs(_shop(tracer), sender), tracer))
        finally:
            LOGGER.removeHandler(handler)
            sender.close()
        assert sender.sent == 2 * REQUESTS
        assert sender.dropped == 0
    assert provider.force_flush()
    provider.shutdown()


def _serve(app: Any) -> None:
    """Run an application on a port of its own, send it requests, and let it end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on"))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        while not running.started:
            assert thread.is_alive()
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # An application that fails closes the connection.
        with httpx2.Client(base_url=url, limits=httpx2.Limits(max_keepalive_connections=0)) as http:
            statuses = [
                http.get(f"/orders/{n}?token=secret", headers={"x-request-id": f"r{n}"}).status_code
                for n in range(REQUESTS)
            ]
        running.should_exit = True
        thread.join(30)
    assert statuses == [500 if n % 5 == 4 else 200 for n in range(REQUESTS)]


@pytest.fixture
def client(watched: ServerProcess) -> Iterator[hr.Client]:
    with hr.Client(watched.url) as client:
        yield client


def around() -> dict[str, str]:
    """The hours around now, as an aggregate names them."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    return {
        "start": (now - timedelta(hours=1)).isoformat(),
        "end": (now + timedelta(hours=2)).isoformat(),
        "interval": "1h",
    }


def measured(
    stream: hr.Stream, rollup: str, group_by: list[str], q: str | None = None
) -> dict[tuple[Any, ...], dict[str, int]]:
    """The counts of every group, all hours together."""
    found = stream.aggregate(rollup, **around(), group_by=group_by, **({} if q is None else {"q": q}))
    assert found.complete
    summed: dict[tuple[Any, ...], dict[str, int]] = {}
    for bucket in found.buckets:
        for group in bucket.groups:
            into = summed.setdefault(tuple(group.key[name] for name in group_by), {})
            for name, measure in group.measures.items():
                into[name] = into.get(name, 0) + measure["count"]
    return summed


def observe(url: str, **lookup: str) -> Any:
    asked = {"streams": {"events": "logs", "traces": "traces"}, "lookup": lookup}
    answer = httpx2.post(f"{url}/v1/observe/request", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_requests_are_found_by_what_they_say(client: hr.Client) -> None:
    logs = client.stream("logs")
    assert logs.search("status:500", track_total_hits=True).total.value == REQUESTS // 5
    [hit] = logs.search("req:r4 method:get").hits
    assert hit.source["status"] == 500
    assert hit.source["level"] == "error"
    assert hit.source["service"] == "shop"
    assert hit.source["context"]["card"] == {"token": "[REDACTED]"}
    [hit] = logs.search('"gone astray" req:r9').hits
    assert hit.source["context"]["error"]["type"] == "LookupError"
    [hit] = logs.search("message:looking req:r3").hits
    assert hit.source["context"]["user"] == "u0"
    assert "secret" not in str([event for batch in logs.read() for event in batch.items])
    assert [event["requestId"] for batch in logs.read(key="r3") for event in batch.items] == ["r3", "r3"]


def test_requests_are_measured_by_service_and_level(client: hr.Client) -> None:
    found = measured(client.stream("logs"), "requests", ["service", "level"], "method:get")
    failed = REQUESTS // 5
    assert found[("shop", "error")]["requests"] == found[("shop", "error")]["5xx"] == failed
    assert found[("shop", "info")]["2xx"] == found[("shop", "info")]["latency"] == REQUESTS - failed


def test_spans_are_found_by_what_they_say(client: hr.Client) -> None:
    traces = client.stream("traces")
    assert traces.profile() == {"kind": "otel-traces"}
    assert traces.search("kind:server svc:shop", track_total_hits=True).total.value == REQUESTS
    [hit] = traces.search("kind:server req:r4").hits
    assert hit.source["status"]["code"] == "error"
    assert hit.source["error"]["type"] == "LookupError"
    assert hit.source["http"]["statusCode"] in (500, None)
    assert hit.source["version"] == "7"
    [child] = traces.search(f"parent:{hit.source['spanId']}").hits
    assert child.source["name"] == "SELECT orders"
    assert child.source["db"]["system"] == "sqlite"
    assert "secret" not in str(hit.source)


def test_spans_are_measured_by_route(client: hr.Client) -> None:
    traces = client.stream("traces")
    found = measured(traces, "http_server", ["http.route"])
    assert found[("/orders/{id}",)]["requests"] == REQUESTS
    assert found[("/orders/{id}",)]["errors"] == REQUESTS // 5
    spans = measured(traces, "spans", ["kind"])
    assert {key[0]: measures["spans"] for key, measures in spans.items()} == {"server": REQUESTS, "client": REQUESTS}


@pytest.mark.parametrize("by", ["requestId", "traceId", "spanId"])
def test_a_request_is_told_whole(watched: ServerProcess, client: hr.Client, by: str) -> None:
    root = client.stream("traces").search("kind:server req:r4").hits[0].source
    found = observe(watched.url, **{by: root[by]})
    assert found["summary"]["requestId"] == "r4"
    assert found["lookup"]["traceId"] == root["traceId"]
    assert found["summary"]["path"] == "/orders/4"
    assert found["summary"]["service"] == "shop"
    primary = found["evlog"]["primary"]
    assert primary["requestId"] == "r4"
    assert primary["message"] == "GET /orders/4"
    assert primary["path"] == "/orders/4"
    assert found["summary"]["duration"] == primary["duration"]
    told = [match["event"]["message"] for match in found["evlog"]["matches"]]
    assert sorted(told) == ["GET /orders/4", "looking for order 4"]
    assert found["trace"]["rootSpanId"] == root["spanId"]
    assert sorted(span["name"] for span in found["trace"]["spans"]) == ["GET /orders/{id}", "SELECT orders"]
    assert found["trace"]["partial"] is False
    told = [item["kind"] for item in found["timeline"]]
    assert told.count("evlog.event") == 2
    assert told.count("otel.span.start") == 2
    assert told.count("otel.exception") == 1
    assert found["coverage"]["warnings"] == []
