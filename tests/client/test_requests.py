"""Values become requests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import entity_reads, entity_types, erasures, features, observations, requests, schemas
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
        lambda text: entity_reads.provenance("ent_1", text, {}),
        lambda text: observations.delete(text, {}),
        lambda text: observations.source(text, None),
        lambda text: erasures.get(text, None),
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
    assert (headers["stream-ttl"], headers["stream-retention-age"]) == (ttl, age)


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
