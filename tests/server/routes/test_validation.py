"""Appends under a schema: what fits is stored just as it was sent, what does not is named and leaves no trace."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from server.registries import TEXT, WHOLE, append, evolve, installed, post, registry, rename, shape

if TYPE_CHECKING:
    import httpx2
    from tests.server.conftest import Api

JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]


def failures(response: httpx2.Response) -> list[tuple[int, str]]:
    """Which entries are named, and where in them."""
    assert response.status_code == 400, response.text
    found = response.json()["error"]["failures"]
    assert all(failure["reason"] for failure in found)
    return [(failure["index"], failure["pointer"]) for failure in found]


# -- what is refused


def test_every_failing_event_is_named_with_its_place_and_reason(api: Api, code_of: Code) -> None:
    path = installed(api, shape("tags", id=WHOLE, tags={"type": "array", "items": TEXT}))
    events = [
        {"id": 1},
        {"id": "one"},
        {"id": 2, "tags": ["a"]},
        {"id": 3, "tags": ["a", 4, "b", None]},
        {},
        {"id": 4, "more": 1},
        "text",
        {"id": 5},
    ]
    refused = api.post(path, events)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert failures(refused) == [(1, "/id"), (3, "/tags/1"), (3, "/tags/3"), (4, ""), (5, ""), (6, "")]
    reasons = [failure["reason"] for failure in refused.json()["error"]["failures"]]
    assert "integer" in reasons[0] and "required" in reasons[3] and "more" in reasons[4]
    assert "event 2" in refused.json()["error"]["message"]


@pytest.mark.parametrize("body", [b'[{"id":"a"},{"id":"\xff"}]', b'[{"id":"\xc3"}]', b'{"id":"\xff"}'])
def test_what_is_not_utf_8_is_refused_before_it_is_looked_at(api: Api, body: bytes) -> None:
    path = installed(api, shape(id=TEXT))
    refused = api.post(path, body, JSON)
    assert refused.status_code == 400
    assert refused.json()["error"]["field"] == "body"
    assert "not UTF-8" in refused.json()["error"]["message"]


@pytest.mark.parametrize("body", [b'[{"id":1},{"id":2}]', b' [ {"id":1} , {"id":2} ]\n', b'[{"id":1},{"id":2.0}]'])
def test_an_array_is_stored_the_same_whichever_way_it_was_found_to_fit(api: Api, body: bytes) -> None:
    path = installed(api, shape(id=WHOLE))
    assert api.post(path, body, JSON).status_code == 204
    assert api.get(path).json() == [{"id": 1}, {"id": 2}]
    assert api.post(path, b"[]", JSON).status_code == 400


def test_one_bad_event_refuses_the_request_and_leaves_nothing(api: Api) -> None:
    path = installed(api, shape(id=WHOLE))
    tail = append(api, path, {"id": 1})
    etag = api.get(path).headers["etag"]
    appended = api.metric("headrace_appended_events_total")
    assert failures(api.post(path, [{"id": 2}, {"id": "3"}, {"id": 4}])) == [(1, "/id")]
    assert api.offset(path) == tail
    assert api.get(path).headers["etag"] == etag
    assert api.get(path).json() == [{"id": 1}]
    assert api.metric("headrace_appended_events_total") == appended


def test_the_list_of_failures_is_bounded_and_says_so(api: Api) -> None:
    path = installed(api, shape(id=WHOLE))
    many = 5_000
    refused = api.post(path, [{"id": 0}, *({"id": "x"} for _ in range(many))])
    found = failures(refused)
    assert [index for index, _ in found] == list(range(1, 22))
    assert "others" in refused.json()["error"]["failures"][-1]["reason"]
    assert len(refused.content) < 10_000


def test_what_was_sent_is_not_repeated_in_the_reason(api: Api) -> None:
    path = installed(api, shape(secret={"type": "string", "maxLength": 3}))
    refused = api.post(path, [{"secret": "hunter2" * 1000}])
    assert failures(refused) == [(0, "/secret")]
    assert b"hunter2" not in refused.content


@pytest.mark.parametrize("body", [b'{"id":"x"}', b'[{"id":"x"}]', b' {"id" : "x"} '])
def test_a_single_value_is_held_to_the_schema_too(api: Api, body: bytes) -> None:
    path = installed(api, shape(id=WHOLE))
    assert failures(api.post(path, body, JSON)) == [(0, "/id")]
    assert api.post(path, body.replace(b'"x"', b"1"), JSON).status_code == 204
    assert api.get(path).json() == [{"id": 1}]


def test_bodies_that_come_another_way_are_held_to_the_schema_too(api: Api) -> None:
    path = installed(api, shape(id=WHOLE, pad=TEXT))
    for pad in ("", "x" * 400_000):
        bad, good = ([{"id": value, "pad": pad}] for value in ("no", 1))
        assert failures(api.post(path, bad)) == [(0, "/id")]
        assert api.post(path, good).status_code == 204
    packed = {**JSON, "content-encoding": "gzip"}
    assert failures(api.post(path, gzip.compress(b'[{"id":"x","pad":""}]'), packed)) == [(0, "/id")]
    assert api.post(path, gzip.compress(b'[{"id":3,"pad":""}]'), packed).status_code == 204
    assert [event["id"] for event in api.get(path).json()] == [1, 1, 3]


def test_a_refused_append_does_not_count_for_its_writer(api: Api) -> None:
    path = installed(api, shape(id=WHOLE))
    triple = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    assert failures(api.post(path, [{}], triple)) == [(0, "")]
    assert api.post(path, [{"id": 1}], triple).status_code == 200
    assert failures(api.post(path, [{}], {"stream-seq": "b"})) == [(0, "")]
    assert api.post(path, [{"id": 2}], {"stream-seq": "a"}).status_code == 204
    assert failures(api.post(path, [{}], {"stream-closed": "true"})) == [(0, "")]
    assert "stream-closed" not in api.head(path).headers
    assert api.get(path).json() == [{"id": 1}, {"id": 2}]


def test_a_stream_with_a_schema_can_be_closed(api: Api) -> None:
    for more in ({}, {"routingKey": {"jsonPointer": "/id", "required": True}}):
        path = installed(api, shape(id=TEXT), **more)
        assert api.post(path, headers={"stream-closed": "true"}).status_code == 204
        other = installed(api, shape(id=TEXT), **more)
        assert api.post(other, [{"id": "last"}], {"stream-closed": "true"}).status_code == 204
        assert api.get(other).headers["stream-closed"] == api.get(path).headers["stream-closed"] == "true"


@pytest.mark.parametrize("pad", ["", "x" * 100_000], ids=["short", "long"])
def test_that_a_stream_is_closed_comes_before_an_event_that_does_not_fit(api: Api, pad: str) -> None:
    path = installed(api, shape(id=TEXT))
    assert failures(api.post(path, [{"id": "x", "pad": pad}])) == [(0, "")]
    api.post(path, headers={"stream-closed": "true"})
    refused = api.post(path, [{"id": "x", "pad": pad}])
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "stream_closed"
    assert refused.headers["stream-closed"] == "true"
    assert refused.headers["stream-next-offset"] == api.offset(path)


def test_what_a_producer_repeats_is_a_repetition_whatever_the_schema_is_now(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    first = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    assert api.post(path, [{"a": 1}], first).status_code == 200
    evolve(api, path, shape(b=WHOLE), rename("a", "b"))
    again = api.post(path, [{"a": 1}], first)
    assert again.status_code == 204
    assert again.headers["producer-seq"] == "0"
    assert failures(api.post(path, [{"a": 2}], {**first, "producer-seq": "1"})) != []
    assert api.post(path, [{"b": 2}], {**first, "producer-seq": "1"}).status_code == 200
    assert api.get(path).json() == [{"b": 1}, {"b": 2}]


def test_appends_are_held_to_the_newest_version(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1})
    evolve(api, path, shape(b=WHOLE), rename("a", "b"))
    assert {index for index, _ in failures(api.post(path, [{"a": 2}]))} == {0}
    append(api, path, {"b": 2})
    assert api.get(path).json() == [{"b": 1}, {"b": 2}]


# -- what a schema may say


def test_a_schema_may_be_a_boolean(api: Api) -> None:
    nothing = installed(api, False)
    assert failures(api.post(nothing, [1, {}])) == [(0, ""), (1, "")]
    anything = installed(api, True)
    append(api, anything, 1, {}, None, "x", [[]])
    assert api.get(anything).json() == [1, {}, None, "x", [[]]]


def test_references_within_the_document_are_followed(api: Api) -> None:
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"name": {"$ref": "#/$defs/name"}, "inner": {"$ref": "#/$defs/node"}},
                "required": ["name"],
            },
            "name": {"type": "string", "minLength": 1},
        },
    }
    path = installed(api, tree)
    append(api, path, {"name": "a", "inner": {"name": "b", "inner": {"name": "c"}}})
    assert failures(api.post(path, [{"name": "a", "inner": {"name": "b", "inner": {"name": ""}}}])) == [
        (0, "/inner/inner/name")
    ]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"prefixItems": [WHOLE], "items": False}, [1], ["x"]),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [WHOLE]}, [1], ["x"]),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "items": [WHOLE]}, [1, "x"], ["x"]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [WHOLE]}, [1, "x"], ["x"]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [WHOLE], "maxItems": 1}, ["x"], [1, 2]),
        ({"$schema": "http://json-schema.org/draft-06/schema#", "exclusiveMinimum": 1}, 2, 1),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}, 2, 1),
    ],
)
def test_a_schema_is_read_by_the_draft_it_names(api: Api, schema: dict[str, Any], good: Any, bad: Any) -> None:
    path = installed(api, schema)
    append(api, path, good)
    assert {index for index, _ in failures(api.post(path, [good, bad]))} == {1}


@pytest.mark.parametrize(
    "time",
    [
        "2026-05-04T10:11:12Z",
        "2026-05-04T10:11:12.1Z",
        "2026-05-04T10:11:12.123456789Z",
        "2026-05-04T10:11:12+05:30",
        "2026-05-04T10:11:12.5-00:45",
        "2024-02-29T23:59:59Z",
    ],
)
def test_a_date_time_is_taken(api: Api, time: str) -> None:
    path = installed(api, shape(at={"type": "string", "format": "date-time"}))
    append(api, path, {"at": time})


@pytest.mark.parametrize(
    "time",
    [
        "",
        "now",
        "2026-05-04",
        "2026-05-04T10:11:12",
        "2026-05-04 10:11:12Z",
        "2026-05-04T10:11Z",
        "2026-05-04T10:11:12.Z",
        "2026-05-04T10:11:12.1234567890Z",
        "2026-05-04T10:11:12+0530",
        "2026-13-04T10:11:12Z",
        "2026-02-30T10:11:12Z",
        "2025-02-29T10:11:12Z",
        "2026-05-04T24:11:12Z",
        "2026-05-04T10:60:12Z",
        "1777889472",
    ],
)
def test_what_is_no_date_time_is_refused(api: Api, time: str) -> None:
    path = installed(api, {"type": "object", "properties": {"at": {"format": "date-time"}}})
    refused = api.post(path, [{"at": time}])
    assert failures(refused) == [(0, "/at")]
    assert "date-time" in refused.json()["error"]["failures"][0]["reason"]
    append(api, path, {"at": 7})  # a format speaks of strings only


@pytest.mark.parametrize("name", ["email", "uri", "uuid", "date", "ipv4", "regex", "no-such-format"])
def test_other_formats_only_describe(api: Api, name: str) -> None:
    append(api, installed(api, {"type": "string", "format": name}), "((")


# -- what is stored


SPELLED = (
    b'{"big":9007199254740993,"bigger":-123456789012345678901234567890,"one":1.0,"hundred":1e2,"small":1E-7,'
    b'"exact":0.1000000000000000055511151231257827,"zero":-0.0,"text":"\\u00e9\\/\\n\\ud83d\\ude00","z":1,"a":{"10":1,"9":2}}'
)


def test_events_are_stored_just_as_they_were_sent(api: Api) -> None:
    path = installed(api, {"type": "object", "properties": {"one": WHOLE, "hundred": WHOLE, "big": WHOLE}})
    spaced = SPELLED.replace(b":", b" : ", 3).replace(b",", b"\n,\t", 2)
    for body in (SPELLED, b"[" + SPELLED + b"," + spaced + b"]"):
        assert api.post(path, body, JSON).status_code == 204
    assert api.get(path).content == b"[" + b",".join([SPELLED, SPELLED, spaced]) + b"]"
    assert api.get(path, format="raw").content == SPELLED + SPELLED + spaced


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"maximum": 9007199254740992}, b"9007199254740992", b"9007199254740993"),
        ({"const": 9007199254740993}, b"9007199254740993", b"9007199254740992"),
        ({"exclusiveMinimum": 18446744073709551616}, b"18446744073709551617", b"18446744073709551616"),
        ({"type": "integer"}, b"1.0", b"1.5"),
        ({"type": "integer"}, b"1e2", b"1e-2"),
        ({"multipleOf": 0.01}, b"4.35", b"4.355"),
        ({"enum": [1]}, b"1.0", b"1.1"),
    ],
)
def test_numbers_are_judged_by_their_digits(api: Api, schema: dict[str, Any], good: bytes, bad: bytes) -> None:
    path = installed(api, schema)
    assert api.post(path, good, JSON).status_code == 204
    assert failures(api.post(path, bad, JSON)) == [(0, "")]
    assert api.get(path).content == b"[" + good + b"]"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"a":1,"a":1}', (0, "/a")),
        (b'{"a":1,"\\u0061":2}', (0, "/a")),
        (b'[{"a":1},{"b":{"c":[{"d":1,"e":2,"d":3}]}}]', (1, "/b/c/0/d")),
    ],
)
def test_a_repeated_key_is_refused_where_there_is_a_schema(api: Api, body: bytes, place: tuple[int, str]) -> None:
    with_schema, without = installed(api, True), api.stream()
    assert failures(api.post(with_schema, body, JSON)) == [place]
    assert api.get(with_schema).json() == []
    assert api.post(without, body, JSON).status_code == 204
    assert api.get(without).content == (body if body[:1] == b"[" else b"[" + body + b"]")
    assert post(api, without, routingKey={"jsonPointer": "/k", "required": False}).status_code == 200
    assert api.post(without, body, JSON).status_code == 204  # a routing key is no schema


def test_names_that_only_look_repeated_are_taken(api: Api) -> None:
    path = installed(api, True)
    body = b'{"a":{"a":1},"b":{"a":2},"A":3,"":4," ":5,"c":"\\"a\\":1,\\"a\\":2","d":[{"a":1},{"a":1}]}'
    assert api.post(path, body, JSON).status_code == 204
    assert api.get(path).content == b"[" + body + b"]"


def test_a_refused_event_does_not_stop_later_ones(api: Api) -> None:
    path = installed(api, shape(id=WHOLE))
    for number in range(20):
        assert api.post(path, [{"id": str(number)}]).status_code == 400
        append(api, path, {"id": number})
    assert [event["id"] for event in api.get(path).json()] == list(range(20))
    assert registry(api, path)["boundaries"] == [{"offset": 0, "version": 1}]
