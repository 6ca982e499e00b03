"""Log events reach the stream, and never hold up or fail whoever logs."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import headrace as hr
from headrace.client.log_sender import encode_event


@pytest.fixture
def logs(client: hr.Client, name: str) -> hr.Stream:
    """A stream of logs."""
    stream = client.stream(name)
    stream.create()
    stream.set_profile("evlog")
    return stream


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def stored(stream: hr.Stream) -> list[dict[str, Any]]:
    return [event for batch in stream.read() for event in batch.items]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "headrace.logs"]


def test_events_say_what_the_sender_says_of_itself(logs: hr.Stream) -> None:
    with hr.LogSender(logs, service="Shop", environment="test", version="1.2", region="north") as sender:
        sender.send({"message": "began", "requestId": "r1", "cart": {"items": 3}})
        assert sender.flush(20)
        assert sender.sent == 1
        assert sender.pending == 0
        assert sender.dropped == 0
    [event] = stored(logs)
    wanted = {"service": "Shop", "environment": "test", "version": "1.2", "region": "north", "requestId": "r1"}
    assert {name: event[name] for name in wanted} == wanted
    assert event["context"] == {"cart": {"items": 3}}
    assert abs(datetime.fromisoformat(event["timestamp"]) - datetime.now(UTC)).total_seconds() < 60


def test_events_of_several_threads_are_all_stored(logs: hr.Stream) -> None:
    with hr.LogSender(logs, linger_ms=1000) as sender:
        threads = [threading.Thread(target=lambda: [sender.send({"n": n}) for n in range(250)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(event["context"]["n"] for event in stored(logs)) == sorted(4 * list(range(250)))
    assert sender.sent == 1000
    assert sender.dropped == 0


def test_what_json_has_no_form_for_becomes_text(logs: hr.Stream) -> None:
    circle: dict[str, Any] = {"deep": 1}
    circle["self"] = circle
    odd = {"lone": "\ud800", "set": {1}, "object": object(), 7: "seven", "large": 10**40, "bytes": b"x", "none": None}
    with hr.LogSender(logs) as sender:
        sender.send({"message": "odd", **odd})
        sender.send({"message": "circle", "circle": circle})
    first, second = stored(logs)
    assert first["context"]["lone"] == "?"
    assert first["context"]["7"] == "seven"
    assert first["context"]["object"].startswith("<object")
    assert second["context"]["circle"]["self"]["deep"] == 1
    assert sender.sent == 2
    assert sender.dropped == 0


def test_an_event_that_cannot_be_encoded_is_dropped_and_told(logs: hr.Stream, caplog: pytest.LogCaptureFixture) -> None:
    class Hostile:
        def __str__(self) -> str:
            raise OSError("no text")

    with hr.LogSender(logs) as sender:
        sender.send({"bad": Hostile()})
        sender.send({"message": "good"})
    assert sender.sent == 1
    assert sender.dropped == 1
    assert told(caplog) == [f"1 log events for the stream {logs.name} were lost: OSError: no text"]


def test_a_server_that_does_not_answer_holds_nobody_up(silent: str, caplog: pytest.LogCaptureFixture) -> None:
    with hr.Client(silent) as client:
        sender = hr.LogSender(client.stream("logs"), max_pending_bytes=20_000)
        began = time.perf_counter()
        for n in range(1000):
            sender.send({"n": n})
        assert time.perf_counter() - began < 5
        assert 0 < sender.pending < 100
        assert sender.dropped == 1000 - sender.pending
        # Once, however many there are.
        assert len(told(caplog)) == 1
        assert not sender.flush(0.01)
        sender.close(0.2)
    assert time.perf_counter() - began < 10
    assert sender.sent == 0
    assert sender.pending == 0
    assert sender.dropped == 1000
    assert len(told(caplog)) == 2


def test_events_wait_for_a_server_that_comes_back(start_server: Any) -> None:
    server = start_server()
    with hr.Client(server.url) as client:
        logs = client.stream("logs")
        logs.create()
        logs.set_profile("evlog")
    server.kill()
    with hr.Client(server.url) as client, hr.LogSender(client.stream("logs")) as sender:
        sender.send({"message": "patient"})
        back = start_server(server__port=server.url.rpartition(":")[2])
        assert sender.flush(30)
        assert sender.sent == 1
        assert sender.dropped == 0
    with hr.Client(back.url) as client:
        assert [event["message"] for event in stored(client.stream("logs"))] == ["patient"]


def test_what_the_server_refuses_is_counted_and_told(client: hr.Client, caplog: pytest.LogCaptureFixture) -> None:
    with hr.LogSender(client.stream("nowhere")) as sender:
        sender.send({"message": "lost"})
        assert sender.flush(20)
    assert sender.sent == 0
    assert sender.dropped == 1
    assert "nowhere" in told(caplog)[0]


def test_a_sender_that_is_closed_drops_what_comes(logs: hr.Stream, caplog: pytest.LogCaptureFixture) -> None:
    sender = hr.LogSender(logs)
    sender.send({"message": "in time"})
    sender.close()
    sender.close()
    sender.send({"message": "late"})
    assert sender.sent == 1
    assert sender.dropped == 1
    assert "closed" in told(caplog)[0]


def _log_in_child(sender: hr.LogSender) -> None:
    sender.send({"message": "child"})
    sender.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_sends_on_its_own(logs: hr.Stream) -> None:
    with hr.LogSender(logs) as sender:
        sender.send({"message": "parent"})
        child = multiprocessing.get_context("fork").Process(target=_log_in_child, args=(sender,))
        child.start()
        child.join(30)
        assert child.exitcode == 0
    assert sorted(event["message"] for event in stored(logs)) == ["child", "parent"]


def test_fields_are_added_only_while_a_request_is_handled(logs: hr.Stream) -> None:
    hr.add_log_fields(user="nobody")
    with hr.LogSender(logs) as sender:
        sender.send({"message": "plain"})
    assert stored(logs)[0]["context"] == {}


def test_plain_events_are_encoded_as_they_are() -> None:
    assert encode_event({"a": [1, 2.5, None, True], "b": datetime(2026, 1, 2, tzinfo=UTC)}) == (
        b'{"a":[1,2.5,null,true],"b":"2026-01-02T00:00:00Z"}'
    )
