from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import CorruptData
from headrace.format import bloom
from headrace.format.decoded_columns import LruCache
from headrace.format.segment import layout
from headrace.format.segment.reader import SegmentReader, SlicePart
from headrace.format.segment.row_group import AppendRun
from headrace.format.segment.writer import SegmentWriter
from headrace.schema.entries import entries_of
from support.segment_files import START_US, Cell, opened, reader_of, runs_of, seal

ALL = 1 << 30

CELLS = [
    Cell(b'{"n":0}', "a", START_US, 1, 0),
    Cell(b'{"n":1}', "a", START_US, 1, 0),
    Cell('{"n":"é"}'.encode(), None, START_US + 5, 1, 1),
    Cell(b" 3 ", "b", START_US + 5, 2, 2),
    Cell(b"[4,4]", "a", START_US + 9, 2, 3),
    Cell(b"null", "c", START_US + 9, 2, 3),
]


@pytest.fixture(params=[1, 2, 100], ids=["one row a group", "two", "one group"])
def reader(request: pytest.FixtureRequest) -> SegmentReader:
    return opened(CELLS, first_seq=10, group_rows=request.param)


def test_what_was_appended_is_read_back_as_it_was_spelled(reader: SegmentReader) -> None:
    found = reader.read(10, ALL, ALL)
    assert b"|".join(part.body for part in found.parts).replace(b"|", b",") == b",".join(c.payload for c in CELLS)
    assert found.position == 16
    assert reader.first_seq == 10
    assert reader.end_seq == 16


def test_a_read_cuts_its_parts_where_the_schema_version_changes() -> None:
    parts = opened(CELLS, first_seq=10).read(11, 15, ALL).parts
    assert parts == [SlicePart(1, 2, '{"n":1},{"n":"é"}'.encode()), SlicePart(2, 2, b" 3 ,[4,4]")]


def test_a_read_keeps_to_its_budget_but_yields_at_least_one_entry(reader: SegmentReader) -> None:
    assert reader.read(10, ALL, 1) == ([SlicePart(1, 1, b'{"n":0}')], 11)
    assert reader.read(13, ALL, 9).position == 15
    assert reader.read(13, ALL, 8).position == 14


def test_a_read_beyond_the_end_finds_nothing(reader: SegmentReader) -> None:
    assert reader.read(16, ALL, ALL) == ([], 16)
    assert reader.read(12, 12, ALL) == ([], 12)


def test_entries_of_one_key_are_found_wherever_they_lie(reader: SegmentReader) -> None:
    assert [part.body for part in reader.read(10, ALL, ALL, key="c").parts] == [b"null"]
    assert b",".join(p.body for p in reader.read(11, ALL, ALL, key="a").parts) == b'{"n":1},[4,4]'
    assert reader.read(10, ALL, ALL, key="b;") == ([], 16)
    assert reader.read(10, ALL, ALL, key="z") == ([], 16)


def test_a_keyed_read_goes_on_with_the_next_entry_of_the_key(reader: SegmentReader) -> None:
    parts, position = reader.read(10, ALL, 9, key="a")
    assert [part.body for part in parts] == [b'{"n":0}']
    assert position == 11
    assert reader.read(12, ALL, 5, key="a").position in (15, 16)


def test_rows_of_one_key_come_with_their_numbers_and_times(reader: SegmentReader) -> None:
    def rows(position: int, end: int, key: str) -> list[tuple[int, str]]:
        found = pa.Table.from_batches(reader.keyed(position, end, key), layout.schema(True))
        return list(zip(found["seq"].to_pylist(), found["payload"].to_pylist(), strict=True))

    assert rows(10, ALL, "a") == [(10, '{"n":0}'), (11, '{"n":1}'), (14, "[4,4]")]
    assert rows(11, 14, "a") == [(11, '{"n":1}')]
    assert rows(10, ALL, "z") == rows(15, ALL, "a") == []


def test_entries_of_one_key_are_the_same_however_often_they_are_asked_for(reader: SegmentReader) -> None:
    def entries(position: int, end: int, key: str) -> list[tuple[int, int, bytes]]:
        found = reader.having(position, end, key)
        return [(one.seq, one.at_us - START_US, bytes(one.payload)) for one in found]

    for _ in range(20):
        assert entries(10, ALL, "a") == [(10, 0, b'{"n":0}'), (11, 0, b'{"n":1}'), (14, 9, b"[4,4]")]
        assert entries(11, 14, "a") == [(11, 0, b'{"n":1}')]
        assert entries(10, ALL, "z") == entries(15, ALL, "a") == []


