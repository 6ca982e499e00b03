from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.engine.log.log import Counters
from headrace.server.http.request_log import RequestLog

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire


def test_every_answer_is_counted_by_its_status() -> None:
    counters = Counters()
    log = RequestLog(counters)
    for status in (200, 204, 204, 404):
        log.note("GET", b"/v1/stream/x", status, 0.001, {})
    assert counters.responses == {200: 1, 204: 2, 404: 1}
    assert counters.slow_requests == 0


def test_a_slow_answer_is_counted_as_slow() -> None:
    counters = Counters()
    RequestLog(counters).note("GET", b"/v1/stream/\xff", 200, 1.5, {})
    assert counters.slow_requests == 1


def test_answers_of_both_ways_in_are_counted(
    server: ServerProcess, api: Api, connect: Callable[..., Wire], eventually: Callable[..., None]
) -> None:
    def answers(status: int) -> float:
        text = api.get("/metrics").text
        found = [
            line for line in text.splitlines() if line.startswith(f'headrace_responses_total{{status="{status}"}}')
        ]
        return float(found[0].split()[-1]) if found else 0

    path, wire = api.stream(1), connect(server)
    for method, target, lines, status in (
        ("GET", path, (), 200),
        ("GET", path, ("Transfer-Encoding: chunked", "", "0"), 200),
        ("GET", "/v1/streams", (), 200),
        ("GET", "/v1/streams?limit=0", (), 400),
        ("PATCH", path, (), 405),
        ("GET", path + "?offset=x", (), 400),
    ):
        before = answers(status)
        assert wire.request(method, target, b"", *lines).answer().status == status
        eventually(lambda status=status, before=before: answers(status) >= before + 1, 2)


def _slow_lines(server: ServerProcess) -> list[Any]:
    lines = [json.loads(line) for line in server.log().splitlines()]
    return [line for line in lines if line.get("logger") == "headrace.request"]


def test_slow_work_is_logged_and_a_parked_wait_is_not(
    start_server: StartServer,
    api_of: Any,
    stopped_writer: Any,
    connect: Callable[..., Wire],
    eventually: Callable[..., None],
) -> None:
    server = start_server()
    api, wire = api_of(server), connect(server)
    path = api.stream(1)
    assert api.get(path, live="true", offset="now", timeout="1200ms").status_code == 204
    assert wire.append(path, b"2").request("GET", f"{path}?live=true&offset=now&timeout=1200ms").answer().status == 204
    assert wire.answer().status == 204
    assert _slow_lines(server) == []
    with stopped_writer(server):
        wire.append(path, b"3", "X-Request-Id: r7")
        time.sleep(1.2)
    assert wire.answer().status == 204
    eventually(lambda: len(_slow_lines(server)) == 1)
    [line] = _slow_lines(server)
    assert line["method"] == "POST"
    assert line["path"] == path
    assert line["status"] == 204
    assert line["request_id"] == "r7"
    assert line["ms"] >= 1000
    assert api.metric("headrace_slow_requests_total") == 1
