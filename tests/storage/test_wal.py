from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headrace.format.body_compression import LEAST_BYTES
from headrace.storage import database
from headrace.storage.database import Connection, SQLiteError
from headrace.storage.wal import Bundle, Row, Wal, pack_body

STREAM = 1


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    connection = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    database.migrate(connection)
    yield connection
    connection.close()


@pytest.fixture
def wal(connection: Connection) -> Wal:
    """Three requests: entries 0-1, 2 (key k) and 3-5; and another stream's."""
    wal = Wal(connection)
    wal.insert([_row(0, 2), _row(2, 1, key="k"), _row(3, 3), (2, 0, 9, 0, 0, "k", None, None, 1, b"other", None)])
    return wal


def _row(seq: int, count: int, key: str | None = None) -> Row:
    return STREAM, seq, count, 100 + seq, 0, key, None, None, seq + count, b"x" * count, None


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 17, 64, 150])
def test_any_number_of_rows_is_inserted_whole(connection: Connection, rows: int) -> None:
    wal = Wal(connection)
    wal.insert([_row(seq, 1) for seq in range(rows)])
    assert [row.seq for row in wal.scan(STREAM, 0, rows + 1)] == list(range(rows))


@pytest.mark.parametrize("body", [b'{"n":1},' * 1000, bytes(100_000), Random(1).randbytes(5_000), b"x" * LEAST_BYTES])
def test_a_long_body_is_read_as_it_came(connection: Connection, body: bytes) -> None:
    wal = Wal(connection)
    wal.insert([_row(0, 1), (*_row(1, 1)[:-2], *pack_body(body)), _row(2, 1)])
    assert [row.body for row in wal.scan(STREAM, 0, 3)] == [b"x", body, b"x"]
    found = wal.holding(STREAM, 1)
    assert found is not None and found.body == body


def test_words_that_repeat_take_little_space(connection: Connection) -> None:
    Wal(connection).insert([(*_row(0, 1)[:-2], *pack_body(b'{"n":1},' * 1000))])
    size, packed = connection.execute("SELECT length(body), packed FROM wal").get
    assert size < 200
    assert packed == 8000


def test_a_bundle_holds_what_its_rows_hold(connection: Connection) -> None:
    wal = Wal(connection)
    bodies = [b'{"n":1}', b'{"n":2},{"n":3}', '{"größe":"✓"}'.encode()]
    rows: list[Row] = [
        (STREAM, seq, count, 100 + seq, 7, None, None, None, 10 * seq, body, None)
        for (seq, count), body in zip([(4, 1), (5, 2), (7, 1)], bodies, strict=True)
    ]
    wal.insert([*rows, _row(8, 1), (2, 4, 1, 0, 0, None, None, None, 1, b"other", None)])
    found = wal.bundle(STREAM, 4, 8)
    assert found == Bundle([1, 2, 1], [104, 105, 107], [None] * 3, 7, 8, 70, b",".join(bodies))


def test_rows_of_a_bundle_keep_their_keys(connection: Connection) -> None:
    wal = Wal(connection)
    wal.insert([_row(0, 1, key="a"), _row(1, 1, key='"b"'), _row(2, 1)])
    found = wal.bundle(STREAM, 0, 2)
    assert found is not None and found.keys == ["a", '"b"']
    assert wal.bundle(STREAM, 0, 3) is None


@pytest.mark.parametrize(
    "other",
    [
        (STREAM, 1, 1, 0, 0, None, '["k"]', None, 1, b"1", None),
        (STREAM, 1, 1, 0, 1, None, None, None, 1, b"1", None),
        (STREAM, 1, 1, 0, 0, None, None, None, 1, *pack_body(Random(1).randbytes(LEAST_BYTES))),
        (STREAM, 1, 1, 0, 0, None, None, None, 1, *pack_body(b"1" * LEAST_BYTES)),
        (STREAM, 2, 1, 0, 0, None, None, None, 1, b"1", None),
    ],
    ids=["a list of keys", "another version", "a long body", "a packed body", "a gap"],
)
def test_rows_that_are_not_alike_are_no_bundle(connection: Connection, other: Row) -> None:
    wal = Wal(connection)
    wal.insert([_row(0, 1), other])
    assert wal.bundle(STREAM, 0, 1) is not None
    assert wal.bundle(STREAM, 0, 3) is None


def test_a_bundle_begins_where_it_should(wal: Wal) -> None:
    assert wal.bundle(STREAM, 1, 3) is None
    assert wal.bundle(STREAM, 6, 9) is None


def test_a_scan_begins_with_the_row_that_holds_the_position(wal: Wal) -> None:
    assert [row.seq for row in wal.scan(STREAM, 1, 9)] == [0, 2, 3]
    assert [row.seq for row in wal.scan(STREAM, 4, 9)] == [3]
    assert [row.seq for row in wal.scan(STREAM, 0, 3)] == [0, 2]


def test_a_scan_can_ask_for_one_key(wal: Wal) -> None:
    assert [(row.seq, row.key) for row in wal.scan_key(STREAM, "k", 0, 9)] == [(2, "k")]
    assert list(wal.scan_key(STREAM, "k", 3, 9)) == []


def test_a_scan_that_is_given_up_keeps_no_snapshot_open(wal: Wal, connection: Connection, tmp_path: Path) -> None:
    reader = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20, readonly=True)
    scan = Wal(reader).scan(STREAM, 0, 9)
    next(scan)
    del scan
    wal.insert([_row(6, 1)])
    busy, _, _ = connection.pragma("wal_checkpoint", "TRUNCATE")
    assert not busy
    reader.close()


def test_the_row_that_holds_an_entry_is_found(wal: Wal) -> None:
    assert [getattr(wal.holding(STREAM, seq), "seq", None) for seq in range(7)] == [0, 0, 2, 3, 3, 3, None]


def test_trimming_removes_rows_that_lie_wholly_in_a_range(wal: Wal) -> None:
    assert wal.trim(STREAM, 0, 1, rows=10) == 0
    assert wal.trim(STREAM, 0, 5, rows=1) == 1
    assert wal.trim(STREAM, 0, 5, rows=10) == 1
    assert [row.seq for row in wal.scan(STREAM, 0, 9)] == [3]
    assert wal.trim(STREAM, 4, 9, rows=10) == 0
    assert wal.holding(STREAM, 2) is None


def test_two_rows_cannot_begin_at_the_same_number(wal: Wal) -> None:
    with pytest.raises(SQLiteError):
        wal.insert([_row(3, 1)])


def test_a_probe_leaves_nothing_behind(wal: Wal, connection: Connection) -> None:
    before = connection.execute("SELECT count(*) FROM wal").get
    wal.probe()
    assert connection.execute("SELECT count(*) FROM wal").get == before


def test_a_probe_needs_room(wal: Wal, connection: Connection) -> None:
    connection.pragma("max_page_count", connection.pragma("page_count"))
    with pytest.raises(SQLiteError):
        wal.probe()