def test_an_index_of_keys_is_made_for_who_asks_often_and_makes_room_for_others() -> None:
    data, decoded = seal(CELLS, first_seq=10)[0], LruCache(1024 * 1024)
    reader = SegmentReader(data, name="often", decoded=decoded)
    for _ in range(7):
        list(reader.having(0, ALL, "a"))
    assert not decoded.bytes
    list(reader.having(0, ALL, "a"))
    assert decoded.bytes
    small = SegmentReader(data, name="never", decoded=LruCache(1))
    assert [[one.seq for one in small.having(0, ALL, "b")] for _ in range(40)] == [[13]] * 40


def test_a_moment_leads_to_the_first_entry_at_or_after_it(reader: SegmentReader) -> None:
    moments = [START_US - 1, START_US, START_US + 1, START_US + 5, START_US + 9, START_US + 10]
    first = [reader.append_times().first_since(moment) for moment in moments]
    assert first == [(10, START_US)] * 2 + [(12, START_US + 5)] * 2 + [(14, START_US + 9), None]
    assert [reader.time_at(seq) - START_US for seq in range(10, 16)] == [0, 0, 5, 5, 9, 9]


def test_the_append_request_that_holds_an_entry_is_known(reader: SegmentReader) -> None:
    assert [reader.request_at(seq) for seq in range(10, 16)] == [
        (10, 12), (10, 12), (12, 13), (13, 14), (14, 16), (14, 16),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="entry 16 is not in"):
        reader.request_at(16)


def test_bytes_are_counted_as_the_log_counts_them(reader: SegmentReader) -> None:
    """With the commas inside a request, without those between."""
    assert [reader.bytes_before(seq) for seq in range(10, 17)] == [0, 7, 15, 25, 28, 33, 38]


def test_bytes_of_a_byte_stream_have_no_commas() -> None:
    cells = [Cell(b"\xff,", None, request=0), Cell(b"", None, request=1), Cell(b",x\0", "k", request=2)]
    reader = opened(cells, is_json=False, group_rows=2)
    assert reader.read(0, ALL, ALL) == ([SlicePart(0, 2, b"\xff,"), SlicePart(0, 1, b",x\0")], 3)
    assert [reader.bytes_before(seq) for seq in range(4)] == [0, 2, 2, 5]
    assert reader.read(0, ALL, ALL, key="k").parts == [SlicePart(0, 1, b",x\0")]


def test_rows_taken_over_from_another_segment_keep_everything() -> None:
    old = opened(CELLS, first_seq=10, group_rows=2)
    file = io.BytesIO()
    writer = SegmentWriter(
        file, stream="tests", incarnation="1", is_json=True, split=entries_of, first_seq=11, group_rows=4
    )
    writer.copy(old.batches(11, 99))
    writer.add(AppendRun(writer.next_seq, START_US + 9, 2, "d", [b"6"]))
    sealed = writer.finish()
    new = reader_of(file.getvalue(), sha256=sealed.sha256)
    new.verify()
    assert [part.body for part in new.read(0, ALL, ALL, key="a").parts] == [b'{"n":1}', b"[4,4]"]
    assert [new.request_at(seq) for seq in (12, 14, 15, 16)] == [(12, 13), (14, 16), (14, 16), (16, 17)]
    assert new.append_times().first_since(START_US + 9) == (14, START_US + 9)
    assert new.end_seq == 17
    assert new.info.payload_bytes == 30
    assert [size for size, _ in new.info.groups] == [20, 10]


def test_an_entry_larger_than_a_row_group_has_one_of_its_own() -> None:
    big = b'"' + b"x" * 10_000 + b'"'
    reader = opened([Cell(b"1"), Cell(big), Cell(b"2"), Cell(b"3")], group_bytes=100)
    assert [size for size, _ in reader.info.groups] == [1, len(big), 2]
    assert reader.read(0, ALL, 5) == ([SlicePart(0, 1, b"1")], 1)
    assert reader.read(1, ALL, 5) == ([SlicePart(0, 1, big)], 2)


