from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from server.pipelines import Payload, Pipeline

if TYPE_CHECKING:
    from conftest import ServerProcess
    from server.conftest import Api

FINE = {"user": "u", "amount": 1.0, "n": 1}


@pytest.fixture
def pipeline(api: Api) -> Pipeline:
    made = Pipeline(api)
    made.descriptors[made.event]["schema"] |= {
        "flag": {"type": "bool", "required": False},
        "blob": {"type": "bytes", "required": False},
        "at": {"type": "datetime", "required": False},
        "place": {"type": "str", "default": "eu"},
        "grade": {"type": "i64", "required": False, "default": 5},
    }
    assert made.register().status_code == 200
    return made


def push(pipeline: Pipeline, body: Any, **headers: str) -> Any:
    return pipeline.api.post(f"/v1/push/{pipeline.event}", body, headers)


def stored(pipeline: Pipeline) -> list[Payload]:
    found: list[Payload] = pipeline.api.get(f"/v1/stream/events/{pipeline.event}").json()
    return found


def filled(event: Payload) -> Payload:
    return {"place": "eu", "grade": 5, **event}


def test_an_event_is_acknowledged_with_its_offset_and_the_version(pipeline: Pipeline) -> None:
    answer = push(pipeline, FINE)
    assert answer.status_code == 200
    tail = pipeline.api.offset(f"/v1/stream/events/{pipeline.event}")
    assert answer.json() == {
        "ack": True, "offset": tail, "registry_version": pipeline.version(), "idempotent_replay": False,
    }  # fmt: skip
    assert stored(pipeline) == [filled(FINE)]


@pytest.mark.parametrize("body", [{"fields": FINE}, [FINE], [{"fields": FINE}]], ids=["fields", "array", "both"])
def test_events_come_bare_or_in_fields_alone_or_in_arrays(pipeline: Pipeline, body: Any) -> None:
    assert push(pipeline, body).status_code == 200
    assert stored(pipeline) == [filled(FINE)]


def test_an_event_may_have_a_field_of_the_name_fields(api: Api) -> None:
    made = Pipeline(api)
    made.descriptors[made.event]["schema"]["fields"] = {"type": "str", "required": False}
    assert made.register().status_code == 200
    assert push(made, {**FINE, "fields": "x"}).status_code == 200
    assert push(made, {"fields": FINE}).json()["error"]["code"] == "missing_field"


def test_defaults_are_filled_in_where_a_field_is_left_out(pipeline: Pipeline) -> None:
    given = [FINE, {**FINE, "place": "us"}, {**FINE, "grade": 1, "place": "us"}, {**FINE, "grade": None}]
    pipeline.push(*given)
    assert stored(pipeline) == [filled(event) for event in given]
    assert pipeline.api.post(f"/v1/stream/events/{pipeline.event}", [FINE]).status_code == 204
    assert stored(pipeline)[-1] == filled(FINE)


@pytest.mark.parametrize(
    "event",
    [
        {**FINE, "n": 3.0},
        {**FINE, "n": 2.0**60},
        {**FINE, "n": 2**63 - 1},
        {**FINE, "n": -(2**63)},
        {**FINE, "amount": 3},
        {**FINE, "amount": -1e308},
        {**FINE, "flag": False, "blob": "aGk=", "at": "2026-05-04T10:11:12Z"},
        {**FINE, "flag": None, "note": None},
        {**FINE, "user": "tab\tand\nline, ünï"},
    ],
)
def test_values_of_the_right_type_are_taken(pipeline: Pipeline, event: Payload) -> None:
    assert push(pipeline, event).status_code == 200
    assert stored(pipeline) == [filled(event)]


