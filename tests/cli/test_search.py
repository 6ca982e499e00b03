"""``headrace search`` and filtered reads: lines for programs, a table for people, exit codes for scripts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli import output
from support.log_stream import SEARCH, Logs, event

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

STREAM, COUNT = "cli/searched", 1_200
FAILED = [number for number in range(COUNT) if event(number)["status"] == 503]


@pytest.fixture(scope="module")
def filled(server: ServerProcess) -> ServerProcess:
    logs = Logs(server.url)
    logs.create(STREAM, SEARCH)
    logs.append(STREAM, 0, COUNT)
    # An event that is spelled over several lines, with words that look like markup.
    logs.ask("PUT", "/v1/stream/cli/odd")
    logs.ask("POST", "/v1/stream/cli/odd/_schema", {"schema": {"type": "object"}, "search": SEARCH})
    return server


@pytest.fixture
def at(filled: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    monkeypatch.setenv("HEADRACE_URL", filled.url)
    monkeypatch.delenv("HEADRACE_KEY", raising=False)
    return filled


@pytest.fixture
def people(at: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone is looking, at a wide terminal."""
    monkeypatch.setattr(output, "wants_table", lambda as_json: not as_json)
    monkeypatch.setenv("COLUMNS", "200")


def requests(lines: list[Any]) -> list[int]:
    return [int(hit["source"]["request"][1:], 16) for hit in lines]


def test_programs_get_a_hit_per_line(at: ServerProcess, headrace: Headrace) -> None:
    done = headrace("search", STREAM, "status:503", "--size", "3")
    assert done.code == 0
    assert done.err == ""
    assert requests(done.lines) == FAILED[::-1][:3]
    assert set(done.lines[0]) == {"offset", "score", "sort", "fields", "source"}


def test_a_query_may_begin_with_a_minus(at: ServerProcess, headrace: Headrace) -> None:
    (hit,) = headrace("search", STREAM, "-status:503 request:r000001", "--json").lines
    assert requests([hit]) == [1]


def test_more_hits_than_a_page_holds_come_page_by_page(at: ServerProcess, headrace: Headrace) -> None:
    most = headrace("search", STREAM, "has:status", "--size", "700", "--sort", "offset:asc").lines
    assert requests(most) == list(range(700))
    every = headrace("search", STREAM, "has:status", "--all").lines
    assert requests(every) == list(range(COUNT))[::-1]


def test_a_search_goes_on_after_the_last_line(at: ServerProcess, headrace: Headrace) -> None:
    words = ["search", STREAM, "status:503", "--sort", "duration:desc", "--sort", "service:asc"]
    first = headrace(*words, "--size", "2").lines
    second = headrace(*words, "--size", "2", "--after", json.dumps(first[-1]["sort"])).lines
    ordered = sorted(FAILED, key=lambda number: -event(number)["duration"])
    assert requests(first + second) == ordered[:4]


def test_the_total_is_the_last_line(at: ServerProcess, headrace: Headrace) -> None:
    *hits, last = headrace("search", STREAM, "status:503", "--total", "--size", "1").lines
    assert len(hits) == 1
    assert last == {"total": {"value": len(FAILED), "relation": "eq"}}
    (only,) = headrace("search", STREAM, "status:503", "--total", "--size", "0").lines
    assert only["total"]["value"] == len(FAILED)
    *every, again = headrace("search", STREAM, "has:status", "--total", "--all").lines
    assert len(every) == COUNT
    assert again["total"] == {"value": COUNT, "relation": "eq"}


def test_snippets_stand_in_the_lines(at: ServerProcess, headrace: Headrace) -> None:
    (hit,) = headrace("search", STREAM, "number7", "--snippets").lines
    assert "<em>number7</em>" in hit["snippets"]["detail"]


def test_an_answer_that_is_not_complete_says_so_and_ends_with_5(at: ServerProcess, headrace: Headrace) -> None:
    done = headrace("search", STREAM, "status:503", "--timeout-ms", "0")
    assert done.code == output.PARTIAL
    assert done.out == b""
    assert f"up to {COUNT:,} events were not looked at within 0 ms" in done.err


def test_nothing_found_is_no_failure(at: ServerProcess, headrace: Headrace) -> None:
    done = headrace("search", STREAM, "status:7")
    assert done.code == 0
    assert done.out == b""
    assert done.err == ""


