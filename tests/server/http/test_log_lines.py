from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from headrace.server.http.request_log import configure_logging, log_request


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_failed_request_is_logged_as_one_json_line() -> None:
    stream = io.StringIO()
    configure_logging(stream)
    log_request("GET", "/v1/stream/a", 503, 0.0042, request_id="r1", code="unavailable")
    (line,) = _lines(stream)
    assert line.pop("timestamp")
    assert line == {
        "event": "request failed",
        "level": "error",
        "logger": "headrace.request",
        "method": "GET",
        "path": "/v1/stream/a",
        "status": 503,
        "ms": 4.2,
        "request_id": "r1",
        "code": "unavailable",
    }


@pytest.mark.parametrize(
    ("status", "seconds", "level"),
    [(200, 1.5, "warning"), (404, 1.01, "warning"), (500, 0.0, "error"), (503, 9.0, "error")],
)
def test_slow_and_failed_requests_are_logged(status: int, seconds: float, level: str) -> None:
    stream = io.StringIO()
    configure_logging(stream)
    log_request("POST", "/x", status, seconds)
    assert [line["level"] for line in _lines(stream)] == [level]


@pytest.mark.parametrize(("status", "seconds"), [(200, 0.2), (404, 1.0), (429, 0.0)])
def test_other_requests_are_not_logged(status: int, seconds: float) -> None:
    stream = io.StringIO()
    configure_logging(stream)
    log_request("POST", "/x", status, seconds)
    assert stream.getvalue() == ""


def _fail_holding(secret: str) -> None:
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        logging.getLogger("headrace.writer").exception("a commit of %d failed", len(secret))


@pytest.mark.parametrize("stream", [io.StringIO(), _Terminal()])
def test_a_traceback_shows_no_local_variables(stream: io.StringIO) -> None:
    configure_logging(stream)
    _fail_holding("sesame" + str(17))
    assert "ValueError" in stream.getvalue()
    assert "sesame17" not in stream.getvalue()


def test_a_library_that_logs_with_a_traceback_ends_in_the_same_lines() -> None:
    stream = io.StringIO()
    configure_logging(stream)
    _fail_holding("abc")
    (line,) = _lines(stream)
    assert line["event"] == "a commit of 3 failed"
    assert line["logger"] == "headrace.writer"
    assert line["level"] == "error"
    assert "ValueError" in json.dumps(line["exception"])


def test_a_terminal_gets_text_rather_than_json() -> None:
    stream = _Terminal()
    configure_logging(stream)
    log_request("GET", "/x", 500, 0.1)
    assert "request failed" in stream.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(stream.getvalue())
