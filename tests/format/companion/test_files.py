"""Companions in files: what lies where, what is kept in memory, and what happens to damaged bytes."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from format.companion.events import DEFINITION, FIRST_SEQ, Event, columns_of
from format.companion.files import PANES, made, opened, written
from headrace.errors import CorruptData
from headrace.extract.postings import describe_companion, postings, stored_columns
from headrace.format.companion.file_reader import FileCompanion, sources_of
from headrace.format.companion.layout import LIMITS, Companion, Limits, PartName
from headrace.format.companion.writer import write
from headrace.format.decoded_columns import LruCache
from headrace.format.object_names import file_name

EVENTS = [
    Event(
        {"time": [row], "service": [f"s{row % 3}"], "request": [f"r{row:04}"], "message": ["same word"]}, key=f"k{row}"
    )
    for row in range(200)
]
SMALL = Limits(rows=30, postings=64, terms=16, filtered=8)


def path(directory: Path, listed: Companion, part: PartName) -> Path:
    return directory / file_name(listed.name, part)


def group_sizes(directory: Path, listed: Companion, part: PartName) -> list[int]:
    footer = pq.ParquetFile(path(directory, listed, part)).metadata
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def test_metadata_lists_the_bytes_that_were_written(tmp_path: Path) -> None:
    listed = written(EVENTS, tmp_path, panes=PANES.empty_table())
    for part, facts in listed.parts.items():
        data = path(tmp_path, listed, part).read_bytes()
        assert facts.bytes == len(data)
        assert facts.sha256 == hashlib.sha256(data).hexdigest()
    assert list(listed.parts) == ["columns", "postings", "panes"]
    assert listed.first_seq == FIRST_SEQ
    assert listed.count == 200
    assert listed.keys is True
    assert listed.times == (0, 199)


def test_row_groups_are_cut_at_their_limits(tmp_path: Path) -> None:
    listed = written(EVENTS, tmp_path, SMALL)
    assert group_sizes(tmp_path, listed, "columns") == [30] * 6 + [20]
    table = pq.read_table(path(tmp_path, listed, "postings"))
    assert table.column("rows").combine_chunks().value_lengths().to_numpy().max() == 64
    assert max(group_sizes(tmp_path, listed, "postings")) == 16
    groups = opened(tmp_path, listed).groups("f.time")
    assert [(group.start, group.stop, group.least, group.greatest) for group in groups[-2:]] == [
        (150, 180, 150, 179),
        (180, 200, 180, 199),
    ]


def test_row_groups_of_large_values_have_fewer_rows(tmp_path: Path) -> None:
    events = [Event({"mute": ["x" * 1_000], "request": [f"{row:02}" * 100]}) for row in range(40)]
    listed = written(events, tmp_path, Limits(column_bytes=10_000, term_bytes=1_000))
    assert max(group_sizes(tmp_path, listed, "columns")) < 10
    assert max(group_sizes(tmp_path, listed, "postings")) == 5
    companion = opened(tmp_path, listed)
    assert companion.rows("request", "07" * 100).tolist() == [7]
    assert companion.rows_with_prefix("request", "0").tolist() == [*range(10)]
    assert companion.rows("request", "07" * 99).tolist() == []


def test_a_term_with_more_postings_than_a_row_group_holds_has_row_groups_of_its_own(tmp_path: Path) -> None:
    companion = made(EVENTS, tmp_path, SMALL)
    assert companion.rows("message", "same").tolist() == [*range(200)]
    rows, positions = companion.occurrences("message", "word", prefix=False)
    assert rows.tolist() == [*range(200)] and set(positions.tolist()) == {1}
    assert companion.rows("service", "s1").tolist() == [*range(1, 200, 3)]


def test_a_column_whose_name_begins_like_another_is_not_mistaken_for_it(tmp_path: Path) -> None:
    companion = made([Event({"service": ["a"], "service.name": ["b", "c"]})], tmp_path)
    assert companion.column("f.service", 0).to_pylist() == ["a"]
    assert companion.column("f.service.name", 0).to_pylist() == [["b", "c"]]


def test_a_column_that_it_does_not_hold_is_no_damage(tmp_path: Path) -> None:
    companion = made(EVENTS, tmp_path)
    for ask in (lambda: companion.column("f.unheard", 0), lambda: companion.groups("f.unheard")):
        with pytest.raises(KeyError):
            ask()


def test_a_question_reads_only_the_row_groups_it_touches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    companion = made(EVENTS, tmp_path, SMALL)
    read: list[tuple[int, Any]] = []
    real = pq.ParquetFile.read_row_group

    def counted(file: Any, group: int, **more: Any) -> Any:
        read.append((group, more["columns"]))
        return real(file, group, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    assert companion.rows("request", "r0123").tolist() == [123]
    assert [columns for _, columns in read] == [["term"], ["rows"]]
    read.clear()
    assert companion.rows("request", "r0123").tolist() == [123]
    assert companion.rows("request", "zzz").tolist() == []
    assert read == []


def test_what_was_decoded_is_kept_within_the_limit(tmp_path: Path) -> None:
    listed, decoded = written(EVENTS, tmp_path, SMALL), LruCache(3_000)
    companion = FileCompanion.opened(tmp_path, listed, decoded)
    for row in range(200):
        assert companion.rows("request", f"r{row:04}").tolist() == [row]
        assert 0 < decoded.bytes <= 3_000


def test_threads_may_ask_at_once(tmp_path: Path) -> None:
    companion = made(EVENTS, tmp_path, SMALL)
    wrong: list[int] = []

    def ask(start: int) -> None:
        for row in [*range(start, 200), *range(start)]:
            if companion.rows("request", f"r{row:04}").tolist() != [row] or companion.keys(f"k{row}", 1) == [f"k{row}"]:
                wrong.append(row)

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(0, 200, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_it_works_on_after_its_files_were_removed(tmp_path: Path) -> None:
    listed = written(EVENTS, tmp_path, SMALL)
    companion = opened(tmp_path, listed, kept_bytes=0)
    assert companion.rows("request", "r0001").tolist() == [1]
    for part in listed.parts:
        path(tmp_path, listed, part).unlink()
    assert companion.rows("request", "r0199").tolist() == [199]
    assert companion.column("f.time", 6).to_pylist() == [*range(180, 200)]


def test_panes_are_given_by_rollup_and_interval(tmp_path: Path) -> None:
    rows = [("requests", 1_000, pane, 1) for pane in range(70)] + [("requests", 60_000, 0, 2)]
    panes = pa.Table.from_pylist([dict(zip(PANES.names, row, strict=True)) for row in rows], schema=PANES)
    companion = made(EVENTS, tmp_path, SMALL, panes=panes)
    found = list(companion.panes("requests", 1_000) or ())
    assert [table.num_rows for table in found] == [30, 30, 10]
    assert pa.concat_tables(found).equals(panes.slice(0, 70))
    assert pa.concat_tables(companion.panes("requests", 60_000) or ()).equals(panes.slice(70))
    assert list(companion.panes("requests", 5) or ()) == []
    assert companion.panes("unheard", 1_000) is None


def test_what_is_missing_is_said_when_it_is_asked_for(tmp_path: Path) -> None:
    listed = written(EVENTS, tmp_path)
    sources = sources_of("it", {"columns": path(tmp_path, listed, "columns")})
    companion = FileCompanion(sources, name="it", decoded=LruCache(0))
    assert companion.present("time").all()
    with pytest.raises(CorruptData, match="must have postings"):
        companion.rows("service", "s1")
    with pytest.raises(CorruptData, match="must have panes"):
        companion.panes("requests", 1_000)


def test_files_of_two_companions_do_not_make_one(tmp_path: Path) -> None:
    one, other = written(EVENTS, tmp_path), written(EVENTS, tmp_path, first_seq=5)
    columns, foreign = path(tmp_path, one, "columns"), path(tmp_path, other, "postings")
    sources = sources_of("it", {"columns": columns, "postings": foreign})
    companion = FileCompanion(sources, name="it", decoded=LruCache(0))
    with pytest.raises(CorruptData, match="belongs to another companion"):
        companion.rows("service", "s1")


@pytest.mark.parametrize("part", ["columns", "postings"])
def test_damaged_bytes_are_never_an_answer(part: PartName, tmp_path: Path) -> None:
    listed = written(EVENTS, tmp_path, SMALL)
    file = path(tmp_path, listed, part)
    whole = file.read_bytes()
    outcomes = set()
    for place in [*range(0, len(whole), 97), *range(len(whole) - 8, len(whole))]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        file.write_bytes(damaged)
        try:
            companion = opened(tmp_path, listed)
            found = [companion.rows("service", f"s{n}").tolist() for n in range(3)], companion.column("f.time", 3)
            assert found == ([[*range(n, 200, 3)] for n in range(3)], pa.array(range(90, 120), pa.int64()))
            outcomes.add("unharmed")
        except CorruptData as refused:
            assert str(refused.facts["object"]).startswith(listed.name)
            outcomes.add("refused")
    assert outcomes == {"unharmed", "refused"}


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    listed = written(EVENTS, tmp_path)
    file = path(tmp_path, listed, "columns")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CorruptData):
        opened(tmp_path, listed)


def test_plain_parquet_is_no_companion(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "plain.parquet")
    with pytest.raises(CorruptData, match="is Parquet but no companion"):
        FileCompanion(sources_of("it", {"columns": tmp_path / "plain.parquet"}), name="it", decoded=LruCache(0))


def test_tables_of_another_size_are_not_written(tmp_path: Path) -> None:
    table = columns_of(EVENTS)
    info = msgspec.structs.replace(describe_companion(table, DEFINITION, first_seq=0, through_version=1), count=199)
    with pytest.raises(ValueError, match="199 events cannot have 200 rows"):
        write(tmp_path, info, unique="a", columns=stored_columns(table), postings=postings(table, DEFINITION))


def test_other_tools_read_the_files(tmp_path: Path) -> None:
    listed = written(EVENTS, tmp_path, SMALL)
    columns = pq.read_table(path(tmp_path, listed, "columns"))
    assert columns.column("seq").to_pylist() == [*range(FIRST_SEQ, FIRST_SEQ + 200)]
    found = pq.read_table(
        path(tmp_path, listed, "postings"), filters=[("field", "==", "service"), ("term", "==", "s2")]
    )
    assert np.concatenate(found.column("rows").to_pylist()).tolist() == [*range(2, 200, 3)]
    assert LIMITS.rows == 65_536