@pytest.mark.parametrize(
    ("event", "code", "path"),
    [
        ({"user": "u", "amount": 1.0}, "missing_field", "/n"),
        ({**FINE, "bogus": 1}, "unknown_field", "/bogus"),
        ({**FINE, "n": "42"}, "schema_mismatch", "/n"),
        ({**FINE, "n": 1.5}, "schema_mismatch", "/n"),
        ({**FINE, "n": 2**63}, "schema_mismatch", "/n"),
        ({**FINE, "n": 2.0**63}, "schema_mismatch", "/n"),
        ({**FINE, "n": True}, "schema_mismatch", "/n"),
        ({**FINE, "n": None}, "schema_mismatch", "/n"),
        ({**FINE, "amount": "1.0"}, "schema_mismatch", "/amount"),
        ({**FINE, "flag": 1}, "schema_mismatch", "/flag"),
        ({**FINE, "blob": "not base64!"}, "schema_mismatch", "/blob"),
        ({**FINE, "at": "yesterday"}, "schema_mismatch", "/at"),
        ({**FINE, "user": ["u"]}, "schema_mismatch", "/user"),
    ],
)
def test_values_of_the_wrong_type_are_refused_alike_everywhere(
    pipeline: Pipeline, event: Payload, code: str, path: str, code_of: Callable[[Any], str]
) -> None:
    for refused in (push(pipeline, event), pipeline.api.post(f"/v1/stream/events/{pipeline.event}", [event])):
        assert refused.status_code == 400
        assert code_of(refused) == code
        assert refused.json()["error"]["path"] == path
    mixed = push(pipeline, [FINE, event])
    assert mixed.status_code == 200
    assert mixed.json()["results"][1]["error"]["code"] == code
    assert stored(pipeline) == [filled(FINE)]