def test_a_long_request_is_spread_over_row_groups() -> None:
    reader = opened([Cell(b"%04d" % n) for n in range(1000)], group_bytes=400, group_rows=90)
    assert len(reader.info.groups) == 12
    assert [reader.request_at(seq) for seq in (0, 500, 999)] == [(0, 1000)] * 3
    assert sum(requests for _, requests in reader.info.groups) == 1


def test_entries_must_follow_one_another() -> None:
    def writer() -> SegmentWriter:
        return SegmentWriter(io.BytesIO(), stream="s", incarnation="1", is_json=True, split=entries_of, first_seq=5)

    with pytest.raises(ValueError, match="entry 6 cannot come where 5 is due"):
        writer().add(AppendRun(6, START_US, 0, None, [b"1"]))
    late = writer()
    late.add(AppendRun(5, START_US, 0, None, [b"1"]))
    with pytest.raises(ValueError, match="entry 6 was appended before"):
        late.add(AppendRun(6, START_US - 1, 0, None, [b"1"]))
    with pytest.raises(ValueError, match="2 entries cannot have 1 keys"):
        writer().add(AppendRun(5, START_US, 0, ["k"], [b"1", b"2"]))
    with pytest.raises(ValueError, match="at least one entry"):
        writer().finish()


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ValueError, match="UTF8"):
        seal([Cell(b'"\xff"')])


def test_raw_slices_of_a_body_are_taken_as_they_are() -> None:
    raws = msgspec.json.decode(b'[{"a": 1} , 2]', type=list[msgspec.Raw])
    file = io.BytesIO()
    writer = SegmentWriter(file, stream="s", incarnation="1", is_json=True, split=entries_of, first_seq=0)
    writer.add(AppendRun(0, START_US, 0, None, raws))
    writer.finish()
    assert reader_of(file.getvalue()).read(0, 2, ALL).parts == [SlicePart(0, 2, b'{"a": 1},2')]


def test_any_tool_reads_a_segment(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    path.write_bytes(seal(CELLS, first_seq=10)[0])
    table = pq.read_table(path)
    assert [(f.name, str(f.type)) for f in table.schema] == [
        ("seq", "int64"), ("append_time", "timestamp[us, tz=UTC]"), ("key", "string"), ("version", "int32"),
        ("first", "bool"), ("payload", "string"),
    ]  # fmt: skip
    sql = f"SELECT seq, epoch_us(append_time), key, version, first, payload FROM '{path}' ORDER BY seq"
    assert duckdb.sql(sql).fetchall() == [
        (10 + n, c.at_us, c.key, c.version, n in (0, 2, 3, 4), c.payload.decode()) for n, c in enumerate(CELLS)
    ]
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE key = 'a'").fetchall() == [(3,)]


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    data, sealed = seal(CELLS, first_seq=10)
    footer = pq.read_metadata(pa.BufferReader(data))
    assert json.loads(footer.metadata[b"headrace"]) == {
        "version": 1, "stream": "tests", "incarnation": "1", "json": True, "first_seq": 10, "count": 6,
        "payload_bytes": 36, "min_us": START_US, "max_us": START_US + 9, "groups": [[36, 4]],
    }  # fmt: skip
    assert sealed.bytes == len(data)
    assert sealed.info.count == 6
    assert {footer.row_group(0).column(n).compression for n in range(6)} == {"ZSTD"}


def test_row_groups_have_filters_only_where_there_are_keys() -> None:
    def filters(cells: list[Cell]) -> list[bool]:
        footer = pq.read_metadata(pa.BufferReader(seal(cells, group_rows=2)[0]))
        groups = (footer.row_group(n) for n in range(footer.num_row_groups))
        return [group.column(layout.KEY).bloom_filter_offset is not None for group in groups]

    assert filters(CELLS) == [True] * 3
    assert filters([cell._replace(key=None) for cell in CELLS]) == [False] * 3


def test_a_filter_knows_every_key_and_hardly_any_other() -> None:
    keys = ["k" * (n % 80) + f"-{n}é" for n in range(2000)]
    data, _ = seal([Cell(b"1", key, request=n) for n, key in enumerate(keys)])
    chunk = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(layout.KEY)
    start = chunk.bloom_filter_offset
    stored = memoryview(data)[start : start + chunk.bloom_filter_length]
    assert all(bloom.may_hold(stored, bloom.xxh64(key.encode())) for key in keys)
    assert sum(bloom.may_hold(stored, bloom.xxh64(b"other-%d" % n)) for n in range(2000)) < 100


@pytest.mark.parametrize(
    ("data", "digest"), [(b"", 0xEF46DB3751D8E999), (b"a", 0xD24EC4F1A98C6E5B), (b"abc", 0x44BC2CF5AD770999)]
)
def test_the_hash_is_xxh64(data: bytes, digest: int) -> None:
    assert bloom.xxh64(data) == digest


def test_a_changed_byte_is_found_by_the_checksum() -> None:
    data, sealed = seal(CELLS)
    changed = data[:40] + bytes([data[40] ^ 1]) + data[41:]
    with pytest.raises(CorruptData, match="checksum differs") as caught:
        reader_of(changed, name="segments/x", sha256=sealed.sha256)
    assert caught.value.facts == {"object": "segments/x", "check": "checksum"}


def test_a_damaged_page_is_found_when_it_is_read() -> None:
    data, _ = seal([Cell(b'{"text":"%04d"}' % n) for n in range(100)])
    chunk = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(layout.PAYLOAD)
    place = chunk.data_page_offset + chunk.total_compressed_size - 3
    reader = reader_of(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], name="segments/y")
    with pytest.raises(CorruptData, match="segments/y is damaged"):
        reader.read(0, ALL, ALL)
    with pytest.raises(CorruptData, match="segments/y is damaged"):
        reader.verify()


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all", b"PAR1" + bytes(40) + b"PAR1"])
def test_what_is_not_parquet_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData, match="segments/z is damaged"):
        reader_of(data, name="segments/z")


