from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api, Wire

START = "0" * 26
JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]

# -- appending


def test_bytes_become_one_entry_whatever_they_are(api: Api) -> None:
    path = api.octets(b"\x00\xff\r\n", bytes(range(256)))
    assert api.get(path).content == b"\x00\xff\r\n" + bytes(range(256))


def test_an_append_answers_where_it_ended(api: Api) -> None:
    path = api.stream()
    offsets = [api.post(path, body).headers["stream-next-offset"] for body in ([1], [2, 3], {"x": 4})]
    assert offsets == sorted(set(offsets))
    assert api.offset(path) == offsets[-1]
    assert api.get(path, offset=offsets[0]).json() == [2, 3, {"x": 4}]
    assert api.get(path, offset=offsets[1]).json() == [{"x": 4}]


def test_arrays_are_flattened_by_one_level(api: Api) -> None:
    path = api.stream()
    for body in ([[1, 2], [3]], [[[]]], {"a": []}, "text", None, True, 0):
        assert api.post(path, json.dumps(body).encode(), JSON).status_code == 204
    assert api.get(path).json() == [[1, 2], [3], [[]], {"a": []}, "text", None, True, 0]


def test_json_comes_back_as_it_was_spelled(api: Api) -> None:
    spelled = [
        b"123456789012345678901234567890", b"1.0", b"-0.0", b"1e400", b'{"b":1,"a":2,"a":3}', b'{"2":0,"1":0}',
        b'"\\u00e9\\/"', '"\u00e9\u2028"'.encode(), b'{ "spaced" : [ 1 , 2 ] }',
    ]  # fmt: skip
    path = api.stream()
    assert api.post(path, b"[" + b",".join(spelled) + b"]", JSON).status_code == 204
    assert api.get(path).content == b"[" + b",".join(spelled) + b"]"
    assert api.get(path, format="raw").content == b"".join(spelled)


def test_one_bad_element_refuses_all_of_them(api: Api, code_of: Code) -> None:
    path = api.stream()
    refused = api.post(path, b'[1, 2, {"a": tru}]', JSON)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.offset(path) == START


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b"", b" "])
def test_nothing_to_append_is_refused(api: Api, code_of: Code, body: bytes) -> None:
    refused = api.post(api.stream(), body, JSON)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


def test_a_body_needs_a_type(server: ServerProcess, api: Api, connect: Callable[..., Wire]) -> None:
    answer = connect(server).request("POST", api.stream(), b"1").answer()
    assert answer.status == 400
    assert answer.code() == "bad_request"


