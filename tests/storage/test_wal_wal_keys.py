from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage import database
from headrace.storage.database import Connection
from headrace.storage.wal import KeyRow, Wal, WalKeys

ROWS = [(0, ["b", "b"]), (2, ["a"]), (3, ["x", None, "y"]), (6, [None, None]), (8, ["ä"]), (9, ["a", "c", "d"])]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    opened = database.connect(tmp_path / "t.db", cache_bytes=1 << 20)
    database.migrate(opened)
    for stream in (1, 2):
        for seq, keys in ROWS if stream == 1 else [(0, ["other"])]:
            same = len(set(keys)) == 1
            key, mixed = (keys[0], None) if same else (None, json.dumps(keys))
            Wal(opened).insert([(stream, seq, len(keys), 0, 0, key, mixed, None, 0, b"", None)])
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("start", "end", "after", "found"),
    [
        (0, 12, "", ["a", "b", "ä"]),
        (0, 12, "a", ["b", "ä"]),
        (1, 3, "", ["a", "b"]),
        (2, 8, "", ["a"]),
        (3, 12, "", ["ä"]),
        (2, 2, "", []),
    ],
)
def test_keys_that_rows_share_are_found_in_order(
    connection: Connection, start: int, end: int, after: str, found: list[str]
) -> None:
    assert list(WalKeys(connection).shared(1, start, end, after)) == found


@pytest.mark.parametrize(
    ("start", "end", "rows"), [(0, 12, [3, 9]), (4, 9, [3]), (5, 10, [3, 9]), (6, 9, []), (0, 3, [])]
)
def test_rows_of_different_keys_are_found_where_they_lie(
    connection: Connection, start: int, end: int, rows: list[int]
) -> None:
    found = list(WalKeys(connection).mixed(1, start, end))
    assert found == [KeyRow(seq, len(keys), keys) for seq, keys in ROWS if seq in rows]