def _with_identity(identity: bytes | None, table: pa.Table | None = None) -> bytes:
    file = io.BytesIO()
    table = pq.read_table(pa.BufferReader(seal(CELLS)[0])) if table is None else table
    with pq.ParquetWriter(file, table.schema.remove_metadata(), store_schema=False) as writer:
        writer.write_table(table)
        if identity is not None:
            writer.add_key_value_metadata({b"headrace": identity})
    return file.getvalue()


def test_foreign_and_newer_files_are_refused() -> None:
    info = seal(CELLS)[1].info
    newer = msgspec.json.encode({**msgspec.to_builtins(info), "version": 2, "colour": "blue"})
    wrong = msgspec.json.encode({**msgspec.to_builtins(info), "first_seq": 1})
    short = msgspec.json.encode({**msgspec.to_builtins(info), "count": 5})
    for identity, check in [(None, "identity"), (b"{", "identity"), (newer, "version"), (wrong, "continuity")]:
        with pytest.raises(CorruptData) as caught:
            reader_of(_with_identity(identity))
        assert caught.value.facts["check"] == check
    with pytest.raises(CorruptData, match="6 entries in 1 row groups"):
        reader_of(_with_identity(short))
    with pytest.raises(CorruptData, match="does not have the columns"):
        reader_of(_with_identity(msgspec.json.encode(info), pa.table({"seq": pa.array([0])})))


def test_rows_that_contradict_the_footer_are_found_by_verifying() -> None:
    info = msgspec.json.encode(seal(CELLS)[1].info)
    table = pq.read_table(pa.BufferReader(seal(CELLS)[0]))

    def changed(column: str, values: list[object]) -> SegmentReader:
        place = table.schema.get_field_index(column)
        field = table.schema.field(column)
        return reader_of(_with_identity(info, table.set_column(place, field, pa.array(values, field.type))))

    times = [START_US, START_US + 9, START_US, START_US, START_US, START_US]
    for column, values, check in [
        ("seq", [0, 1, 1, 3, 4, 5], "continuity"),
        ("append_time", times, "order"),
        ("payload", ["", "", "", "", "", "x"], "count"),
        ("first", [True] * 6, "count"),
    ]:
        with pytest.raises(CorruptData) as caught:
            changed(column, values).verify()
        assert caught.value.facts["check"] == check


def test_a_file_may_be_removed_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gone.parquet"
    path.write_bytes(seal(CELLS)[0])
    reader = reader_of(path)  # type: ignore[arg-type]
    path.unlink()
    assert reader.read(0, ALL, ALL).position == 6