@pytest.mark.parametrize("given", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json;x=y"])
def test_parameters_and_letter_case_of_the_type_do_not_matter(api: Api, given: str) -> None:
    path = api.stream()
    assert api.post(path, b"[1]", {"content-type": given}).status_code == 204
    assert api.get(path).headers["content-type"] == "application/json"


@pytest.mark.parametrize("given", ["text/plain", "application/jsonp", "application/json, text/plain", "", "\xff"])
def test_another_type_conflicts(server: ServerProcess, api: Api, connect: Callable[..., Wire], given: str) -> None:
    path = api.stream()
    answer = connect(server).request("POST", path, b"1", f"Content-Type: {given}").answer()
    assert answer.status == 409
    assert answer.code() == "conflict"
    assert json.loads(answer.body)["error"]["content_type"] == "application/json"
    assert api.offset(path) == START


def test_the_type_of_a_read_is_literally_the_creators(api: Api) -> None:
    path = api.octets(kind="text/plain; charset=ISO-8859-1")
    assert api.post(path, b"\xe9", {"content-type": "text/plain"}).status_code == 204
    assert api.get(path).headers["content-type"] == "text/plain; charset=ISO-8859-1"
    assert api.get(path).content == b"\xe9"


def test_an_unknown_stream_is_not_made_by_appending(api: Api, code_of: Code) -> None:
    path = api.name()
    refused = api.post(path, [1])
    assert refused.status_code == 404
    assert code_of(refused) == "not_found"
    assert api.head(path).status_code == 404


def test_a_key_of_any_text_is_kept(api: Api) -> None:
    path = api.stream()
    for number, key in enumerate(["user/1", "a b", "ключ", "%", ""]):
        assert api.call("POST", path, [number], {"stream-key": key.encode()}).status_code == 204  # type: ignore[dict-item]
    assert api.get(path, key="ключ").json() == [2]
    assert api.get(path, key="%").json() == [3]
    assert api.get(path, key="").json() == [0, 1, 2, 3, 4]


# -- order: Stream-Seq, producers, If-Match


def test_stream_seq_must_grow_byte_by_byte(api: Api, code_of: Code) -> None:
    path = api.stream()
    for given, status in (("2", 204), ("10", 409), ("2", 409), ("20", 204), ("a", 204), ("B", 409), ("é", 204)):
        answer = api.call("POST", path, [given], {"stream-seq": given.encode()})  # type: ignore[dict-item]
        assert answer.status_code == status, given
        if status == 409:
            assert code_of(answer) == "conflict"
            assert answer.headers["stream-received-seq"] == given
    assert answer.headers.get("stream-expected-seq") is None
    assert api.post(path, ["unordered"]).status_code == 204
    assert api.get(path).json() == ["2", "20", "a", "é", "unordered"]


def test_a_refused_sequence_does_not_use_up_the_producers_number(api: Api) -> None:
    path = api.stream()
    producer = {"producer-id": "p", "producer-epoch": "0"}
    assert api.post(path, [1], {**producer, "producer-seq": "0", "stream-seq": "b"}).status_code == 200
    assert api.post(path, [2], {**producer, "producer-seq": "1", "stream-seq": "a"}).status_code == 409
    assert api.post(path, [3], {**producer, "producer-seq": "1", "stream-seq": "c"}).status_code == 200
    assert api.get(path).json() == [1, 3]


def test_a_refused_precondition_does_not_use_up_the_producers_number(api: Api) -> None:
    path = api.stream(0)
    producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    assert api.post(path, [1], {**producer, "if-match": START}).status_code == 412
    assert api.post(path, [2], {**producer, "if-match": api.offset(path)}).status_code == 200
    repeated = api.post(path, [3], {**producer, "if-match": START})
    assert repeated.status_code == 204
    assert repeated.headers["producer-seq"] == "0"
    assert api.get(path).json() == [0, 2]


@pytest.mark.parametrize(
    "triple",
    [
        {"producer-id": "p"},
        {"producer-id": "p", "producer-epoch": "0"},
        {"producer-epoch": "0", "producer-seq": "0"},
        {"producer-id": "", "producer-epoch": "0", "producer-seq": "0"},
        {"producer-id": "p", "producer-epoch": "-1", "producer-seq": "0"},
        {"producer-id": "p", "producer-epoch": "0", "producer-seq": "1.0"},
        {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(2**53)},
        {"producer-id": "p", "producer-epoch": "0x1", "producer-seq": "0"},
        {"producer-id": "p" * 1025, "producer-epoch": "0", "producer-seq": "0"},
    ],
)
def test_a_broken_producer_triple_is_refused(api: Api, code_of: Code, triple: dict[str, str]) -> None:
    path = api.stream()
    refused = api.post(path, [1], triple)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.offset(path) == START


def test_the_producers_answers_name_what_they_expect(api: Api, code_of: Code) -> None:
    path = api.stream()

    def send(epoch: int, seq: int) -> Any:
        triple = {"producer-id": "p", "producer-epoch": str(epoch), "producer-seq": str(seq)}
        return api.post(path, [[epoch, seq]], triple)

    gap = send(1, 3)
    assert gap.status_code == 409
    assert code_of(gap) == "producer_gap"
    assert gap.headers["producer-expected-seq"] == "0"
    assert [send(1, seq).status_code for seq in (0, 1, 1, 0)] == [200, 200, 204, 204]
    gap = send(1, 5)
    assert gap.headers["producer-expected-seq"] == "2"
    assert gap.headers["producer-received-seq"] == "5"
    fenced = send(0, 0)
    assert fenced.status_code == 403
    assert code_of(fenced) == "producer_fenced"
    assert fenced.headers["producer-epoch"] == "1"
    assert send(2, 1).status_code == 400
    assert send(2, 0).status_code == 200
    assert api.get(path).json() == [[1, 0], [1, 1], [2, 0]]


def test_compare_and_append_moves_only_the_tail_it_names(api: Api, code_of: Code) -> None:
    path = api.stream()
    tail = START
    for number in range(3):
        done = api.post(path, [number], {"if-match": tail})
        assert done.status_code == 204
        stale = api.post(path, ["stale"], {"if-match": tail})
        tail = done.headers["stream-next-offset"]
        assert stale.status_code == 412
        assert code_of(stale) == "precondition_failed"
        assert stale.headers["stream-next-offset"] == tail
        assert stale.json()["error"]["next_offset"] == tail
    assert api.get(path).json() == [0, 1, 2]


def test_every_spelling_of_the_tail_matches(api: Api) -> None:
    path = api.stream()
    assert api.post(path, [0], {"if-match": "-1"}).status_code == 204
    spellings: list[Callable[[str], str]] = [lambda o: f'"{o}"', str.lower, lambda _: "*"]
    for spell in spellings:
        assert api.post(path, [1], {"if-match": spell(api.offset(path))}).status_code == 204
    assert api.post(path, [2], {"if-match": "-1"}).status_code == 412


@pytest.mark.parametrize("given", ["", "now", "0", "1", 'W/"x"', "x" * 26, "00000000000000000004000001", "a, b"])
def test_a_precondition_that_is_no_offset_is_refused(api: Api, code_of: Code, given: str) -> None:
    path = api.stream()
    refused = api.post(path, [1], {"if-match": given})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.offset(path) == START


def test_an_offset_of_another_life_or_of_the_future_never_matches(api: Api) -> None:
    path, other = api.stream(1), api.stream(1, 2)
    future = api.post(other, [3]).headers["stream-next-offset"]
    assert api.delete(other).status_code == 204
    other = api.stream(1)
    for offset in (future, api.offset(other)):
        refused = api.post(path, [2], {"if-match": offset})
        assert refused.status_code == 412
        assert refused.headers["stream-next-offset"] == api.offset(path)


def test_closing_and_compare_are_one_step(api: Api) -> None:
    path = api.stream(1)
    assert api.post(path, headers={"stream-closed": "true", "if-match": START}).status_code == 412
    assert "stream-closed" not in api.head(path).headers
    closed = api.post(path, [2], {"stream-closed": "true", "if-match": api.offset(path)})
    assert closed.status_code == 204
    assert closed.headers["stream-closed"] == "true"
    assert api.post(path, [3], {"if-match": START}).status_code == 409


def test_of_many_equal_comparers_one_wins(api: Api) -> None:
    path = api.stream()
    statuses: list[int] = []

    def compete(number: int) -> None:
        statuses.append(api.post(path, [number], {"if-match": START}).status_code)

    threads = [threading.Thread(target=compete, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [204] + [412] * 15
    assert len(api.get(path).json()) == 1


# -- closing


@pytest.mark.parametrize("spelled", ["true", "TRUE", "True", "tRuE"])
def test_true_closes_in_any_letter_case(api: Api, spelled: str) -> None:
    path = api.stream(1)
    closed = api.post(path, headers={"stream-closed": spelled})
    assert closed.status_code == 204
    assert closed.headers["stream-closed"] == "true"
    assert closed.headers["stream-next-offset"] == api.offset(path)


@pytest.mark.parametrize("spelled", ["false", "1", "yes", "", "true,true", "truth"])
def test_anything_else_does_not_close(api: Api, spelled: str) -> None:
    path = api.stream(1)
    assert api.post(path, [2], {"stream-closed": spelled}).status_code == 204
    assert api.post(path, headers={"stream-closed": spelled}).status_code == 400
    assert "stream-closed" not in api.head(path).headers


def test_a_closed_stream_says_so_and_where_it_ended(api: Api, code_of: Code) -> None:
    path = api.stream(1)
    assert api.post(path, [2], {"stream-closed": "true"}).status_code == 204
    for refused in (api.post(path, [3]), api.post(path, b"x", {"content-type": "text/plain"})):
        assert refused.status_code == 409
        assert code_of(refused) == "stream_closed"
        assert refused.headers["stream-closed"] == "true"
        assert refused.headers["stream-next-offset"] == api.offset(path)
    assert api.post(path, headers={"stream-closed": "true", "content-type": "text/odd"}).status_code == 204
    assert api.get(path).json() == [1, 2]


def test_the_closing_producer_may_repeat_itself(api: Api) -> None:
    path = api.stream()
    closing = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0", "stream-closed": "true"}
    assert api.post(path, [1], closing).status_code == 200
    again = api.post(path, ["other"], closing)
    assert again.status_code == 204
    assert again.headers["stream-closed"] == "true"
    assert api.post(path, [2], {**closing, "producer-seq": "1"}).status_code == 409
    assert api.get(path).json() == [1]


@pytest.mark.parametrize("close", [{}, {"stream-closed": "true"}], ids=["plain", "closing"])
@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"{", JSON), (b"[]", JSON), (b'["\xff"]', JSON), (b"[1]", {}), (b"[1]", {"content-type": "text/plain"})],
)
def test_that_a_stream_is_closed_comes_before_what_is_wrong_with_the_body(
    api: Api, code_of: Code, body: bytes, kind: dict[str, str], close: dict[str, str]
) -> None:
    path = api.stream(1)
    assert api.post(path, body, {**kind, **close}).status_code in (400, 409)
    assert "stream-closed" not in api.head(path).headers
    api.post(path, headers={"stream-closed": "true"})
    refused = api.post(path, body, {**kind, **close})
    assert refused.status_code == 409
    assert code_of(refused) == "stream_closed"
    assert refused.headers["stream-closed"] == "true"
    assert refused.headers["stream-next-offset"] == api.offset(path)


