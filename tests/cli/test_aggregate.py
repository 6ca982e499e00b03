"""``headrace aggregate``: a group per line for programs, a chart and a table for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import aggregate, output
from support.log_stream import SEARCH, Logs, event

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess, StartServer

STREAM, COUNT = "cli/measured", 600
SPAN = ["--from", "2025-10-09", "--to", "2025-10-10"]


@pytest.fixture(scope="module")
def filled(server: ServerProcess) -> ServerProcess:
    logs = Logs(server.url)
    logs.create(STREAM, SEARCH)
    logs.append(STREAM, 0, COUNT)
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
    monkeypatch.setenv("COLUMNS", "120")


def counts(lines: list[Any]) -> int:
    return sum(line["measures"]["requests"]["count"] for line in lines)


def test_programs_get_a_group_per_line(at: ServerProcess, headrace: Headrace) -> None:
    done = headrace("aggregate", STREAM, "requests", *SPAN, "--interval", "1m", "--by", "service")
    assert done.code == 0
    assert done.err == ""
    assert counts(done.lines) == COUNT
    first = done.lines[0]
    assert set(first) == {"start", "end", "key", "measures"}
    assert set(first["key"]) == {"service"}
    assert set(first["measures"]) == {"requests", "failed", "duration", "spread", "services"}


def test_only_the_measures_that_are_named_come(at: ServerProcess, headrace: Headrace) -> None:
    words = ["aggregate", STREAM, "requests", *SPAN, "--measure", "requests"]
    assert {tuple(line["measures"]) for line in headrace(*words).lines} == {("requests",)}
    drawn = headrace(*words, "--chart", "duration.p95").lines
    assert {tuple(line["measures"]) for line in drawn} == {("duration", "requests")}


def test_a_query_chooses_the_events(at: ServerProcess, headrace: Headrace) -> None:
    failed = sum(event(number)["status"] == 503 for number in range(COUNT))
    words = ["aggregate", STREAM, "requests", *SPAN, "--interval", "1h"]
    assert counts(headrace(*words, "--where", "status:503").lines) == failed
    assert counts(headrace(*words, "--where", "-status:503").lines) == COUNT - failed


@pytest.mark.parametrize(
    ("span", "interval"),
    [
        (["--from", "2025-10-09T08:00", "--to", "2025-10-09T09:00:00Z"], "1m"),
        (["--from", "2025-10-09", "--to", "2025-10-10"], "1h"),
        (["--from", "2025-01-01", "--to", "2026-01-01"], "1h"),
        (["--from", "1759968000000000000", "--to", "2025-10-10"], "1m"),
    ],
)
def test_an_interval_that_fits_is_chosen(at: ServerProcess, headrace: Headrace, span: list[str], interval: str) -> None:
    first = headrace("aggregate", STREAM, "requests", *span).lines[0]
    start, end = (datetime.fromisoformat(first[edge]) for edge in ("start", "end"))
    assert (end - start).total_seconds() == {"1m": 60, "1h": 3600}[interval]


def test_the_last_hours_end_now(at: ServerProcess, headrace: Headrace, name: str) -> None:
    logs = Logs(at.url)
    logs.create(name, SEARCH)
    logs.ask("POST", f"/v1/stream/{name}", [{"ts": datetime.now(UTC).isoformat()}, {"ts": "2020-01-01T00:00:00Z"}])
    assert counts(headrace("aggregate", name, "requests", "--last", "24h").lines) == 1
    assert counts(headrace("aggregate", name, "requests", "--from", "2019-12-31").lines) == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "--last 24h"),
        (["--to", "2025-10-10"], 2, "--from"),
        (["--last", "24h", "--from", "2025-10-09"], 2, "without"),
        (["--last", "soon"], 1, "not a duration"),
        (["--from", "yesterday", "--to", "2025-10-10"], 1, "from"),
        ([*SPAN, "--interval", "7m"], 1, "none of 1m, 1h"),
        ([*SPAN, "--by", "color"], 1, "no dimension"),
        ([*SPAN, "--where", "a:1"], 1, "no declared search field"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    at: ServerProcess, headrace: Headrace, words: list[str], code: int, said: str
) -> None:
    done = headrace("aggregate", STREAM, "requests", *words)
    assert done.code == code
    assert done.out == b""
    assert said in done.err


def test_a_rollup_that_is_not_declared_is_refused(at: ServerProcess, headrace: Headrace) -> None:
    done = headrace("aggregate", STREAM, "sales", *SPAN)
    assert done.code == 1
    assert "there are: requests" in done.err


def test_an_answer_that_is_not_complete_says_so_and_ends_with_5(
    start_server: StartServer, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    generous = start_server()
    logs = Logs(generous.url)
    logs.create("x", SEARCH)
    logs.append("x", 0, 10)
    generous.stop()
    monkeypatch.setenv("HEADRACE_URL", start_server(server__resolver_timeout_s="0.000001").url)
    done = headrace("aggregate", "x", "requests", *SPAN, "--interval", "1h")
    assert (done.code, done.out) == (output.PARTIAL, b""), done.err
    assert "up to 10 events" in done.err


def chart(said: str) -> str:
    """The chart, which stands below the table."""
    return said.rpartition("\n\n")[2]


def test_people_see_bars_and_a_table(people: None, headrace: Headrace) -> None:
    words = ["aggregate", STREAM, "requests", *SPAN, "--interval", "1m", "--measure", "requests"]
    said = headrace(*words, "--measure", "duration").out.decode()
    title, top, *_ = chart(said).splitlines()
    assert title == "requests by 1m, 2025-10-09 08:53 to 2025-10-09 09:04"
    assert top.startswith("61 ┤")
    assert "█" in top
    header = next(line for line in said.splitlines() if line.startswith("start"))
    assert "requests" in header
    rows = [line for line in said.splitlines() if line.startswith("2025-10-09 ")]
    assert sum(int(row.split()[2]) for row in rows) == COUNT


def test_people_see_a_line_for_each_group(people: None, headrace: Headrace) -> None:
    words = ["aggregate", STREAM, "requests", *SPAN, "--interval", "1m", "--by", "service"]
    said = headrace(*words, "--measure", "requests").out.decode()
    drawn = chart(said).splitlines()[1:]
    assert all(line.startswith("service-") for line in drawn[:10])
    assert drawn[-1] == "and 2 more"
    assert len(drawn) == 11


@pytest.mark.parametrize(
    ("asked", "title"),
    [
        ("", "requests by"),
        ("duration", "duration avg by"),
        ("duration.p95", "duration p95 ≥ by"),
        ("spread", "spread p50 by"),
        ("services", "services by"),
    ],
)
def test_one_measure_is_drawn(people: None, headrace: Headrace, asked: str, title: str) -> None:
    done = headrace("aggregate", STREAM, "requests", *SPAN, *(["--chart", asked] if asked else []))
    assert chart(done.out.decode()).startswith(title)


@pytest.mark.parametrize(("asked", "said"), [("sales", "there is no measure sales"), ("duration.p42", "has no p42")])
def test_a_chart_of_nothing_is_refused(people: None, headrace: Headrace, asked: str, said: str) -> None:
    done = headrace("aggregate", STREAM, "requests", *SPAN, "--chart", asked)
    assert done.code == 2
    assert said in done.err


def test_people_are_told_of_an_empty_answer(people: None, headrace: Headrace) -> None:
    done = headrace("aggregate", STREAM, "requests", "--from", "2001-01-01", "--to", "2001-01-02")
    assert done.out.decode().startswith("No events from 2001-01-01T00:00:00.000Z")


def test_years_that_have_no_plain_date_have_a_table_without_a_chart(
    people: None, headrace: Headrace, name: str, at: ServerProcess
) -> None:
    logs = Logs(at.url)
    logs.create(name, SEARCH)
    logs.ask("POST", f"/v1/stream/{name}", [{"ts": 8_000_000_000_000_000}])
    words = ["--from", "2025-10-09", "--to", "9223372036854775807"]
    done = headrace("aggregate", name, "requests", *words, "--interval", "1h", "--measure", "requests")
    assert done.code == 0, done.err


# -- the chart

SERIES = st.lists(st.none() | st.integers(-1000, 1000) | st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(SERIES, st.integers(20, 120), st.integers(1, 8))
def test_bars_fit_into_their_room(series: list[Any], width: int, height: int) -> None:
    lines = aggregate.draw_bars(series, width=width, height=height)
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    assert len({len(line) for line in lines}) == 1


@given(SERIES)
def test_the_greatest_value_reaches_the_top_and_what_is_there_is_seen(series: list[Any]) -> None:
    scale = aggregate.find_bounds([series])
    line = aggregate.draw_sparkline(series, width=len(series), scale=scale)
    for value, drawn in zip(series, line, strict=True):
        assert (drawn == " ") == (not value or scale[0] == scale[1])
        if value and value == scale[1]:
            assert drawn == "█"


def test_neighbours_share_a_column_where_there_are_too_many() -> None:
    assert aggregate.fold_to_width([1, 2, None, None, 5], 3, sum) == [3, None, 5]
    assert aggregate.fold_to_width([1, 2, 3, 9], 2, max) == [2, 9]
    assert aggregate.fold_to_width([1, 2], 2, sum) == [1, 2]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (1234567, "1,234,567"), (2.0, "2"), (0.123456, "0.1235"), (98765.4, "98,765"), (-3.25, "-3.25")],
)
def test_numbers_have_few_digits(value: Any, said: str) -> None:
    assert aggregate.number(value) == said
