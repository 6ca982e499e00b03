"""Values become requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.client import entity_requests, entity_types, features, requests, schemas
from headrace.errors import BadRequest
from headrace.types import parse_timestamp_us

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


PARTS = st.sampled_from(["a", "_schema", ".", "..", "...", "", "%2e", "?", "#"]) | NAMES


@given(st.lists(PARTS, min_size=1).map("/".join))
def test_name_comes_back_from_its_path_or_is_refused(name: str) -> None:
    if any(part in ("", ".", "..") for part in name.split("/")):
        with pytest.raises(BadRequest, match="segments"):
            requests.stream_path(name)
        return
    path = requests.stream_path(name)
    assert unquote(path) == f"/v1/stream/{name}"
    assert httpx2.URL(f"http://h{path}").raw_path == path.encode()


@given(PARTS)
def test_any_text_is_one_segment_that_the_way_leaves_alone(text: str) -> None:
    path = f"/a/{requests.segment(text)}/b"
    assert httpx2.URL(f"http://h{path}").raw_path == path.encode()
    assert [unquote(part) for part in path.split("/")] == ["", "a", text, "b"]


@pytest.mark.parametrize(
    "request_for",
    [
        lambda text: entity_types.change(text, "activate", {}, {}),
        lambda text: entity_requests.provenance("ent_1", text, {}),
        lambda text: entity_requests.delete(text, {}),
        lambda text: entity_requests.source(text, None),
        lambda text: entity_requests.get_erasure(text, None),
        lambda text: features.push(text, {}),
        lambda text: features.poll_history("Clicks", text),
        lambda text: schemas.verification("x", text),
    ],
)
def test_no_part_of_a_path_leads_elsewhere(request_for: Callable[[str], requests.Request]) -> None:
    assert "/%2E%2E" in request_for("..").target


@given(key=NAMES, offset=NAMES)
def test_query_carries_any_text_in_sorted_order(key: str, offset: str) -> None:
    query = urlsplit(requests.tail("x", offset, "long-poll", key=key, cursor="7").target).query
    assert parse_qs(query, strict_parsing=True)["key"] == [key]
    names = [pair.partition("=")[0] for pair in query.split("&")]
    assert names == sorted(names) == ["cursor", "key", "live", "offset", "timeout"]


@given(st.datetimes(timezones=st.just(timezone(timedelta(hours=5, minutes=30)))))
def test_moment_is_the_one_the_server_reads(moment: datetime) -> None:
    try:
        headers = requests.append("x", b"1", "application/json", timestamp=moment).headers
    except OverflowError:
        return
    micros = parse_timestamp_us(headers["stream-timestamp"], "t")
    assert micros == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        requests.read("x", "-1", since=datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("span", "ttl", "age"),
    [
        (90, "90", "90s"),
        ("24h", "24h", "24h"),
        (timedelta(minutes=2), "120", "120s"),
        (timedelta(milliseconds=1500), "1500ms", "1500ms"),
        (0, "0", "0s"),
    ],
)
def test_span_is_written_as_its_header_wants_it(span: Any, ttl: str, age: str) -> None:
    headers = requests.create("x", ttl=span, retention_age=span).headers
    assert headers["stream-ttl"] == ttl
    assert headers["stream-retention-age"] == age


def test_absent_options_send_no_headers() -> None:
    assert dict(requests.create("x").headers) == {"content-type": "application/json"}
    assert dict(requests.append("x", b"1", "text/plain").headers) == {"content-type": "text/plain"}


def test_fork_names_its_source_by_path_and_inherits_the_type() -> None:
    request = requests.create("new", forked_from="a b/c", fork_offset="7", fork_sub_offset=2)
    assert dict(request.headers) == {
        "stream-forked-from": "/v1/stream/a%20b/c",
        "stream-fork-offset": "7",
        "stream-fork-sub-offset": "2",
    }


def test_since_takes_the_place_of_offset() -> None:
    assert requests.read("x", "-1", since=12).target == "/v1/stream/x?since=12"
    assert requests.read("x", "-1").target == "/v1/stream/x?offset=-1"


NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda s: s.append(1, ifmatch="7"), "'ifmatch'; did you mean 'if_match'"),
        (lambda s: s.append(1, routing_key="k"), "'routing_key'; there are key, timestamp, seq, if_match, close"),
        (lambda s: s.create(retention="3d"), "'retention'; did you mean 'retention_age'"),
        (lambda s: s.fork("y", offset="7"), "'offset'"),
        (lambda s: s.producer(linger=5), "'linger'; did you mean 'linger_ms'"),
        (lambda s: s.search("a:1", limit=5), "'limit'"),
        (lambda s: next(s.search_pages("a:1", limit=5)), "'limit'"),
        (lambda s: s.aggregate("r", 0, 1, "1h", groupby=["a"]), "'groupby'; did you mean 'group_by'"),
        (lambda s: hr.LogSender(s, services="shop"), "'services'; did you mean 'service'"),
    ],
)
def test_unknown_option_of_a_stream_is_named(use: Callable[[Any], Any], told: str) -> None:
    with hr.Client(NOWHERE, retry_for=0) as client, pytest.raises(TypeError) as caught:
        use(client.stream("x"))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda app: app.register(odd=True),
        lambda app: app.rollback(1, odd=True),
        lambda app: app.get("Clicks", "ada", odd=True),
        lambda app: app.entities.store({}, odd=True),
        lambda app: app.entities.get("ent_1", odd=True),
        lambda app: app.entities.provenance("ent_1", "name", odd=True),
        lambda app: app.entities.correct("ent_1", {}, odd=True),
        lambda app: app.entities.delete("ent_1", odd=True),
        lambda app: app.entities.restore("ent_1", odd=True),
        lambda app: app.entities.types.register("t", "1", {}, odd=True),
        lambda app: app.entities.types.activate("t", "1", odd=True),
    ],
)
def test_unknown_option_of_an_app_is_named(use: Callable[[Any], Any]) -> None:
    with hr.App(NOWHERE, retry_for=0) as app, pytest.raises(TypeError, match="no option 'odd'"):
        use(app)


def test_awaiting_client_refuses_the_same() -> None:
    async def scene() -> None:
        async with hr.AsyncClient(NOWHERE, retry_for=0) as client:
            stream: Any = client.stream("x")
            with pytest.raises(TypeError, match="if_match"):
                await stream.append(1, ifmatch="7")
            with pytest.raises(TypeError, match="linger_ms"):
                stream.producer(linger=5)
            with pytest.raises(ValueError, match="max_in_flight"):
                stream.producer(max_in_flight=0)

    asyncio.run(scene())


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0},
        {"max_batch_events": 0},
        {"max_batch_bytes": -1},
        {"max_pending_bytes": 0},
        {"linger_ms": -1},
        {"delivery_timeout": -0.5},
        {"delivery_timeout": float("nan")},
        {"epoch": -1},
    ],
)
def test_number_with_which_nothing_would_be_sent_is_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with hr.Client(NOWHERE) as client, pytest.raises(ValueError, match=f"{name} is at least"):
        client.stream("x").producer(**options)


def test_sender_of_logs_refuses_what_its_producer_would() -> None:
    with hr.Client(NOWHERE) as client, pytest.raises(ValueError, match="max_pending_bytes"):
        hr.LogSender(client.stream("x"), max_pending_bytes=0)


@pytest.mark.parametrize("name", ["timeout", "retry_for"])
def test_client_refuses_a_time_below_zero(name: str) -> None:
    options: dict[str, Any] = {name: -1.0}
    with pytest.raises(ValueError, match=name):
        hr.Client(NOWHERE, **options)