def test_every_fault_of_a_query_is_marked(at: ServerProcess, headrace: Headrace) -> None:
    done = headrace("search", STREAM, "status:many\nwhere:here")
    assert done.code == 1
    said = done.err.splitlines()
    assert said[1:3] == ["  status:many where:here", "  ^           ^"]
    plain = headrace("search", STREAM, "status:many", "--json")
    error = json.loads(plain.err)["error"]
    assert error["position"] == 0
    assert ("\n" in error["message"]) is False


@pytest.mark.parametrize("after", ["oops", "{}", '["a"'])
def test_a_place_that_is_no_array_is_refused_before_anything_is_asked(headrace: Headrace, after: str) -> None:
    done = headrace("search", "x", "y", "--after", after, "--url", "http://127.0.0.1:1")
    assert done.code == 2
    assert "--after" in done.err


def test_a_stream_without_search_says_what_is_missing(at: ServerProcess, headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    done = headrace("search", name, "x")
    assert done.code == 1
    assert "search is not configured" in done.err


def test_an_event_of_several_lines_is_one_line(at: ServerProcess, headrace: Headrace) -> None:
    headrace("stream", "append", "cli/odd", '{\n  "message": "two\\nlines",\r\n  "status": 1.0\n}')
    line = headrace("search", "cli/odd", "message:lines").out
    assert line.count(b"\n") == 1
    assert b'"message": "two\\nlines"' in line
    assert b'"status": 1.0' in line


def test_people_see_a_table_with_the_time_and_a_text(people: None, headrace: Headrace) -> None:
    said = headrace("search", STREAM, "status:503", "--size", "2").out.decode()
    head, first, *_ = said.splitlines()
    assert head.split() == ["offset", "time", "service", "tags", "status", "message"]
    assert "2025-10-09T" in first
    assert event(FAILED[-1])["message"] in first
    assert "2 hits" in said
    assert "more: --after '[\"" in said


def test_people_see_scores_snippets_and_the_total(people: None, headrace: Headrace) -> None:
    said = headrace("search", STREAM, "payment", "--size", "1", "--snippets", "--total").out.decode()
    head, first, *_ = said.splitlines()
    assert head.split() == ["offset", "score", "time", "service", "tags", "snippet"]
    assert "message: " in first and "payment" in first
    assert "<em>" not in said
    assert " of " in said.splitlines()[-2]


def test_people_choose_fields_and_are_told_of_nothing(people: None, headrace: Headrace) -> None:
    chosen = headrace("search", STREAM, "status:503", "--field", "request", "--size", "1").out.decode()
    assert chosen.splitlines()[0].split() == ["offset", "time", "request"]
    assert headrace("search", STREAM, "status:7").out.decode().startswith("0 hits")


def test_what_an_event_holds_is_never_taken_for_markup(people: None, headrace: Headrace) -> None:
    headrace("stream", "append", "cli/odd", '{"message": "[bold]loud[/nothing]", "ts": "2026-01-02T03:04:05Z"}')
    said = headrace("search", "cli/odd", "message:loud").out.decode()
    assert "[bold]loud[/nothing]" in said
    assert "2026-01-02T03:04:05Z" in said
    snippet = headrace("search", "cli/odd", "message:loud", "--snippets").out.decode()
    assert "[bold]loud[/nothing]" in snippet


def test_a_filtered_read_prints_what_matches(at: ServerProcess, headrace: Headrace) -> None:
    lines = headrace("stream", "read", STREAM, "--filter", "-status:200 status:<=201", "--limit", "2").lines
    expected = [number for number in range(COUNT) if event(number)["status"] == 201]
    assert lines == [event(number) for number in expected[:2]]
    refused = headrace("stream", "read", STREAM, "--filter", "status:many")
    assert refused.code == 1
    assert refused.err.splitlines()[2] == "  ^"


def test_a_filtered_tail_polls_by_itself(at: ServerProcess, headrace: Headrace) -> None:
    words = ["stream", "tail", STREAM, "--offset", "-1", "--limit", "1"]
    assert headrace(*words, "--filter", "request:r000007").lines == [event(7)]
    refused = headrace(*words, "--filter", "request:r000007", "--live", "sse")
    assert refused.code == 1
    assert "long-poll" in refused.err
