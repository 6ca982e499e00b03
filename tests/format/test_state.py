"""States as files: what is written is read back, in order, and what is damaged is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import CorruptData
from headrace.format import object_names, state_file
from headrace.format.object_names import range_name
from headrace.format.state import VERSION, State, StateInfo, decode_info
from headrace.format.state_file import ROWS, Packed, PackedColumns, StateReader, write

INFO = StateInfo(
    stream="events/E",
    incarnation="7",
    table="T",
    first_seq=10,
    count=5,
    level=1,
    lives={"a": "a@1", "frame": "frame@2"},
)


def written(path: Path, rows: list[Packed]) -> State:
    return write(path, INFO, "some", iter(rows))


def encoded(path: Path) -> list[Packed]:
    rows = StateReader(path, "x").encoded_rows()
    return [(key, msgspec.msgpack.decode(packed, type=dict[str, bytes])) for key, packed in rows]


def test_rows_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    rows: list[Packed] = [
        (b"\x91\x01", {"": b"f1", "a@1": b"s1", "frame@2": b"t1"}),
        (b"\x91\x02", {"": b"f2", "frame@2": b""}),
        (b"\x91\xff", {"": b"f3"}),
    ]
    state = written(tmp_path / "x.parquet", rows)
    reader = StateReader(tmp_path / "x.parquet", "x")
    assert reader.info == INFO
    assert list(reader.rows()) == encoded(tmp_path / "x.parquet") == rows
    assert state.rows == 3
    assert state.end_seq == 15
    assert state.lives == INFO.lives
    assert state.bytes == (tmp_path / "x.parquet").stat().st_size


def test_only_the_lives_asked_for_are_read(tmp_path: Path) -> None:
    written(tmp_path / "x.parquet", [(b"k", {"": b"f", "a@1": b"s", "frame@2": b"t"})])
    assert list(StateReader(tmp_path / "x.parquet", "x").rows({"a@1", "other"})) == [(b"k", {"": b"f", "a@1": b"s"})]


def test_many_rows_lie_in_several_row_groups(tmp_path: Path) -> None:
    rows: list[Packed] = [(f"{n:06}".encode(), {"": b"f", "a@1": str(n).encode()}) for n in range(ROWS + 3)]
    assert written(tmp_path / "x.parquet", rows).rows == ROWS + 3
    assert pq.ParquetFile(tmp_path / "x.parquet").num_row_groups == 2
    assert list(StateReader(tmp_path / "x.parquet", "x").rows()) == encoded(tmp_path / "x.parquet") == rows


def test_columns_are_written_as_their_rows_are(tmp_path: Path) -> None:
    rows: list[Packed] = [(b"a", {"": b"f", "a@1": b"s"}), (b"b", {"": b"g", "frame@2": b"t"})]
    columns = {name: pa.array([row.get(name) for _, row in rows], pa.binary()) for name in ("", "a@1", "frame@2")}
    keys = pa.array([key for key, _ in rows], pa.binary())
    by_rows = written(tmp_path / "rows.parquet", rows)
    assert write(tmp_path / "columns.parquet", INFO, "some", PackedColumns(keys, columns)) == by_rows
    assert write(tmp_path / "none.parquet", INFO, "none", PackedColumns(keys[:0], {})).rows == 0
    with pytest.raises(ValueError, match="out of order"):
        write(tmp_path / "order.parquet", INFO, "some", PackedColumns(keys.take(pa.array([1, 0])), columns))


def test_rows_are_encoded_apart_where_they_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "_MAX_ENCODED_BYTES", 3_000)
    rows: list[Packed] = [(bytes([n]), {"": b"f", "a@1": bytes(n * 70)}) for n in range(60)]
    written(tmp_path / "x.parquet", rows)
    assert encoded(tmp_path / "x.parquet") == rows


def test_a_state_may_be_empty(tmp_path: Path) -> None:
    assert written(tmp_path / "x.parquet", []).rows == 0
    assert list(StateReader(tmp_path / "x.parquet", "x").rows()) == encoded(tmp_path / "x.parquet") == []


@pytest.mark.parametrize("second", [b"a", b"b"])
def test_keys_out_of_order_are_refused(tmp_path: Path, second: bytes) -> None:
    with pytest.raises(ValueError, match="out of order"):
        written(tmp_path / "x.parquet", [(b"b", {"": b"f"}), (second, {"": b"f"})])


def test_a_damaged_file_says_so_and_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    written(path, [(bytes([n]), {"": b"frame" * 20, "a@1": bytes(50)}) for n in range(200)])
    data = bytearray(path.read_bytes())
    data[len(data) // 8] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptData) as raised:
        list(StateReader(path, "states/x").rows())
    assert raised.value.facts["object"] == "states/x"


def test_another_parquet_file_is_no_state(tmp_path: Path) -> None:
    import pyarrow as pa

    pq.write_table(pa.table({"key": [1]}), tmp_path / "x.parquet")
    with pytest.raises(CorruptData, match="no state"):
        StateReader(tmp_path / "x.parquet", "x")


def test_a_newer_format_asks_for_a_newer_headrace() -> None:
    newer = msgspec.json.encode({**msgspec.to_builtins(INFO), "version": VERSION + 1})
    with pytest.raises(CorruptData, match="install a newer one"):
        decode_info(newer, "x")


def test_a_damaged_identity_is_refused() -> None:
    with pytest.raises(CorruptData, match="damaged identity"):
        decode_info(b"{}", "x")


def test_keys_of_objects_tell_their_place() -> None:
    name = range_name(10, 5, "abc1")
    key = object_names.state_key("events/E", "7", name)
    place = object_names.parse_state_key(key)
    assert key.startswith(object_names.state_prefix("events/E", "7") + "/")
    assert place is not None and place[0][1] == "7" and place[1] == name
    assert object_names.parse_state_key(key.replace("states/", "segments/")) is None
    with pytest.raises(ValueError, match="cannot be part of a key"):
        range_name(1, 1, "../x")