@pytest.mark.parametrize("spelled", ["9007199254740992.5", "1e-400", "1.0000000000000000001"])
def test_a_number_that_only_looks_whole_as_a_double_is_refused(pipeline: Pipeline, spelled: str) -> None:
    answer = push(pipeline, f'{{"user":"u","n":{spelled},"amount":1}}'.encode(), **{"content-type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "schema_mismatch"
    assert error["path"] == "/n"


def test_infinity_is_no_number(pipeline: Pipeline) -> None:
    answer = push(pipeline, b'{"user":"u","n":1,"amount":1e400}', **{"content-type": "application/json"})
    assert answer.status_code == 400


def test_every_event_of_an_array_has_its_own_outcome(pipeline: Pipeline) -> None:
    given = [FINE, {"user": "u"}, {**FINE, "n": 2}, 7, {**FINE, "x": 1}, {**FINE, "n": 3}]
    answer = push(pipeline, given)
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [one.get("error", {}).get("code") for one in results] == [
        None, "missing_field", None, "schema_mismatch", "unknown_field", None,
    ]  # fmt: skip
    refused = {one["error"]["failures"][0]["index"] for one in results if "error" in one}
    assert refused == {1, 3, 4}
    offsets = [one["offset"] for one in results if "ack" in one]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == pipeline.api.offset(f"/v1/stream/events/{pipeline.event}")
    assert [event["n"] for event in stored(pipeline)] == [1, 2, 3]


def test_an_array_of_which_nothing_is_taken_is_refused(pipeline: Pipeline) -> None:
    answer = push(pipeline, [{"user": "u"}, {"bogus": 1}])
    assert answer.status_code == 400
    assert [one["error"]["code"] for one in answer.json()["results"]] == ["missing_field", "missing_field"]
    assert answer.json()["error"]["code"] == "missing_field"
    assert push(pipeline, []).status_code == 400


def test_who_pushes_to_what_is_no_event_source_is_told(pipeline: Pipeline, code_of: Callable[[Any], str]) -> None:
    plain = f"/v1/stream/events/Plain{pipeline.event}"
    assert pipeline.api.put(plain, headers={"content-type": "application/json"}).status_code == 201
    for name in (f"Plain{pipeline.event}", pipeline.derived, pipeline.table, "Nobody", "%2e%2e"):
        refused = pipeline.api.post(f"/v1/push/{name}", FINE)
        assert (refused.status_code, code_of(refused)) == (404, "unknown_event"), name
    assert pipeline.api.delete(plain).status_code == 204


def test_only_json_is_pushed(pipeline: Pipeline) -> None:
    assert push(pipeline, b"{}", **{"content-type": "text/plain"}).status_code == 415
    for body in (b"", b"{", b"\xff", b"[" * 100_000):
        assert push(pipeline, body, **{"content-type": "application/json"}).status_code == 400
    assert pipeline.api.get(f"/v1/push/{pipeline.event}").status_code == 405
    assert pipeline.api.post(f"/v1/push/{pipeline.event}?sync=1", FINE).status_code == 400


def test_long_arrays_are_pushed_too(pipeline: Pipeline) -> None:
    given = [{**FINE, "n": number, "note": "x" * 200} for number in range(3_000)]
    results = pipeline.push(*given)
    assert len({one["offset"] for one in results}) == len(given)
    row = pipeline.row(pipeline.table)
    assert row is not None and row["count"] == len(given)


# -- the same event twice


def test_a_repeated_key_answers_the_first_acknowledgement(pipeline: Pipeline) -> None:
    event = {**FINE, "id": "a"}
    first = push(pipeline, event).json()
    pipeline.push(FINE, FINE)
    again = push(pipeline, {**event, "amount": 99.0}).json()
    assert again == {**first, "idempotent_replay": True}
    assert len(stored(pipeline)) == 3
    row = pipeline.row(pipeline.table)
    assert row is not None and row["total"] == 3.0


def test_an_append_says_how_many_events_were_there(pipeline: Pipeline) -> None:
    path = f"/v1/stream/events/{pipeline.event}"
    first = pipeline.api.post(path, [{**FINE, "id": "a"}])
    assert "stream-deduplicated" not in first.headers
    pipeline.push(FINE)
    again = pipeline.api.post(path, [{**FINE, "id": "a"}])
    assert again.headers["stream-deduplicated"] == "1"
    assert again.headers["stream-next-offset"] == first.headers["stream-next-offset"]
    mixed = pipeline.api.post(path, [{**FINE, "id": i} for i in ("b", "a", "b", "c")])
    assert mixed.headers["stream-deduplicated"] == "2"
    assert mixed.headers["stream-next-offset"] == pipeline.api.offset(path)
    assert [event.get("id") for event in stored(pipeline)] == ["a", None, "b", "c"]


def test_keys_repeat_within_an_array(pipeline: Pipeline) -> None:
    results = pipeline.push(*({**FINE, "id": i} for i in ("a", "b", "a")))
    assert [one["idempotent_replay"] for one in results] == [False, False, True]
    assert results[0]["offset"] == results[2]["offset"] != results[1]["offset"]


def test_events_without_a_key_are_all_stored(pipeline: Pipeline) -> None:
    pipeline.push(FINE, FINE, {**FINE, "id": None})
    assert len(stored(pipeline)) == 3


def test_a_producer_and_a_key_go_together(pipeline: Pipeline) -> None:
    path = f"/v1/stream/events/{pipeline.event}"
    for seq in (0, 0, 1):
        headers = {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(seq)}
        answer = pipeline.api.post(path, [{**FINE, "id": "a"}], headers)
        assert answer.status_code in (200, 204)
    assert len(stored(pipeline)) == 1


def test_another_key_forgets_what_was_known(pipeline: Pipeline) -> None:
    pipeline.push({**FINE, "id": "a", "note": "n"})
    given = pipeline.changed()
    given[pipeline.event]["dedupe_key"] = "note"
    assert pipeline.register(given, force=True).status_code == 200
    results = pipeline.push({**FINE, "id": "a", "note": "n"}, {**FINE, "id": "b", "note": "n"})
    assert [one["idempotent_replay"] for one in results] == [False, True]


def test_keys_are_remembered_after_a_restart(start_server: Any, api_of: Callable[..., Api]) -> None:
    server: ServerProcess = start_server()
    made = Pipeline(api_of(server))
    assert made.register().status_code == 200
    first = push(made, {**FINE, "id": "a"}).json()
    server.kill()
    server.start()
    made.api = api_of(server)
    assert push(made, {**FINE, "id": "a"}).json() == {**first, "idempotent_replay": True}
    assert len(stored(made)) == 1


def test_pipelined_pushes_are_answered_in_order(server: ServerProcess, pipeline: Pipeline) -> None:
    place = urlsplit(server.url)
    requests = b""
    for number in range(20):
        body = json.dumps({**FINE, "n": number}).encode()
        head = f"POST /v1/push/{pipeline.event} HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
        requests += f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=8) as connection:
        connection.sendall(requests)
        received = b""
        while received.count(b'"ack":true') < 20:
            chunk = connection.recv(65536)
            assert chunk, received
            received += chunk
    assert [event["n"] for event in stored(pipeline)] == list(range(20))
