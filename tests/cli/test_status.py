"""``headrace stream status``: what programs and people are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli import output, stream
from support.log_stream import SEARCH, Logs

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

KEY = {"jsonPointer": "/service", "required": False}


def test_programs_get_all_details(at: ServerProcess, headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, "1", "2")
    done = headrace("stream", "status", name)
    (found,) = done.lines
    assert done.code == 0
    assert found["stream"]["next_offset"] == "2"
    assert found["index_status"]["stream"] == name
    assert headrace("stream", "status", name, "--json").lines == [found]


def test_a_stream_that_is_not_there_has_no_status(at: ServerProcess, headrace: Headrace, name: str) -> None:
    done = headrace("stream", "status", name)
    assert done.code == 1
    assert done.out == b""
    assert "headrace stream ls" in done.err


def test_people_get_facts_and_a_table(
    at: ServerProcess, headrace: Headrace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "wants_table", lambda as_json: not as_json)
    monkeypatch.setenv("COLUMNS", "200")
    logs = Logs(at.url)
    logs.create(name, SEARCH)
    logs.append(name, 0, 20)
    said = headrace("stream", "status", name).out.decode()
    assert "20 appended" in said and "0 in 0 segments" in said
    lines = {line.split("  ")[0]: line for line in said.splitlines()}
    assert "message, detail" in lines["full text"] and "requests" in lines["rollups"]
    assert "routing keys" not in said
    logs.ask("POST", f"/v1/stream/{name}/_schema", {"routingKey": KEY})
    assert "routing keys" in headrace("stream", "status", name).out.decode()


def _family(**facts: Any) -> dict[str, Any]:
    given = {"covered_segment_count": 3, "stale_segment_count": 0, "lag_ms": "90000", "bytes_at_rest": "2048"}
    complete = {"fully_indexed_uploaded_segments": False}
    return {"family": "col", "fields": ["a", "b"], **given, **complete, **facts}


@pytest.mark.parametrize(
    ("facts", "state", "behind"),
    [
        ({}, "building", "2 m"),
        ({"stale_segment_count": 2}, "2 segments outdated", "2 m"),
        ({"fully_indexed_uploaded_segments": True, "lag_ms": "0"}, "complete", "0 ms"),
        ({"lag_ms": None}, "building", None),
    ],
)
def test_a_line_says_how_far_an_index_is(facts: dict[str, Any], state: str, behind: str | None) -> None:
    status = {
        "segments": {"total_count": 4},
        "routing_key_lexicon": {"configured": False},
        "search_families": [_family(**facts)],
    }
    (line,) = stream.index_rows(status)
    assert line == {
        "index": "columns",
        "of": "a, b",
        "segments": "3 of 4",
        "behind": behind,
        "size": "2.0 KiB",
        "state": state,
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [("0", "0 B"), ("1023", "1023 B"), ("1024", "1.0 KiB"), ("1536000", "1.5 MiB"), ("9" * 18, "909494.7 TiB")],
)
def test_bytes_have_a_unit_that_fits(given: str, said: str) -> None:
    assert stream.size(given) == said