def test_the_closing_producer_may_repeat_itself_with_any_body(api: Api, code_of: Code) -> None:
    path = api.stream()
    closing = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0", "stream-closed": "true"}
    assert api.post(path, [1], closing).status_code == 200
    for body, kind in ((b"{", JSON), (b"[2]", {}), (b"[2]", {"content-type": "text/plain"})):
        again = api.post(path, body, {**kind, **closing})
        assert again.status_code == 204
        assert again.headers["producer-seq"] == "0"
        assert again.headers["stream-closed"] == "true"
        other = api.post(path, body, {**kind, **closing, "producer-seq": "1"})
        assert other.status_code == 409
        assert code_of(other) == "stream_closed"
    assert api.get(path).json() == [1]


def test_an_empty_body_is_nothing_to_append_on_a_closed_stream_too(api: Api, code_of: Code) -> None:
    path = api.stream()
    api.post(path, headers={"stream-closed": "true"})
    refused = api.post(path, b"", JSON)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


# -- describing and deleting


def test_head_describes_without_a_body(api: Api) -> None:
    headers = {"stream-ttl": "1h", "stream-retention-age": "90m", "stream-retention-bytes": "1000"}
    path = api.stream(1, headers=headers)
    found = api.head(path)
    assert found.status_code == 200
    assert found.content == b""
    assert found.headers["cache-control"] == "no-store"
    assert found.headers["stream-next-offset"] == found.headers["stream-end-offset"]
    assert found.headers["stream-ttl"] == "3600"
    assert found.headers["stream-expires-at"].endswith("Z")
    assert "stream-closed" not in found.headers


def test_a_deleted_stream_is_unknown_to_a_second_deletion_as_to_everything_else(api: Api, code_of: Code) -> None:
    path = api.stream(1)
    assert api.delete(path).status_code == 204
    for response in (api.delete(path), api.delete(path), api.get(path), api.post(path, [1]), api.delete(api.name())):
        assert response.status_code == 404
        assert code_of(response) == "not_found"


def test_a_deletion_that_names_a_tail_is_refused(api: Api, code_of: Code) -> None:
    path = api.stream(1)
    for given in (START, api.offset(path), "*"):
        refused = api.call("DELETE", path, headers={"if-match": given})
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"
        assert refused.json()["error"]["field"] == "If-Match"
    assert api.get(path).json() == [1]


def test_a_name_starts_anew_after_deletion(api: Api) -> None:
    path = api.name()
    for kind, producer in (("text/plain", b"a"), ("text/html", b"b")):
        assert api.put(path, headers={"content-type": kind}).status_code == 201
        triple = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0", "stream-seq": "1"}
        assert api.post(path, producer, {"content-type": kind, **triple}).status_code == 200
        assert api.get(path).content == producer
        assert api.delete(path).status_code == 204
