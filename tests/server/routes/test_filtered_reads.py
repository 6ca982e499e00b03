"""Filtered reads over HTTP: which events come, where a reader goes on, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from server.registries import append, evolve, installed, rename, shape

if TYPE_CHECKING:
    import httpx2
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api

    ApiOf = Callable[[ServerProcess], Api]


def field(kind: str, pointer: str, version: int = 1, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": version, "jsonPointer": pointer}], **more}


SEARCH: dict[str, Any] = {
    "primaryTimestampField": "time",
    "aliases": {"state": "status"},
    "fields": {
        "time": field("date", "/time", column=True),
        "service": field("keyword", "/service", exact=True, normalizer="lowercase_v1"),
        "status": field("integer", "/status", exact=True, column=True),
        "cost": field("float", "/cost", column=True),
        "ok": field("bool", "/ok", exact=True),
        "tags": field("keyword", "/tags", exact=True),
        "note": field("text", "/note", analyzer="unicode_word_v1"),
    },
}
EVENTS: list[dict[str, Any]] = [
    {"n": 0, "time": "2026-03-25T10:00:00Z", "service": "API", "status": 200, "cost": 1.5, "ok": True, "tags": ["a"]},
    {"n": 1, "time": "2026-03-25T10:01:00Z", "service": "api", "status": 503, "cost": -2, "ok": False},
    {"n": 2, "time": 1774432920000, "service": 'billing "x"', "status": -5, "tags": ["a", ["b"]]},
    {"n": 3, "service": None, "status": 404, "tags": [], "note": "some words"},
    {"n": 4, "time": "2026-03-25T10:04:00Z", "service": "api:v2", "status": 503.0, "ok": "true"},
]


@pytest.fixture(scope="module")
def path(api: Api) -> str:
    path = installed(api, {"type": "object"}, search=SEARCH)
    append(api, path, *EVENTS)
    return path


def numbers(answer: httpx2.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [event["n"] for event in answer.json()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("status:503", [1, 4]),
        ("status:=503", [1, 4]),
        ("status:>=404", [1, 3, 4]),
        ("status:<0", [2]),
        ("status:-5", [2]),
        ('status:"-5"', [2]),
        ("state:200", [0]),
        ("cost:<0", [1]),
        ("service:API", [0, 1]),
        ('service:"billing \\"x\\""', [2]),
        ('service:"api:v2"', [4]),
        ("ok:true", [0, 4]),
        ("tags:b", [2]),
        ("has:tags", [0, 2]),
        ("has:service", [0, 1, 2, 4]),
        ("NOT has:service", [3]),
        ("-has:time", [3]),
        ("status:503 service:api", [1]),
        ("status:503 AND NOT service:api", [4]),
        ("status:200 OR status:404", [0, 3]),
        ("status:503 service:api OR status:404", [1, 3]),
        ("-(-status:200 -status:404)", [0, 3]),
        ("(status:200 or status:503) -ok:false", [0, 4]),
        ("time:>=2026-03-25T10:02:00Z", [2, 4]),
        ("status:999999999999999999999", []),
        ("status:<999999999999999999999", [0, 1, 2, 3, 4]),
    ],
)
def test_a_filter_lets_matching_events_through(api: Api, path: str, text: str, expected: list[int]) -> None:
    assert numbers(api.get(path, filter=text)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("word", "names a field"),
        ("unknown:1", "no declared search field"),
        ("service:>a", "cannot be compared"),
        ("ok:>true", "cannot be compared"),
        ("note:words", "text field"),
        ("status:five", "no value of status"),
        ("service:ap*", "no prefixes"),
        ("(status:200", "expected"),
        ("contains:service:a", "contains"),
    ],
)
def test_a_filter_that_cannot_be_asked_is_refused_and_says_why(api: Api, path: str, text: str, reason: str) -> None:
    answer = api.get(path, filter=text)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "bad_request"
    assert error["field"] == "filter"
    assert reason in error["message"]


def test_a_filter_needs_json_and_a_search_configuration(api: Api) -> None:
    octets, plain = api.stream(headers={"content-type": "text/plain"}), api.stream()
    for path, reason in ((octets, "JSON stream"), (plain, "no search fields")):
        answer = api.get(path, filter="a:1")
        assert answer.status_code == 400
        assert reason in answer.json()["error"]["message"]


def test_a_filter_cannot_be_followed_by_sse(api: Api, path: str) -> None:
    answer = api.get(path, filter="status:200", offset="-1", live="sse")
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == "filter"


def test_the_next_offset_is_behind_what_did_not_match(api: Api, path: str) -> None:
    answer = api.get(path, filter="status:200")
    assert answer.headers["stream-next-offset"] == answer.headers["stream-end-offset"]
    assert answer.headers["stream-up-to-date"] == "true"
    assert "stream-filter-scan-limit-reached" not in answer.headers
    again = api.get(path, filter="status:200", offset=answer.headers["stream-next-offset"])
    assert numbers(again) == []


def test_every_event_is_found_over_all_pages(start_server: StartServer, api_of: ApiOf) -> None:
    api = api_of(start_server(limits__read_bytes="400", storage__seal_rows="40", storage__seal_age_s="0.2"))
    path = installed(api, {"type": "object"}, search=SEARCH)
    for start in range(0, 100, 10):
        append(api, path, *({"n": n, "status": n % 3, "service": f"s{n}"} for n in range(start, start + 10)))
    offset, found, pages = "-1", [], 0
    while True:
        answer = api.get(path, filter="status:1", offset=offset)
        found += numbers(answer)
        offset, pages = answer.headers["stream-next-offset"], pages + 1
        if answer.headers.get("stream-up-to-date"):
            break
    assert found == [n for n in range(100) if n % 3 == 1]
    assert pages > 2


def test_a_read_that_has_scanned_enough_says_so_and_goes_on(start_server: StartServer, api_of: ApiOf) -> None:
    sealing = {"storage__seal_rows": "20", "storage__seal_age_s": "0.1"}
    api = api_of(start_server(limits__filter_scan_bytes="1000", **sealing))
    path = installed(api, {"type": "object"}, search=SEARCH)
    for start in range(0, 60, 20):
        append(api, path, *({"n": n, "status": n, "service": "x" * 100} for n in range(start, start + 20)))
        await_sealed(api, path, start + 20)
    answer = api.get(path, filter="status:59", offset="-1")
    seen, limited = numbers(answer), 0
    while not answer.headers.get("stream-up-to-date"):
        assert answer.headers["stream-filter-scan-limit-reached"] == "true"
        assert answer.headers["stream-filter-scan-limit-bytes"] == "1000"
        assert 800 < int(answer.headers["stream-filter-scanned-bytes"]) <= 1000
        limited += 1
        answer = api.get(path, filter="status:59", offset=answer.headers["stream-next-offset"])
        seen += numbers(answer)
    assert seen == [59]
    assert limited == 8


@pytest.mark.parametrize("sealed", [False, True])
def test_no_more_is_scanned_than_the_limit_whatever_an_append_and_a_segment_hold(
    start_server: StartServer, api_of: ApiOf, sealed: bool
) -> None:
    sealing = {"storage__seal_rows": "100" if sealed else "1000000", "storage__seal_age_s": "0.1" if sealed else "600"}
    api = api_of(start_server(limits__filter_scan_bytes="5000", pipeline__min_rows="100000", **sealing))
    path = installed(api, {"type": "object"}, search=SEARCH)
    append(api, path, *({"n": n, "status": n, "service": "x" * 970} for n in range(100)))
    if sealed:
        await_sealed(api, path, 100)
    answer = api.get(path, filter="status:99", offset="-1")
    reads = 1
    while not answer.headers.get("stream-up-to-date"):
        assert 4_000 <= int(answer.headers["stream-filter-scanned-bytes"]) <= 5_000
        answer = api.get(path, filter="status:99", offset=answer.headers["stream-next-offset"])
        reads += 1
    assert numbers(answer) == [99]
    assert 20 <= reads <= 26


def without_time(start_server: StartServer, api_of: ApiOf, *events: Any) -> tuple[Api, str]:
    """A stream of these events, on a server whose working time is always over."""
    patient = start_server()
    path = installed(api_of(patient), {"type": "object"}, search=SEARCH)
    append(api_of(patient), path, *events)
    patient.stop()
    api = api_of(start_server(server__resolver_timeout_s="0.000001"))
    # The first answer loads what computes answers, for which a busy machine may need longer than it waits.
    assert any(api.get(path, filter="status:1").status_code == 200 for _ in range(5))
    return api, path


def test_a_read_whose_time_is_over_ends_early_and_the_reader_goes_on(start_server: StartServer, api_of: ApiOf) -> None:
    api, path = without_time(start_server, api_of, *({"n": n, "status": n % 2} for n in range(20)))
    answer, found, early = api.get(path, filter="status:1", offset="-1"), [], 0
    while early < 30:
        assert answer.status_code == 200, answer.text
        found += numbers(answer)
        if answer.headers.get("stream-up-to-date"):
            break
        assert answer.headers["stream-filter-timed-out"] == "true"
        assert answer.headers["cache-control"] == "no-store"
        early += 1
        answer = api.get(path, filter="status:1", offset=answer.headers["stream-next-offset"])
    assert found == list(range(1, 20, 2))
    assert early >= 5


def test_a_long_poll_whose_time_is_over_says_how_far_it_has_come(start_server: StartServer, api_of: ApiOf) -> None:
    events = [{"n": n, "status": 0} for n in range(20)]
    api, path = without_time(start_server, api_of, *events, {"n": 20, "status": 1})
    offset, polls = "-1", 0
    while polls < 30:
        answer = api.get(path, filter="status:1", offset=offset, live="long-poll", timeout="50ms")
        if answer.status_code == 200:
            break
        assert answer.status_code == 204
        offset, polls = answer.headers["stream-next-offset"], polls + 1
    assert numbers(answer) == [20]


def await_sealed(api: Api, path: str, count: int) -> None:
    """Wait until so many events are in segments."""
    tag = ""
    while True:
        answer = api.get(f"{path}/_details", {"if-none-match": tag}, live="long-poll", timeout="3s")
        if answer.status_code == 200:
            tag = answer.headers["etag"]
            if int(answer.json()["stream"]["uploaded_through"]) >= count - 1:
                return


def test_a_long_poll_passes_over_what_does_not_match(api: Api) -> None:
    path = installed(api, {"type": "object"}, search=SEARCH)
    append(api, path, {"n": 0, "status": 1})
    tail = api.get(path, offset="now").headers["stream-next-offset"]
    answers: list[httpx2.Response] = []
    waiting = threading.Thread(
        target=lambda: answers.append(api.get(path, filter="status:7", offset=tail, live="long-poll", timeout="6s"))
    )
    waiting.start()
    for n in range(1, 4):
        append(api, path, {"n": n, "status": n})
    append(api, path, {"n": 7, "status": 7})
    waiting.join()
    assert numbers(answers[0]) == [7]


def test_old_events_are_found_where_a_lens_moved_the_field(api: Api) -> None:
    path = installed(api, shape("n", "code", n={"type": "integer"}, code={"type": "integer"}))
    append(api, path, {"n": 0, "code": 5}, {"n": 1, "code": 6})
    newer = shape("n", "status", n={"type": "integer"}, status={"type": "integer"})
    evolve(api, path, newer, rename("code", "status", optional=True))
    search = {"primaryTimestampField": "time", "fields": {"time": field("date", "/time", 2, column=True)}}
    search["fields"] |= {"status": field("integer", "/status", 2, exact=True, column=True)}
    assert api.post(f"{path}/_schema", {"search": search}).status_code == 200
    append(api, path, {"n": 2, "status": 5})
    answer = api.get(path, filter="status:5")
    assert answer.json() == [{"n": 0, "status": 5}, {"n": 2, "status": 5}]
    old = api.get(path, filter="status:5", schema_version="1")
    assert old.json() == [{"n": 0, "code": 5}, {"n": 2, "code": 5}]


def test_key_and_filter_hold_together(api: Api) -> None:
    path = installed(api, {"type": "object"}, search=SEARCH)
    for n, key in enumerate("abab"):
        api.post(path, [{"n": n, "status": 1 if n else 2}], {"stream-key": key})
    assert numbers(api.get(path, filter="status:1", key="a")) == [2]
    assert numbers(api.get(f"{path}/pk/b", filter="status:1")) == [1, 3]


def test_the_tag_names_the_filter(api: Api, path: str) -> None:
    one, other = (api.get(path, filter=text) for text in ("status:200", "status:404"))
    assert "filter=status%3A200" in one.headers["etag"]
    assert one.headers["etag"] != other.headers["etag"]
    again = api.get(path, {"if-none-match": one.headers["etag"]}, filter="status:200")
    assert again.status_code == 304


@pytest.mark.parametrize("version", [{}, {"schema_version": "1"}], ids=["current", "named"])
def test_a_slice_is_another_where_the_filter_means_something_else(api: Api, version: dict[str, str]) -> None:
    members = {name: {"type": "integer"} for name in ("n", "was", "now")}

    def search(pointer: str) -> dict[str, Any]:
        fields = {"time": field("date", "/time"), "status": field("integer", pointer, exact=True)}
        return {"primaryTimestampField": "time", "fields": fields}

    path = installed(api, shape("time", **members, time={"type": "string"}), search=search("/was"))
    start = append(api, path, {"n": 0, "was": 0, "now": 0})
    append(api, path, {"n": 1, "was": 1, "now": 2}, {"n": 2, "was": 2, "now": 1})
    api.post(path, headers={"stream-closed": "true"})
    asked = {"filter": "status:1", "offset": start, **version}
    before, plain = api.get(path, **asked), api.get(path, offset=start, **version)
    assert numbers(before) == [1]
    assert before.headers["cache-control"] == "max-age=60"
    assert api.post(f"{path}/_schema", {"search": search("/now")}).status_code == 200
    after = api.get(path, {"if-none-match": before.headers["etag"]}, **asked)
    assert numbers(after) == [2]
    assert after.headers["etag"] != before.headers["etag"]
    assert api.get(path, offset=start, **version).headers["etag"] == plain.headers["etag"]
