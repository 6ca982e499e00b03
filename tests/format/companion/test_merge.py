"""Merging adjacent companions; that the whole answers like its pieces is a property of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from format.companion.events import Event
from format.companion.files import HASHES, PANES, ROLLUPS, made, opened
from headrace.format.companion.file_reader import FileCompanion
from headrace.format.companion.layout import Limits
from headrace.format.companion.merge import merge, merge_infos
from headrace.format.companion.postings import Block
from headrace.format.companion.writer import FileWriter
from headrace.format.object_names import file_name

ONE = [Event({"time": [5], "service": ["a"], "message": ["x y"], "status": [1]}, key="k")]
TWO = [
    Event({"time": [3], "service": ["a", "b"], "message": ["y"]}, key="j"),
    Event({"time": [9], "message": ["z"]}, is_odd=True),
]


def pieces(directory: Path, **more: Any) -> list[FileCompanion]:
    return [made(ONE, directory, first_seq=10, segments=2), made(TWO, directory, first_seq=11, segments=3, **more)]


def test_the_whole_is_described_by_its_pieces(tmp_path: Path) -> None:
    inputs = pieces(tmp_path, through_version=2)
    listed = merge(inputs, tmp_path, unique="m", level=3, fields=HASHES, rollups=ROLLUPS, panes=PANES.empty_table())
    assert listed.first_seq == 10
    assert listed.end_seq == 13
    assert listed.level == 3
    assert listed.segments == 5
    assert listed.through_version == 2
    assert listed.times == (3, 5)
    assert listed.keys is True
    assert listed.fields == HASHES
    assert listed.rollups == ROLLUPS
    assert listed.words["message"] == (2, 3)
    companion = opened(tmp_path, listed)
    assert companion.fields["service"].many and not companion.fields["status"].many
    assert companion.irregular_rows().tolist() == [2]
    assert companion.keys(None, 9) == ["j", "k"]
    assert list(companion.panes("requests", 1) or ()) == []


def test_only_what_is_wanted_is_kept(tmp_path: Path) -> None:
    wanted = {name: HASHES[name] for name in ("time", "service")}
    listed = merge(pieces(tmp_path), tmp_path, unique="m", level=1, fields=wanted, rollups={})
    assert listed.fields == wanted and listed.words == {}
    stored = pq.read_table(tmp_path / file_name(listed.name, "columns"))
    assert stored.column_names == ["seq", "odd", "f.time", "f.service"]
    assert set(pq.read_table(tmp_path / file_name(listed.name, "postings")).column("field").to_pylist()) == {
        "",
        "service",
    }


def test_columns_of_no_field_are_kept_where_all_have_them(tmp_path: Path) -> None:
    kind = pa.map_(pa.int32(), pa.int64())
    inputs = [
        made(
            ONE, tmp_path, first_seq=10, hidden={"p.r:m.histogram": pa.array([[(1, 2)]], kind), "p.own": pa.array([1])}
        ),
        made(TWO, tmp_path, first_seq=11, hidden={"p.r:m.histogram": pa.array([None, [(-3, 4), (5, 6)]], kind)}),
    ]
    listed = merge(inputs, tmp_path, unique="m", level=1, fields=HASHES, rollups={})
    companion = opened(tmp_path, listed)
    assert companion.column("p.r:m.histogram", 0).to_pylist() == [[(1, 2)], None, [(-3, 4), (5, 6)]]
    assert companion.groups("p.r:m.histogram") == [(0, 3, None, None, 1)]
    with pytest.raises(KeyError):
        companion.groups("p.own")


def test_pieces_that_do_not_follow_each_other_are_refused(tmp_path: Path) -> None:
    one, two = pieces(tmp_path)
    with pytest.raises(ValueError, match="event 10 cannot come where 13 is due"):
        merge([two, one], tmp_path, unique="m", level=1, fields=HASHES, rollups={})
    other = msgspec.structs.replace(two.info, incarnation="2")
    with pytest.raises(ValueError, match="cannot come"):
        merge_infos([one.info, other], level=1, fields=HASHES, rollups={})


@pytest.mark.parametrize("wanted", [{**HASHES, "status": "0" * 16}, {**HASHES, "unheard": "0" * 16}])
def test_pieces_that_hold_something_else_are_refused(wanted: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as it is defined"):
        merge(pieces(tmp_path), tmp_path, unique="m", level=1, fields=wanted, rollups={})


def test_an_older_piece_may_have_another_hash(tmp_path: Path) -> None:
    one, two = pieces(tmp_path, through_version=2)
    older = {name: msgspec.structs.replace(shape, hash="0" * 16) for name, shape in one.info.fields.items()}
    info = merge_infos([msgspec.structs.replace(one.info, fields=older), two.info], level=1, fields=HASHES, rollups={})
    assert {name: shape.hash for name, shape in info.fields.items()} == HASHES


def test_more_rows_than_a_row_number_can_say_are_refused(tmp_path: Path) -> None:
    one, _ = pieces(tmp_path)
    half = [msgspec.structs.replace(one.info, first_seq=first, count=2**30) for first in (0, 2**30)]
    with pytest.raises(ValueError, match="cannot have 2147483648 rows"):
        merge_infos(half, level=1, fields=HASHES, rollups={})


def test_merging_holds_a_few_row_groups_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        Event({"request": [f"r{row:06}"], "message": ["common"], "service": [f"s{row % 7}"]}, key="k")
        for row in range(1_500)
    ]
    limits = Limits(rows=100, postings=100, terms=50, filtered=10)
    inputs = [made(events, tmp_path, limits, first_seq=1_500 * number) for number in range(4)]
    held = most = 0
    read, write = FileCompanion.block, FileWriter.write

    def counted_block(given: FileCompanion, group: int) -> Block:
        nonlocal held, most
        block = read(given, group)
        held += block.postings
        most = max(most, held)
        return block

    def counted_write(sink: FileWriter, table: Any) -> None:
        nonlocal held
        if "rows" in table.column_names:
            held -= len(table.column("rows").combine_chunks().flatten())
        write(sink, table)

    monkeypatch.setattr(FileCompanion, "block", counted_block)
    monkeypatch.setattr(FileWriter, "write", counted_write)
    listed = merge(inputs, tmp_path, unique="m", level=1, fields=HASHES, rollups={}, limits=limits)
    assert held == 0
    assert 100 < most <= (len(inputs) + 2) * limits.postings
    companion = opened(tmp_path, listed)
    assert len(companion.rows("message", "common")) == 6_000
    assert companion.rows("request", "r000017").tolist() == [17, 1_517, 3_017, 4_517]
