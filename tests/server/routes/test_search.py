"""Searching a stream over HTTP: what may be asked, what is answered, and what is said about it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from headrace.server.routes.route_table import openapi_document
from headrace.storage.keys import KeyStore
from server.registries import append, evolve, installed, name_of, rename, shape

if TYPE_CHECKING:
    from tests.conftest import StartServer
    from tests.server.conftest import Api

Code = Callable[[Any], str]
START = "0" * 26
COUNTS = (
    "indexed_segments", "indexed_segment_time_ms", "fts_section_get_ms", "fts_decode_ms", "fts_clause_estimate_ms",
    "scanned_segments", "scanned_segment_time_ms", "scanned_tail_docs", "scanned_tail_time_ms",
    "exact_candidate_time_ms", "candidate_doc_ids", "decoded_records", "json_parse_time_ms",
    "segment_payload_bytes_fetched", "sort_time_ms", "peak_hits_held",
)  # fmt: skip
MISSING = [
    f"possible_missing_{what}" for what in ("events_upper_bound", "uploaded_segments", "sealed_rows", "wal_rows")
]


def field(kind: str, pointer: str, version: int = 1, **more: Any) -> dict[str, Any]:
    analyzer = {"analyzer": "unicode_word_v1", "positions": True} if kind == "text" else {}
    return {"kind": kind, "bindings": [{"version": version, "jsonPointer": pointer}], **analyzer, **more}


SEARCH: dict[str, Any] = {
    "primaryTimestampField": "time",
    "defaultFields": [{"field": "message", "boost": 2}, {"field": "service"}],
    "aliases": {"ts": "time", "msg": "message"},
    "fields": {
        "time": field("date", "/time", column=True, sortable=True, exists=True),
        "service": field("keyword", "/service", exact=True, prefix=True, sortable=True, exists=True),
        "status": field("integer", "/status", exact=True, column=True, sortable=True),
        "path": field("keyword", "/path", exact=True, contains=True),
        "tags": field("keyword", "/tags", exact=True),
        "message": field("text", "/message", contains=True),
    },
}
OPEN: dict[str, Any] = {"type": "object"}


def stream(api: Api, *events: Any, search: dict[str, Any] = SEARCH, schema: Any = OPEN) -> str:
    path = installed(api, schema, search=search)
    if events:
        append(api, path, *events)
    return path


def search(api: Api, path: str, q: str, **more: Any) -> dict[str, Any]:
    answer = api.post(f"{path}/_search", {"q": q, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def numbers(found: dict[str, Any]) -> list[int]:
    return [hit["source"]["n"] for hit in found["hits"]]


def logs(count: int) -> list[dict[str, Any]]:
    words = ["timeout", "refused", "closed"]
    return [
        {
            "n": n,
            "time": f"2026-03-25T10:{n // 60:02}:{n % 60:02}Z",
            "service": f"api-{n % 3}",
            "status": 200 + n % 5,
            "message": f"Connection {words[n % 3]} by peer {n}",
        }
        for n in range(count)
    ]


# -- the answer


def validate(answer: Any) -> None:
    """Check an answer against the document."""
    document = openapi_document()
    described = document["paths"]["/v1/stream/{name}/_search"]["post"]["responses"]["200"]
    schema = described["content"]["application/json"]["schema"]
    jsonschema_rs.validate(schema | {"components": document["components"]}, answer)


def test_an_answer_has_every_field_that_is_promised(api: Api) -> None:
    path = stream(api, *logs(4))
    answer = api.post(f"{path}/_search", {"q": "service:api-1"})
    validate(answer.json())
    found = answer.json()
    assert (found["stream"], found["timed_out"], found["timeout_ms"]) == (path[11:], False, 3000)
    assert found["snapshot_end_offset"] == api.offset(path)
    assert found["total"] == {"value": 1, "relation": "eq"}
    assert found["next_search_after"] is None
    [hit] = found["hits"]
    assert hit["offset"] == hit["sort"][0]
    assert hit == {
        "offset": hit["offset"],
        "score": 0.0,
        "sort": [hit["offset"]],
        "fields": {
            "time": "2026-03-25T10:00:01Z",
            "service": "api-1",
            "status": 201,
            "message": "Connection refused by peer 1",
        },
        "source": logs(4)[1],
    }


def test_coverage_says_that_everything_was_seen(api: Api) -> None:
    path = stream(api, *logs(4))
    coverage = search(api, path, "has:time")["coverage"]
    assert coverage["mode"] == "complete" and coverage["complete"] is True
    assert coverage["stream_head_offset"] == coverage["visible_through_offset"] == api.offset(path)
    assert coverage["visible_from_offset"] == START
    assert coverage["visible_through_primary_timestamp_max"] == "2026-03-25T10:00:03Z"
    assert coverage["oldest_omitted_append_at"] is None
    assert [coverage[name] for name in MISSING] == [0] * 4
    assert (coverage["scanned_tail_docs"], coverage["indexed_segments"], coverage["scanned_segments"]) == (4, 0, 0)
    assert (coverage["candidate_doc_ids"], coverage["decoded_records"], coverage["peak_hits_held"]) == (4, 4, 4)
    assert coverage["index_families_used"] == []
    assert all(isinstance(coverage[name], int) for name in COUNTS)


def test_headers_repeat_the_coverage(api: Api) -> None:
    path = stream(api, *logs(4))
    answer = api.post(f"{path}/_search", {"q": "service:api-1", "timeout_ms": 2000})
    found, headers = answer.json(), answer.headers
    assert headers["search-timed-out"] == "false" and headers["search-timeout-ms"] == "2000"
    assert headers["search-took-ms"] == str(found["took_ms"])
    assert headers["search-total-relation"] == "eq" and headers["search-coverage-complete"] == "true"
    assert headers["search-index-families-used"] == ""
    for name in COUNTS:
        assert headers[f"search-{name.replace('_', '-')}"] == str(found["coverage"][name])
    assert headers["cache-control"] == "no-store"


def test_a_source_is_spelled_as_it_is_read(api: Api) -> None:
    path = stream(api)
    body = b'[{"n": 1.0, "service":"a","big":12345678901234567890123, "x":1e400,"status":5.0, "tags":["a",["b"],null]}]'
    assert api.post(path, body, {"content-type": "application/json"}).status_code == 204
    answer = api.post(f"{path}/_search", {"q": "service:a"})
    assert b'"source":' + body[1:-1] in answer.content
    assert b'"status":5.0' in answer.content and b'"tags":["a","b"]' in answer.content


def test_fields_are_alone_or_in_arrays_and_null_is_none(api: Api) -> None:
    path = stream(api, {"service": "a", "tags": ["x", ["y"]], "status": None, "path": [], "time": "never"})
    [hit] = search(api, path, "service:a")["hits"]
    assert hit["fields"] == {"service": "a", "tags": ["x", "y"], "time": "never"}


# -- queries


@pytest.mark.parametrize(
    ("q", "wanted"),
    [
        ("service:api-1", [4, 1]),
        ("service:api*", [5, 4, 3, 2, 1, 0]),
        ('service:"api-1"', [4, 1]),
        ("status:203", [3]),
        ("status:>=203", [4, 3]),
        ("status:<201 OR status:>203", [5, 4, 0]),
        ("ts:>=2026-03-25T10:00:04Z", [5, 4]),
        ("service:api-0 -status:200", [3]),
        ("NOT service:api-0 AND (status:201 OR status:202)", [2, 1]),
        ("has:tags", []),
        ("-has:tags status:204", [4]),
        ("contains:message:clos", [5, 2]),
        ("msg:connection msg:refused", [4, 1]),
        ('msg:"refused by"', [4, 1]),
        ('msg:"by refused"', []),
        ('msg:"refused b*"', [4, 1]),
        ("msg:refu*", [4, 1]),
        ("refused", [4, 1]),
        ("api-2", [5, 2]),
        ('"connection timeout" status:200', [0]),
    ],
)
def test_queries_find_what_they_mean(api: Api, q: str, wanted: list[int]) -> None:
    path = stream(api, *logs(6))
    assert numbers(search(api, path, q, sort=["offset"])) == wanted


def test_an_event_answers_if_any_of_its_values_does(api: Api) -> None:
    path = stream(api, {"n": 0, "tags": ["a", "b"]}, {"n": 1, "tags": "b"}, {"n": 2, "tags": []})
    assert numbers(search(api, path, "tags:b")) == [1, 0]
    assert numbers(search(api, path, "-tags:b")) == [2]


def test_words_must_stand_in_one_value(api: Api) -> None:
    path = stream(api, {"n": 0, "message": ["red apple", "green pear"]}, {"n": 1, "message": "green apple"})
    assert numbers(search(api, path, "msg:green-apple")) == [1]
    assert sorted(numbers(search(api, path, "msg:green msg:apple"))) == [0, 1]


def test_a_field_that_a_lens_moved_is_found_in_old_and_new_events(api: Api) -> None:
    first, second = (
        shape("code", "time", code={"type": "integer"}, time={}),
        shape("status", "time", status={}, time={}),
    )
    fields = {"time": field("date", "/time"), "status": field("integer", "/code", exact=True, column=True)}
    path = stream(
        api, {"code": 500}, {"code": 1}, search={"primaryTimestampField": "time", "fields": fields}, schema=first
    )
    moved = {**fields, "status": {**fields["status"], "bindings": [{"version": 2, "jsonPointer": "/status"}]}}
    evolve(
        api,
        path,
        second,
        rename("code", "status", optional=True),
        search={"primaryTimestampField": "time", "fields": moved},
    )
    append(api, path, {"status": 500})
    hits = search(api, path, "status:500")["hits"]
    assert [hit["source"] for hit in hits] == [{"status": 500}, {"status": 500}]
    assert [hit["fields"] for hit in hits] == [{"status": 500}, {"status": 500}]
    assert len(search(api, path, "status:>=1", track_total_hits=True)["hits"]) == 3


# -- order and pages


def test_the_newest_come_first(api: Api) -> None:
    path = stream(api, *logs(5))
    assert numbers(search(api, path, "has:time")) == [4, 3, 2, 1, 0]
    assert numbers(search(api, path, "has:time", sort=["offset:asc"])) == [0, 1, 2, 3, 4]


def test_the_best_come_first_where_words_are_asked(api: Api) -> None:
    path = stream(
        api,
        {"n": 0, "message": "disk full", "time": 3},
        {"n": 1, "message": "disk disk disk", "time": 1},
        {"n": 2, "message": "the disk of the other machine is not full at all", "time": 2},
    )
    found = search(api, path, "disk")
    scores = [hit["score"] for hit in found["hits"]]
    assert numbers(found) == [1, 0, 2]
    assert scores == sorted(scores, reverse=True) and scores[-1] > 0
    assert [hit["sort"][:2] for hit in found["hits"]] == [[scores[0], 1], [scores[1], 3], [scores[2], 2]]
    by_time = search(api, path, "disk", sort=["time"])
    assert numbers(by_time) == [0, 2, 1]
    assert [hit["score"] for hit in by_time["hits"]] == [None] * 3


def test_a_boost_counts(api: Api) -> None:
    fields = {"time": field("date", "/time"), "a": field("text", "/a"), "b": field("text", "/b")}
    for boosts, wanted in (({"a": 3, "b": 1}, [0, 1]), ({"a": 1, "b": 3}, [1, 0])):
        given = [{"field": name, "boost": boost} for name, boost in boosts.items()]
        declared = {"primaryTimestampField": "time", "fields": fields, "defaultFields": given}
        path = stream(api, {"n": 0, "a": "x"}, {"n": 1, "b": "x"}, search=declared)
        assert numbers(search(api, path, "x")) == wanted


def test_values_that_are_missing_are_the_greatest(api: Api) -> None:
    path = stream(api, {"n": 0, "status": 5}, {"n": 1}, {"n": 2, "status": -7}, {"n": 3, "status": [9, 1]})
    found = search(api, path, "-service:x", sort=["status:asc"])
    assert numbers(found) == [2, 0, 3, 1]
    assert [hit["sort"][0] for hit in found["hits"]] == [-7, 5, 9, None]
    assert numbers(search(api, path, "-service:x", sort=["status"])) == [1, 3, 0, 2]


@pytest.mark.parametrize("sort", [[], ["offset:asc"], ["service", "status:asc"], ["status:asc", "time"], ["ts:asc"]])
def test_pages_follow_each_other_without_gaps(api: Api, sort: list[str]) -> None:
    path = stream(api, *logs(23))
    whole = search(api, path, "has:time", sort=sort, size=500)
    pages: list[dict[str, Any]] = []
    after = None
    while not pages or after is not None:
        pages.append(search(api, path, "has:time", sort=sort, size=5, search_after=after))
        after = pages[-1]["next_search_after"]
    assert [hit for page in pages for hit in page["hits"]] == whole["hits"]
    assert [len(page["hits"]) for page in pages] == [5, 5, 5, 5, 3]
    assert all(page["next_search_after"] == page["hits"][-1]["sort"] for page in pages[:-1])


def test_new_events_do_not_shift_pages(api: Api) -> None:
    path = stream(api, *logs(8))
    first = search(api, path, "has:time", size=4)
    append(api, path, *logs(3))
    second = search(api, path, "has:time", size=4, search_after=first["next_search_after"])
    assert numbers(first) + numbers(second) == [7, 6, 5, 4, 3, 2, 1, 0]


def test_totals_are_those_of_the_page_unless_all_are_wanted(api: Api) -> None:
    path = stream(api, *logs(12))
    assert search(api, path, "has:time", size=5)["total"] == {"value": 5, "relation": "gte"}
    assert search(api, path, "has:time", size=20)["total"] == {"value": 12, "relation": "eq"}
    page = search(api, path, "has:time", size=5, track_total_hits=True)
    assert page["total"] == {"value": 12, "relation": "eq"}
    after = page["next_search_after"]
    again = search(api, path, "has:time", size=10, search_after=after)
    assert (len(again["hits"]), again["total"]["relation"]) == (7, "gte")
    counted = search(api, path, "status:200", size=0, track_total_hits=True)
    assert (counted["hits"], counted["total"], counted["next_search_after"]) == (
        [],
        {"value": 3, "relation": "eq"},
        None,
    )


def test_snippets_show_where_a_text_answers(api: Api) -> None:
    path = stream(api, {"message": "a <b>disk</b> & its Full name", "path": "/srv/disk"})
    [hit] = search(api, path, 'disk msg:"full name" contains:path:srv', snippets=True)["hits"]
    assert hit["snippets"] == {
        "message": "a &lt;b&gt;<em>disk</em>&lt;/b&gt; &amp; its <em>Full</em> <em>name</em>",
        "path": "/<em>srv</em>/disk",
    }
    assert "snippets" not in search(api, path, "disk")["hits"][0]


# -- the two forms


def test_a_get_asks_the_same_in_parameters(api: Api) -> None:
    path = stream(api, *logs(9))
    asked = {"q": "has:time", "size": 2, "sort": ["service", "status:asc"], "track_total_hits": True, "snippets": True}
    posted = search(api, path, **asked)
    given = {"q": "has:time", "size": "2", "track_total_hits": "true", "snippets": "1"}
    for sort in ("service,status:asc", ["service", "status:asc"]):
        got = api.get(f"{path}/_search", sort=sort, **given).json()
        assert got["hits"] == posted["hits"] and got["total"] == posted["total"]
    after = json.dumps(posted["next_search_after"])
    following = api.get(f"{path}/_search", sort="service,status:asc", search_after=after, **given).json()
    assert following["hits"] == search(api, path, **asked, search_after=posted["next_search_after"])["hits"]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "q"),
        ({"q": 5}, "q"),
        ({"q": ""}, "q"),
        ({"q": "x", "sizes": 1}, "sizes"),
        ({"q": "x", "size": 501}, "size"),
        ({"q": "x", "size": -1}, "size"),
        ({"q": "x", "size": "5"}, "size"),
        ({"q": "x", "sort": "time"}, "sort"),
        ({"q": "x", "sort": ["nothing"]}, "sort"),
        ({"q": "x", "sort": ["time:up"]}, "sort"),
        ({"q": "x", "sort": ["message"]}, "sort"),
        ({"q": "x", "sort": ["path"]}, "sort"),
        ({"q": "x", "search_after": 1}, "search_after"),
        ({"q": "x", "search_after": [1]}, "search_after"),
        ({"q": "has:time", "search_after": [1]}, "search_after"),
        ({"q": "has:time", "search_after": ["nonsense"]}, "search_after"),
        ({"q": "has:time", "sort": ["status"], "search_after": ["5", START]}, "search_after"),
        ({"q": "x", "timeout_ms": -1}, "timeout_ms"),
        ({"q": "x", "timeout_ms": "1"}, "timeout_ms"),
        ({"q": "x", "track_total_hits": 10}, "track_total_hits"),
        ({"q": "x", "snippets": "yes"}, "snippets"),
    ],
)
def test_what_is_wrong_is_named(api: Api, code_of: Code, given: dict[str, Any], name: str) -> None:
    path = stream(api)
    answer = api.post(f"{path}/_search", given)
    assert (answer.status_code, code_of(answer)) == (400, "bad_request")
    assert answer.json()["error"]["field"] == name


@pytest.mark.parametrize(
    ("q", "position"),
    [("service:", 8), ("(service:a", 10), ("nothing:1", 0), ("service:a status:x", 10), ("path:a*", 0), ('"a', 0)],
)
def test_a_fault_of_the_query_has_a_place(api: Api, code_of: Code, q: str, position: int) -> None:
    path = stream(api)
    for answer in (api.post(f"{path}/_search", {"q": q}), api.get(f"{path}/_search", q=q)):
        assert (answer.status_code, code_of(answer)) == (400, "bad_request")
        error = answer.json()["error"]
        assert (error["field"], error["position"]) == ("q", position)


@pytest.mark.parametrize("given", [{"size": "x"}, {"search_after": "["}, {"q": "a", "page": "2"}, {"snippets": "yes"}])
def test_parameters_that_cannot_be_read_are_refused(api: Api, code_of: Code, given: dict[str, str]) -> None:
    path = stream(api)
    answer = api.get(f"{path}/_search", **{"q": "service:a", **given})
    assert (answer.status_code, code_of(answer)) == (400, "bad_request")
    assert answer.json()["error"]["field"] in given


def test_a_body_must_be_json_and_stand_alone(api: Api, code_of: Code) -> None:
    path = stream(api)
    for answer in (
        api.post(f"{path}/_search", b"{"),
        api.post(f"{path}/_search", b""),
        api.post(f"{path}/_search", [1]),
        api.call("POST", f"{path}/_search", {"q": "service:a"}, None, size="1"),
    ):
        assert (answer.status_code, code_of(answer)) == (400, "bad_request")


# -- who may ask what


def test_streams_without_search_fields_are_refused(api: Api, code_of: Code) -> None:
    plain, octets, schema = api.stream({"a": 1}), api.octets(b"x"), installed(api, OPEN)
    for path in (plain, octets, schema):
        answer = api.post(f"{path}/_search", {"q": "a"})
        assert (answer.status_code, code_of(answer)) == (400, "bad_request")


def test_streams_that_are_not_there_are_not_found(api: Api, code_of: Code) -> None:
    path = stream(api, *logs(2))
    assert api.delete(path).status_code == 204
    for gone in (path, api.name()):
        answer = api.post(f"{gone}/_search", {"q": "a"})
        assert (answer.status_code, code_of(answer)) == (404, "not_found")
    assert api.call("PUT", f"{path}/_search", b"").status_code == 405


def test_a_key_must_be_allowed_to_read(start_server: StartServer, api_of: Any, code_of: Code) -> None:
    server = start_server(data="keyed")
    keyed = api_of(server)
    path = stream(keyed, *logs(2))
    store = KeyStore(server.data_dir / "keys.db")
    keys = [store.create(user_id="ada", scopes=["read"], prefix=prefix)[1] for prefix in ("", name_of(path), "other/")]
    store.close()
    asked = [keyed.post(f"{path}/_search", {"q": "has:time"}, {"authorization": f"Bearer {key}"}) for key in keys]
    assert [answer.status_code for answer in asked] == [200, 200, 403]
    assert code_of(asked[2]) == "forbidden"


# -- fresh and bounded


def test_time_that_is_over_gives_408_and_a_valid_body(api: Api) -> None:
    path = stream(api, *logs(5))
    answer = api.post(f"{path}/_search", {"q": "has:time", "timeout_ms": 0})
    assert answer.status_code == 408
    found = answer.json()
    validate(found)
    assert (found["timed_out"], found["timeout_ms"], found["hits"]) == (True, 0, [])
    assert found["total"] == {"value": 0, "relation": "gte"}
    coverage = found["coverage"]
    assert (coverage["mode"], coverage["complete"]) == ("partial", False)
    assert [coverage[name] for name in MISSING] == [5, 0, 0, 5]
    assert re.fullmatch(r"\d{4}-.*Z", coverage["oldest_omitted_append_at"])
    assert answer.headers["search-timed-out"] == "true" and answer.headers["search-coverage-complete"] == "false"


def test_no_search_takes_longer_than_the_server_allows(api: Api) -> None:
    path = stream(api, *logs(1))
    assert search(api, path, "has:time", timeout_ms=60_000)["timeout_ms"] == 3000
    assert search(api, path, "has:time", timeout_ms=1500)["timeout_ms"] == 1500


def test_searches_wait_their_turn(start_server: StartServer, api_of: Any) -> None:
    narrow = api_of(start_server(data="narrow", limits__concurrent_searches="1"))
    path = stream(narrow, *logs(50))
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda _: narrow.post(f"{path}/_search", {"q": "timeout"}), range(60)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({json.dumps(answer.json()["hits"]) for answer in answers}) == 1


def test_a_search_finds_what_is_published_and_what_is_not(start_server: StartServer, api_of: Any) -> None:
    eager = api_of(start_server(data="sealing", storage__seal_age_s="0"))
    path = stream(eager, *logs(30))
    deadline = time.monotonic() + 30
    while eager.get(f"{path}/_details").json()["stream"]["segment_count"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    append(eager, path, {"n": 30, "time": 0})
    found = search(eager, path, "has:time", size=500, sort=["offset:asc"])
    assert numbers(found) == list(range(31))
    assert found["coverage"]["scanned_segments"] >= 1 and found["coverage"]["complete"]


def test_a_search_is_an_access(api: Api) -> None:
    path = api.stream(headers={"stream-ttl": "100"})
    evolve(api, path, OPEN, search=SEARCH)
    before = api.head(path).headers["stream-expires-at"]
    time.sleep(0.02)
    search(api, path, "service:a")
    assert api.head(path).headers["stream-expires-at"] > before
