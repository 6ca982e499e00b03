"""Files of every format version, written once; every Headrace must read them as this one does."""

from __future__ import annotations

import hashlib
from itertools import accumulate, pairwise
from pathlib import Path

import duckdb
import msgspec
import pyarrow.parquet as pq
import pytest

from golden.contents import (
    EVENT_MS,
    EVENTS,
    ROWS_A_GROUP,
    STATE,
    STATE_ROWS,
    byte_runs,
    json_runs,
    manifest,
    manifest_v2,
    manifest_v4,
    state_v2,
    table_reducer,
)
from headrace.format.decoded_columns import LruCache
from headrace.format.manifest import Manifest, decode
from headrace.format.object_names import manifest_key
from headrace.format.segment.reader import SegmentReader
from headrace.format.segment.row_group import AppendRun
from headrace.format.state_file import StateReader
from headrace.reduce.features.table import KeyState

HERE = Path(__file__).parent
JSON, BYTES = HERE / "segment-v1-json.parquet", HERE / "segment-v1-bytes.parquet"
DIGESTS = {
    JSON: "89dbcf27e7eb188380d9dea0a7786d0af3391eca3e51f52120aaaef3a9237528",
    BYTES: "205a387a7e686604fddb9b26c932d1705f2c2b4a7ef6bc5aced22f6f6342f09f",
    HERE / "manifest-v1.json": "4acdbc3487114f2acac567de8e1255101542eb0db8c97b3a6d3591c2cef609c0",
    HERE / "manifest-v2.json": "a237717490e10f3de7e3c9157a29eafbd9901f6ba6f1a1d4ab586deec8504e76",
    HERE / "manifest-v4.json": "4d6537f8a600165dd6bfbadb6d17cf55aae69019745e779dbbcbc804952f50e4",
    HERE / "state-v1.parquet": "5af1813f663a13e70559244ac34cedfc3f95beecb928b8de6c0dafe4a789bd32",
    HERE / "state-v2.parquet": "6a155de273f1694ce4376d68a5f66a6df72ffb4851a4d44a6efc5d41a430a4ac",
}
SEGMENTS = [(JSON, json_runs()), (BYTES, byte_runs())]

Row = tuple[int, int, str | None, int, bool, bytes]


def rows(runs: list[AppendRun]) -> list[Row]:
    """Every entry with all its columns."""
    found: list[Row] = []
    for run in runs:
        for place, payload in enumerate(run.payloads):
            key = run.keys if run.keys is None or isinstance(run.keys, str) else run.keys[place]
            found.append((run.seq + place, run.append_us, key, run.version, place == 0, bytes(payload)))
    return found


@pytest.mark.parametrize("path", DIGESTS, ids=lambda path: path.name)
def test_the_file_is_the_one_that_was_written_once(path: Path) -> None:
    assert hashlib.sha256(path.read_bytes()).hexdigest() == DIGESTS[path]


@pytest.mark.parametrize(("path", "runs"), SEGMENTS, ids=["json", "bytes"])
def test_a_segment_is_read_back_whole(path: Path, runs: list[AppendRun]) -> None:
    reader = SegmentReader(path, name=path.name, decoded=LruCache(1 << 20), sha256=DIGESTS[path])
    reader.verify()
    wanted, is_json = rows(runs), path is JSON
    assert reader.info.stream == "golden"
    assert reader.info.incarnation == "0000000001"
    assert reader.info.json == is_json
    assert reader.info.min_us == wanted[0][1]
    assert reader.info.max_us == wanted[-1][1]
    assert len(reader.info.groups) == -(-len(wanted) // ROWS_A_GROUP)
    comma = b"," if is_json else b""
    for key in (None, *{row[2] for row in wanted}):
        parts = reader.read(reader.first_seq, reader.end_seq, 1 << 20, key).parts
        assert comma.join(part.body for part in parts) == comma.join(r[5] for r in wanted if key in (None, r[2]))
    starts = [*accumulate((len(run.payloads) for run in runs), initial=runs[0].seq)]
    assert {reader.request_at(row[0]) for row in wanted} == set(pairwise(starts))
    for row in wanted:
        first = next(other[0] for other in wanted if other[1] == row[1])
        assert reader.append_times().first_since(row[1]) == (first, row[1])


@pytest.mark.parametrize(("path", "runs"), SEGMENTS, ids=["json", "bytes"])
def test_duckdb_reads_a_segment(path: Path, runs: list[AppendRun]) -> None:
    sql = f"SELECT seq, epoch_us(append_time), key, version, first, encode(payload) FROM '{path}' ORDER BY seq"
    if path is BYTES:
        sql = sql.replace("encode(payload)", "payload")
    assert duckdb.sql(sql).fetchall() == rows(runs)


@pytest.mark.parametrize(("path", "runs"), SEGMENTS, ids=["json", "bytes"])
def test_pyarrow_reads_a_segment(path: Path, runs: list[AppendRun]) -> None:
    table = pq.read_table(path)
    payloads = [value.encode() if isinstance(value, str) else value for value in table.column("payload").to_pylist()]
    assert payloads == [row[5] for row in rows(runs)]
    assert [moment.value for moment in table.column("append_time")] == [row[1] for row in rows(runs)]


def test_pandas_reads_a_segment() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(JSON)
    assert frame["payload"].tolist() == [row[5].decode() for row in rows(json_runs())]
    assert frame["seq"].tolist() == [row[0] for row in rows(json_runs())]


def test_a_state_is_read_back_whole() -> None:
    reader = StateReader(HERE / "state-v1.parquet", "golden")
    assert reader.info == msgspec.structs.replace(STATE, version=1)
    assert list(reader.rows()) == STATE_ROWS


def test_a_state_of_version_2_answers_as_its_events() -> None:
    reader, reducer = StateReader(HERE / "state-v2.parquet", "golden"), table_reducer()
    folded: dict[bytes, KeyState] = {}
    for seq, (event, at_ms) in enumerate(zip(EVENTS, EVENT_MS, strict=True)):
        key, row = reducer.key_and_row(event) or (b"", {})
        folded[key] = reducer.fold(folded.get(key), at_ms, seq, row)
    states = {key: reducer.unpack(packed) for key, packed in reader.rows()}
    assert reader.info == state_v2()[0]
    assert states == {key: folded[key] for key in sorted(folded)}
    answers = {key: reducer.finish(state, EVENT_MS[-1]) for key, state in states.items()}
    assert answers == {key: reducer.finish(state, EVENT_MS[-1]) for key, state in folded.items()}


@pytest.mark.parametrize(
    ("version", "contents"), [(1, manifest()), (2, manifest_v2()), (4, manifest_v4())], ids=["v1", "v2", "v4"]
)
def test_a_manifest_is_read_back_whole(version: int, contents: Manifest) -> None:
    key = manifest_key("orders/größe", "0000000007", 42)
    assert decode((HERE / f"manifest-v{version}.json").read_bytes(), key) == contents