def test_threads_share_a_reader() -> None:
    cells = [Cell(b"%06d" % n, f"key-{n % 7}", request=n) for n in range(4000)]
    reader = opened(cells, group_rows=100)

    def follow(start: int) -> bytes:
        found, position = [], start
        while position < reader.end_seq:
            parts, position = reader.read(position, ALL, 300, key="key-3" if start % 2 else None)
            found += [part.body for part in parts]
        return b",".join(found)

    with ThreadPoolExecutor(4) as pool:
        for start, found in zip(range(16), pool.map(follow, range(16)), strict=True):
            wanted = [c.payload for c in cells[start:] if c.key == "key-3" or not start % 2]
            assert found == b",".join(wanted)


def test_decoded_columns_stay_within_their_limit() -> None:
    decoded = LruCache(100)
    for name in range(20):
        decoded.put(name, str(name), 30)
        assert decoded.bytes <= 100
    assert [decoded.get(name) for name in (16, 17, 18, 19)] == [None, "17", "18", "19"]
    decoded.put("huge", "x", 101)
    assert decoded.get("huge") is None
    decoded.put(17, "again", 40)
    assert decoded.get(17) == "again"
    assert decoded.bytes == 100


def test_decoded_row_groups_are_used_again() -> None:
    data, _ = seal([Cell(b"%06d" % n) for n in range(1000)], group_rows=100)
    decoded = LruCache(1 << 20)
    reader = reader_of(data, decoded=decoded)
    assert not reader.is_loaded(250)
    reader.load(250)
    before = decoded.bytes
    assert before > 0
    assert [reader.is_loaded(seq) for seq in (199, 200, 299, 300)] == [False, True, True, False]
    assert reader.group_end(200) == 300
    assert reader.group_end(299) == 300
    assert reader.group_end(300) == 400
    assert reader.read(200, 300, ALL).parts[0].entries == 100
    assert decoded.bytes == before


def test_two_who_want_a_row_group_decode_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = seal([Cell(b"%06d" % n) for n in range(1000)])
    reader, decode, together = reader_of(data, decoded=LruCache(1 << 20)), SegmentReader._decode, Barrier(4)
    decodings: list[object] = []

    def counted(self: SegmentReader, *columns: Any) -> list[Any]:
        decodings.append(columns)
        return decode(self, *columns)

    def load(seq: int) -> None:
        together.wait(10)
        reader.load(seq)

    monkeypatch.setattr(SegmentReader, "_decode", counted)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(load, range(4)))
    assert len(decodings) == 1


_WITHOUT_PANDAS = """
import sys

class NoPandas:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "pandas", "pandas is loaded"

sys.meta_path.insert(0, NoPandas())
from support.segment_files import Cell, opened

reader = opened([Cell(b'{"n":1}', key, request=n) for n, key in enumerate(["a", None, "b", "a"])], group_rows=3)
reader.verify()
for key in (None, "a"):
    print(sum(part.entries for part in reader.read(0, 4, 1000, key).parts))
"""


def test_neither_writing_nor_reading_loads_pandas() -> None:
    """It may be installed for other purposes, and takes long to load."""
    path = os.pathsep.join(str(Path(__file__).parents[n] / name) for n, name in ((3, "src"), (2, "")))
    command = [sys.executable, "-W", "error", "-c", _WITHOUT_PANDAS]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "4\n2\n"
    assert done.stderr == ""


def test_memory_does_not_grow_with_the_segment(tmp_path: Path) -> None:
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    text = b'"' + b"x" * 1000 + b'"'
    with (tmp_path / "large.parquet").open("wb") as file:
        writer = SegmentWriter(
            file, stream="s", incarnation="1", is_json=True, split=entries_of, first_seq=0, group_bytes=1 << 18
        )
        for request in range(200):
            writer.add(AppendRun(request * 200, START_US, 0, f"key-{request}", [text] * 200))
            most = max(most, pool.bytes_allocated() - before)
        writer.finish()
    assert most < 8 << 18
    reader = SegmentReader(tmp_path / "large.parquet", name="large", decoded=LruCache(1 << 20))
    position = 0
    while position < reader.end_seq:
        position = reader.read(position, ALL, 1 << 18).position
        most = max(most, pool.bytes_allocated() - before)
    assert reader.info.payload_bytes > 40_000_000
    assert most < 2 << 20


def test_runs_of_cells_are_what_was_meant() -> None:
    assert [run.seq for run in runs_of(CELLS, 10)] == [10, 12, 13, 14]
