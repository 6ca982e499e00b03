"""``headrace import``: from a file to a stream that can be searched and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cli import output

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

CSV = """at,service,duration_ms
2026-11-01 10:00:00,web,12.5
2026-11-01 10:20:00,api,480
2026-11-01 11:00:00,web,7
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "requests.csv").write_text(CSV)
    return tmp_path / "requests.csv"


def test_a_file_becomes_a_stream_that_can_be_searched_and_measured(
    headrace: Headrace, at: ServerProcess, name: str, path: Path
) -> None:
    done = headrace("import", str(path), "--stream", name, "--yes")
    assert done.code == output.OK
    assert done.lines[0]["appended"] == 3
    hits = headrace("search", name, "service:web duration_ms:>10").lines
    assert [hit["source"]["duration_ms"] for hit in hits] == [12.5]
    buckets = headrace(
        *("aggregate", name, "overview", "--interval", "1h", "--from", "2026-11-01", "--to", "2026-11-02")
    ).lines
    assert [bucket["measures"]["duration_ms"]["p95"] for bucket in buckets] == [480, 7]


def test_a_dry_run_says_what_would_be_created_and_creates_nothing(
    headrace: Headrace, at: ServerProcess, name: str, path: Path
) -> None:
    done = headrace("import", str(path), "--stream", name, "--dry-run", "--json")
    assert done.code == output.OK
    (proposal,) = done.lines
    assert proposal["rows"] == 3
    assert proposal["schema"]["required"] == ["at", "service", "duration_ms"]
    assert proposal["search"]["primaryTimestampField"] == "at"
    assert headrace("stream", "info", name).code == output.FAILED
    assert headrace("import", str(path), "--stream", name, "--dry-run").lines == [proposal]


def test_a_dry_run_on_a_stream_with_a_schema_says_that_it_is_kept(
    headrace: Headrace, at: ServerProcess, name: str, path: Path
) -> None:
    headrace("import", str(path), "--stream", name, "--yes")
    done = headrace("import", str(path), "--stream", name, "--dry-run")
    assert done.code == output.OK
    assert "its schema is kept" in done.err


def test_nothing_is_created_without_a_yes(headrace: Headrace, at: ServerProcess, name: str, path: Path) -> None:
    done = headrace("import", str(path), "--stream", name)
    assert done.code == output.USAGE
    assert "--yes" in done.err
    assert headrace("stream", "info", name).code == output.FAILED


def test_rows_that_do_not_fit_are_written_to_a_file(
    headrace: Headrace, at: ServerProcess, name: str, path: Path, tmp_path: Path
) -> None:
    headrace("import", str(path), "--stream", name, "--yes")
    more = tmp_path / "more.jsonl"
    more.write_text('{"at": "2026-11-01T12:00:00Z", "service": "web", "duration_ms": "slow", "x": 1}\n{"at":\n')
    rejects = tmp_path / "rejects.jsonl"
    done = headrace("import", str(more), "--stream", name, "--rejects", str(rejects))
    assert done.code == output.PARTIAL
    assert done.lines == [{"stream": name, "appended": 0, "already_there": 0, "rejected": 2, "next_offset": None}]
    assert "row 1 of" in done.err
    assert str(rejects) in done.err
    rows = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert {row["number"] for row in rows} == {1, 2}


def test_rows_come_in_through_a_pipe(headrace: Headrace, at: ServerProcess, name: str) -> None:
    done = headrace("import", "-", "--format", "csv", "--stream", name, "--yes", stdin=CSV.encode())
    assert done.lines[0]["appended"] == 3
    again = headrace("import", "-", "--format", "csv", "--stream", name, "--yes", stdin=CSV.encode())
    assert again.lines[0]["already_there"] == 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("-",), "--format"),
        ((), "Name a file"),
        (("none.csv",), "there is no file"),
        (("{path}", "--timestamp", "service"), "no field of moments; those are: /at"),
    ],
)
def test_what_cannot_be_imported_is_refused_before_anything_is_created(
    headrace: Headrace, at: ServerProcess, name: str, path: Path, words: tuple[str, ...], reason: str
) -> None:
    done = headrace("import", *(word.format(path=path) for word in words), "--stream", name, "--yes")
    assert done.code == output.USAGE
    assert reason in done.err
    assert headrace("stream", "info", name).code == output.FAILED


def test_streams_of_bytes_take_no_rows(headrace: Headrace, at: ServerProcess, name: str, path: Path) -> None:
    headrace("stream", "create", name, "--content-type", "text/plain")
    done = headrace("import", str(path), "--stream", name, "--yes")
    assert done.code == output.USAGE
    assert "text/plain" in done.err


def test_a_schema_is_inferred_from_the_events_of_a_stream(
    headrace: Headrace, at: ServerProcess, name: str, path: Path
) -> None:
    proposed = headrace("import", str(path), "--stream", name, "--dry-run", "--json").lines[0]
    headrace("stream", "create", name)
    event = {"at": "2026-11-01T10:00:00Z", "service": "web"}
    events = [json.dumps({**event, "duration_ms": number}) for number in (12.5, 480, 7)]
    headrace("stream", "append", name, *events)
    (inferred,) = headrace("schema", "infer", name).lines
    assert inferred["schema"] == proposed["schema"]
    assert inferred["search"] == proposed["search"]
    assert headrace("schema", "show", name).lines[0]["currentVersion"] == 0


def test_a_stream_without_events_has_no_schema_to_infer(headrace: Headrace, at: ServerProcess, name: str) -> None:
    headrace("stream", "create", name)
    done = headrace("schema", "infer", name)
    assert done.code == output.FAILED
    assert "no event" in done.err


def test_inferred_schema_is_installed_on_the_events_that_it_fits(
    headrace: Headrace, at: ServerProcess, name: str
) -> None:
    headrace("stream", "create", name)
    rows = [{"at": "2026-11-01T10:00:00Z", "service": "web", "ms": number} for number in (12.5, 480, 7)]
    headrace("stream", "append", name, *map(json.dumps, rows))
    asked = headrace("schema", "infer", name, "--apply")
    assert asked.code == 2
    assert "--yes" in asked.err
    assert headrace("schema", "show", name).lines[0]["currentVersion"] == 0
    done = headrace("schema", "infer", name, "--apply", "--yes")
    assert done.code == 0, done.err
    (plan,) = done.lines
    assert [plan["from_version"], plan["to_version"]] == [0, 1]
    assert headrace("stream", "read", name, "--schema-version", "1").lines == rows
    assert [hit["fields"]["ms"] for hit in headrace("search", name, "ms:>10", "--sort", "ms:asc").lines] == [12.5, 480]
    assert headrace("stream", "append", name, '{"at": "yesterday"}').code == 1
    again = headrace("schema", "infer", name, "--apply", "--yes")
    assert again.code == 1
    assert f"headrace schema evolve {name}" in again.err
