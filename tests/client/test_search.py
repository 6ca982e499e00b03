"""Search, aggregates and routing keys from Python, by both clients."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import headrace as hr
from headrace.client import search
from headrace.client.answers import Answer
from headrace.client.retry import check_repeatable
from headrace.client.search import Paging, SearchResult
from headrace.errors import BadRequest, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import ServerProcess

COUNT = 12


def field(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}], **more}


SEARCH: dict[str, Any] = {
    "primaryTimestampField": "at",
    "fields": {
        "at": field("date", "at", column=True),
        "n": field("integer", "n", exact=True, column=True, sortable=True, aggregatable=True),
        "side": field("keyword", "side", exact=True),
        "note": field("text", "note", analyzer="unicode_word_v1"),
    },
    "rollups": {
        "all": {
            "dimensions": ["side"],
            "intervals": ["1m"],
            "measures": {"events": {"kind": "count"}, "numbers": {"kind": "summary", "field": "n"}},
        }
    },
}


@pytest.fixture(scope="module")
def stream(server: ServerProcess) -> Iterator[hr.Stream]:
    """Events 0 to 11, ten seconds apart, odd and even."""
    with hr.Client(server.url) as client:
        stream = client.stream("client/searched")
        stream.create()
        stream.evolve({"type": "object"}, routing_key={"jsonPointer": "/side", "required": True})
        stream.evolve(search=SEARCH)
        moments = [datetime(2026, 3, 25, 10, n // 6, n % 6 * 10, tzinfo=UTC).isoformat() for n in range(COUNT)]
        sides = ["odd" if n % 2 else "even" for n in range(COUNT)]
        stream.append(
            [{"n": n, "at": moments[n], "side": sides[n], "note": f"number {n} <b> & more"} for n in range(COUNT)]
        )
        yield stream


def numbers(page: hr.SearchResult) -> list[int]:
    return [hit.source["n"] for hit in page.hits]


def test_a_search_finds_events_and_tells_how(stream: hr.Stream) -> None:
    page = stream.search("side:odd n:>5")
    assert numbers(page) == [11, 9, 7]
    assert page.complete
    assert not page.timed_out
    assert page.next_search_after is None
    assert page.total.value == 3
    assert page.total.relation == "eq"
    first = page.hits[0]
    assert first.fields["side"] == "odd"
    assert msgspec.json.decode(first.raw) == first.source
    assert first.offset == stream.info().next_offset
    assert first.snippets == {}


def test_every_option_of_a_search_arrives(stream: hr.Stream) -> None:
    first = stream.search("number", sort=["n:asc"], size=2, snippets=True, track_total_hits=True, timeout_ms=2500)
    assert numbers(first) == [0, 1]
    assert first.total.value == COUNT
    assert first.timeout_ms == 2500
    assert first.hits[0].score is None
    assert first.hits[0].snippets == {"note": "<em>number</em> 0 &lt;b&gt; &amp; more"}
    second = stream.search("number", sort=["n:asc"], size=2, search_after=first.next_search_after)
    assert numbers(second) == [2, 3]
    best = stream.search("number")
    assert all(hit.score is not None and hit.score > 0 for hit in best.hits)


def test_pages_go_on_to_the_last_hit(stream: hr.Stream) -> None:
    pages = list(stream.search_pages("has:n", size=5, track_total_hits=True))
    assert [numbers(page) for page in pages] == [[11, 10, 9, 8, 7], [6, 5, 4, 3, 2], [1, 0]]
    assert [page.total.relation for page in pages] == ["eq", "gte", "gte"]
    assert [numbers(page) for page in stream.search_pages("n:99")] == [[]]


def test_a_search_whose_time_is_over_answers_with_what_it_has(stream: hr.Stream) -> None:
    (page,) = stream.search_pages("has:n", timeout_ms=0)
    assert page.timed_out
    assert not page.complete
    assert page.hits == []
    assert page.coverage["possible_missing_events_upper_bound"] == COUNT


def test_a_full_page_whose_time_was_over_is_the_last(stream: hr.Stream) -> None:
    late = msgspec.structs.replace(stream.search("has:n", size=2), timed_out=True)
    body = msgspec.json.encode(late)
    paging = Paging("x", "has:n", {"size": 2})
    assert paging.accept(Answer(408, {"search-timed-out": "true"}, body)).next_search_after is not None
    assert paging.ended


def test_a_search_that_did_not_begin_is_an_error() -> None:
    body = b'{"error": {"code": "request_timeout", "message": "too many searches"}}'
    with pytest.raises(TimedOut, match="too many"):
        Answer(408, {}, body).decode(SearchResult)


def test_a_query_that_cannot_be_asked_raises_its_place(stream: hr.Stream) -> None:
    with pytest.raises(BadRequest) as refusal:
        stream.search("n:1 side:>x")
    assert refusal.value.facts["position"] == 4


def test_a_question_is_repeated_though_it_has_a_body(stream: hr.Stream) -> None:
    lost = hr.Unreachable("cut", sent=True)
    assert check_repeatable(search.search("x", "a"), lost) is lost
    assert check_repeatable(search.aggregate("x", "r", 0, 1, "1m"), lost) is lost
    with pytest.raises(hr.Unreachable):
        check_repeatable(stream._append_request({"n": 1}), lost)


def test_an_aggregate_has_buckets_groups_and_measures(stream: hr.Stream) -> None:
    start, end = datetime(2026, 3, 25, 10, tzinfo=UTC), "2026-03-25T11:00:00Z"
    found = stream.aggregate("all", start, end, "1m")
    assert found.start == "2026-03-25T10:00:00.000Z"
    assert found.end == "2026-03-25T11:00:00.000Z"
    assert found.rollup == "all"
    assert found.interval == "1m"
    assert found.complete is True
    assert [bucket.start[14:16] for bucket in found.buckets] == ["00", "01"]
    (group,) = found.buckets[0].groups
    assert group.key == {}
    assert group.measures["events"] == {"count": 6}
    assert group.measures["numbers"]["sum"] == 15


def test_every_option_of_an_aggregate_arrives(stream: hr.Stream) -> None:
    start, end = 1_774_432_800_000_000_000, datetime(2026, 3, 25, 10, 1, tzinfo=UTC)
    found = stream.aggregate("all", start, end, "1m", q="n:>=1", group_by=["side"], measures=["events"])
    assert [(group.key, group.measures) for group in found.buckets[0].groups] == [
        ({"side": "even"}, {"events": {"count": 2}}),
        ({"side": "odd"}, {"events": {"count": 3}}),
    ]


def test_routing_keys_come_page_by_page(stream: hr.Stream) -> None:
    assert list(stream.routing_keys()) == ["even", "odd"]
    assert list(stream.routing_keys(limit=1)) == ["even", "odd"]
    assert list(stream.routing_keys(after="even")) == ["odd"]


def test_routing_keys_that_may_be_missing_are_an_error() -> None:
    page = {"coverage": {"complete": False}, "keys": ["a"], "next_after": "a"}
    with pytest.raises(TimedOut) as refusal:
        search.read_routing_keys(Answer(200, {}, msgspec.json.encode(page)))
    assert refusal.value.facts["coverage"] == {"complete": False}


def test_a_read_passes_over_what_a_filter_leaves_out(stream: hr.Stream) -> None:
    batches = list(stream.read(filter="side:even n:>4"))
    assert [event["n"] for batch in batches for event in batch.items] == [6, 8, 10]
    assert batches[-1].next_offset == stream.info().next_offset
    with pytest.raises(BadRequest, match="no declared search field"):
        list(stream.read(filter="sides:even"))


def test_a_filter_can_be_followed_by_long_polls(stream: hr.Stream) -> None:
    for way in ("long-poll", None):
        following = stream.tail("-1", live=way, filter="n:3")
        assert [event["n"] for event in next(following).items] == [3]
    with pytest.raises(BadRequest, match="long-poll"):
        next(stream.tail("-1", live="sse", filter="n:3"))


def test_the_awaiting_client_answers_the_same(server: ServerProcess, stream: hr.Stream) -> None:
    async def ask(client: hr.AsyncClient) -> list[Any]:
        same = client.stream(stream.name)
        span: tuple[str, str, str] = "2026-03-25T10:00:00Z", "2026-03-25T11:00:00Z", "1m"
        return [
            numbers(await same.search("side:odd n:>5")),
            [numbers(page) async for page in same.search_pages("has:n", size=5)],
            (await same.aggregate("all", *span, measures=["events"])).buckets,
            [key async for key in same.routing_keys(limit=1)],
            [event["n"] async for batch in same.read(filter="n:<2") for event in batch.items],
            [event["n"] async for event in _first(same)],
        ]

    async def _first(same: hr.AsyncStream) -> Any:
        async for batch in same.tail("-1", live="long-poll", filter="n:3"):
            for event in batch.items:
                yield event
            return

    async def run(scene: Callable[[hr.AsyncClient], Any]) -> Any:
        async with hr.AsyncClient(server.url) as client:
            return await scene(client)

    odd, pages, buckets, keys, few, followed = asyncio.run(run(ask))
    assert odd == [11, 9, 7]
    assert pages == [[11, 10, 9, 8, 7], [6, 5, 4, 3, 2], [1, 0]]
    assert [bucket.groups[0].measures for bucket in buckets] == [{"events": {"count": 6}}] * 2
    assert keys == ["even", "odd"]
    assert few == [0, 1]
    assert followed == [3]


def test_hit_with_a_number_too_large_for_a_float_can_be_read() -> None:
    hit = hr.Hit("7", None, [], {}, msgspec.Raw(b'{"a":1e999}'))
    assert hit.source == {"a": float("inf")}
