"""Rows are appended exactly once, whatever the server answers and however often the import is begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.client import row_batches
from headrace.client.importer.importer import Importer, ImportResult
from headrace.client.importer.reader import RowReader
from headrace.client.row_batches import BadRow
from headrace.errors import BadRequest

if TYPE_CHECKING:
    from tests.client.conftest import Line


def run(client: hr.Client, stream: hr.Stream, path: Path) -> tuple[ImportResult, list[BadRow]]:
    bad: list[BadRow] = []
    reader = RowReader([path])
    try:
        return Importer(client, stream.name, reader).run(lambda count: None, bad.append), bad
    finally:
        reader.close()


def numbers(stream: hr.Stream) -> list[int]:
    return [event["n"] for batch in stream.read() for event in batch.items]


@pytest.fixture
def stream(client: hr.Client, name: str) -> hr.Stream:
    made = client.stream(name)
    made.create()
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"n": {number}}}\n' for number in range(500)))
    return tmp_path / "rows.jsonl"


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_batches, "BATCH_ROWS", 50)


def test_rows_are_appended_in_order(client: hr.Client, stream: hr.Stream, path: Path) -> None:
    result, bad = run(client, stream, path)
    assert result.appended == 500
    assert result.already_there == 0
    assert result.rejected == 0
    assert result.next_offset == stream.info().next_offset
    assert bad == []
    assert numbers(stream) == list(range(500))


def test_an_import_that_is_repeated_appends_nothing(
    client: hr.Client, stream: hr.Stream, path: Path, small_batches: None
) -> None:
    run(client, stream, path)
    result, _ = run(client, stream, path)
    assert result.appended == 0
    assert result.already_there == 500
    assert numbers(stream) == list(range(500))


def test_an_import_goes_on_where_it_was_stopped(
    client: hr.Client, stream: hr.Stream, path: Path, small_batches: None
) -> None:
    reader, seen = RowReader([path]), 0

    def stop(count: int) -> None:
        nonlocal seen
        seen += count
        if seen == 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Importer(client, stream.name, reader).run(stop, lambda bad: None)
    result, _ = run(client, stream, path)
    assert result.appended == 300
    assert result.already_there == 200
    assert numbers(stream) == list(range(500))


@pytest.mark.parametrize("after", [0, 3])
def test_lost_answers_append_nothing_twice(
    line: Line, stream: hr.Stream, path: Path, small_batches: None, after: int
) -> None:
    with hr.Client(line.url) as client:
        line.lose_answers(2, after=after)
        result, _ = run(client, stream, path)
    assert line.lost == 2
    assert result.appended + result.already_there == 500
    assert numbers(stream) == list(range(500))


def test_rows_that_the_schema_refuses_are_rejected_by_their_numbers(
    client: hr.Client, stream: hr.Stream, tmp_path: Path, small_batches: None
) -> None:
    stream.evolve({"type": "object", "properties": {"n": {"type": "integer"}}})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"n": n if n % 7 else str(n)}) + "\n" for n in range(1, 200)))
    result, bad = run(client, stream, path)
    assert result.rejected == len(bad) == 28
    assert result.appended == 171
    assert [row.number for row in bad] == [n for n in range(1, 200) if n % 7 == 0]
    assert all("/n" in row.reason for row in bad)
    assert numbers(stream) == [n for n in range(1, 200) if n % 7]


def test_an_import_of_which_nothing_fits_ends_at_once(
    client: hr.Client, stream: hr.Stream, path: Path, small_batches: None
) -> None:
    stream.evolve({"type": "object", "properties": {"n": {"type": "string"}}})
    with pytest.raises(BadRequest, match="none of 50 rows from row 1"):
        run(client, stream, path)
    assert numbers(stream) == []
