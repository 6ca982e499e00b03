"""Files become rows of JSON: nothing is lost, changed or skipped in silence."""

from __future__ import annotations

import base64
import datetime
import decimal
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.client.importer.reader import RowReader, find_files, format_of
from headrace.client.row_batches import BadRow


def read(*paths: Path) -> tuple[list[str], list[BadRow]]:
    """The texts of all rows, and what is no row."""
    reader = RowReader(paths)
    try:
        chunks = list(reader.chunks())
    finally:
        reader.close()
    return [text for chunk in chunks for text in chunk.rows.to_pylist()], [bad for chunk in chunks for bad in chunk.bad]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_lines_are_taken_as_they_are_spelled(tmp_path: Path) -> None:
    lines = ['{"n": 1.10,  "big": 123456789012345678901234567890}', '{"t": "\\u00e9"}']
    rows, bad = read(write(tmp_path / "a.jsonl", "\r\n".join(lines)))
    assert rows == lines
    assert bad == []


def test_lines_that_are_no_rows_are_named_by_their_number(tmp_path: Path) -> None:
    content = b'{"a":1}\n\n{"b":\n{"c":"\xff"}\n{"d":"\x01"}\n  \n{"e":2}'
    rows, bad = read(write(tmp_path / "a.jsonl", content))
    assert rows == ['{"a":1}', '{"e":2}']
    assert sorted((row.number, row.reason.split(":")[0]) for row in bad) == [
        (3, "not JSON"),
        (4, "not UTF-8"),
        (5, "the line has a control character"),
    ]


def test_numbers_go_on_behind_lines_that_arrow_skips(tmp_path: Path) -> None:
    content = "".join(f'{{"n":{number}}}\n' if number % 3 else "\x01\n" for number in range(1, 200))
    reader = RowReader([write(tmp_path / "a.jsonl", content)])
    for chunk in reader.chunks():
        for number, text in zip(chunk.numbers.to_pylist(), chunk.rows.to_pylist(), strict=True):
            assert json.loads(text) == {"n": number}
        assert {row.number for row in chunk.bad} == {number for number in range(1, 200) if number % 3 == 0}


def test_columns_of_csv_have_the_type_that_all_their_values_have(tmp_path: Path) -> None:
    content = (
        "id,zip,price,ok,at,day,note\n"
        '1,00501,0.10,true,2026-01-01 10:00,2026-01-01,"a, ""b"""\n'
        "99999999999999999999,12345,-1e3,FALSE,2026-01-01T10:00:00.123456789+0100,2026-01-02,\n"
    )
    rows, bad = read(write(tmp_path / "a.csv", content))
    assert rows == [
        '{"id":1,"zip":"00501","price":0.10,"ok":true,'
        '"at":"2026-01-01T10:00:00Z","day":"2026-01-01","note":"a, \\"b\\""}',
        '{"id":99999999999999999999,"zip":"12345","price":-1e3,"ok":false,'
        '"at":"2026-01-01T10:00:00.123456789+01:00","day":"2026-01-02","note":null}',
    ]
    assert bad == []


def test_columns_of_several_files_have_one_type(tmp_path: Path) -> None:
    rows, _ = read(write(tmp_path / "a.csv", "n,m\n1,2\n"), write(tmp_path / "b.csv", "n,m\nx,3\n"))
    assert rows == ['{"n":"1","m":2}', '{"n":"x","m":3}']


def test_lines_of_csv_that_do_not_fit_are_told(tmp_path: Path) -> None:
    rows, bad = read(write(tmp_path / "a.csv", "a,b\n1,2\n3\n4,5,6\n7,8\n"))
    assert rows == ['{"a":1,"b":2}', '{"a":7,"b":8}']
    assert [row.number for row in bad] == [3, 4]


@pytest.mark.parametrize("content", ["", "a,a\n1,2\n", "a,\n1,2\n"])
def test_columns_without_names_of_their_own_are_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match="column"):
        RowReader([write(tmp_path / "a.csv", content)])


def test_tabs_separate_and_gzip_is_unpacked(tmp_path: Path) -> None:
    rows, _ = read(write(tmp_path / "a.tsv.gz", gzip.compress(b"a\tb\n1\tx,y\n")))
    assert rows == ['{"a":1,"b":"x,y"}']


def test_elements_of_an_array_are_rows(tmp_path: Path) -> None:
    rows, _ = read(write(tmp_path / "a.json", ' [{"a": 1.10},\n {"a":  2}]'))
    assert rows == ['{"a": 1.10}', '{"a":  2}']
    assert format_of(write(tmp_path / "b.json", '{"a":1}\n{"a":2}')) == "jsonl"


def test_values_of_parquet_keep_every_digit(tmp_path: Path) -> None:
    utc = datetime.UTC
    values: dict[str, Any] = {
        "naive": pa.scalar(datetime.datetime(2026, 1, 1, 10, 0, 0, 123456), pa.timestamp("us")),
        "zoned": pa.scalar(datetime.datetime(2026, 1, 1, 8, tzinfo=utc), pa.timestamp("us", "Europe/Berlin")),
        "nanos": pa.scalar(1_767_261_600_123_456_789, pa.timestamp("ns")),
        "zoned_nanos": pa.scalar(1_767_261_600_123_456_789, pa.timestamp("ns", "UTC")),
        "map": pa.scalar([("a", float("nan")), ("b", 1.5)], pa.map_(pa.string(), pa.float64())),
        "day": pa.scalar(datetime.date(2026, 1, 2), pa.date32()),
        "money": pa.scalar(decimal.Decimal("12345678901234567890.120"), pa.decimal128(38, 3)),
        "big": pa.scalar(2**64 - 1, pa.uint64()),
        "bytes": pa.scalar(b"\x00\xff", pa.binary()),
        "nan": pa.scalar(float("nan"), pa.float64()),
        "nested": pa.scalar(
            {"days": [datetime.date(2026, 1, 1)], "at": datetime.datetime(2026, 1, 1)},
            pa.struct([("days", pa.list_(pa.date32())), ("at", pa.timestamp("us"))]),
        ),
        "none": pa.scalar(None, pa.struct([("x", pa.int32())])),
    }
    pq.write_table(pa.table({name: pa.array([value]) for name, value in values.items()}), tmp_path / "a.parquet")
    rows, _ = read(tmp_path / "a.parquet")
    assert '"money":12345678901234567890.120' in rows[0]
    assert json.loads(rows[0], parse_float=str) == {
        "naive": "2026-01-01T10:00:00.123456Z",
        "zoned": "2026-01-01T08:00:00Z",
        "nanos": "2026-01-01T10:00:00.123456789Z",
        "zoned_nanos": "2026-01-01T10:00:00.123456789Z",
        "map": {"a": None, "b": "1.5"},
        "day": "2026-01-02",
        "money": "12345678901234567890.120",
        "big": 2**64 - 1,
        "bytes": base64.b64encode(b"\x00\xff").decode(),
        "nan": None,
        "nested": {"days": ["2026-01-01"], "at": "2026-01-01T00:00:00Z"},
        "none": None,
    }


def test_directories_are_searched_and_what_is_missing_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "inside").mkdir()
    files = [write(tmp_path / "b.csv", "a\n1\n"), write(tmp_path / "inside" / "a.jsonl", "{}")]
    write(tmp_path / "readme.md", "")
    assert find_files([str(tmp_path)]) == files
    with pytest.raises(ValueError, match="there is no file"):
        find_files([str(tmp_path / "none.csv")])
    with pytest.raises(ValueError, match="holds no file"):
        find_files([str(empty)])
    with pytest.raises(ValueError, match="does not tell the format"):
        format_of(tmp_path / "readme.md")


def test_chunks_have_few_rows_where_rows_are_long(tmp_path: Path) -> None:
    long = {"text": ["x" * 10_000] * 5_000}
    pq.write_table(pa.table(long), tmp_path / "a.parquet", use_dictionary=False)
    write(tmp_path / "a.csv", "text\n" + "\n".join(long["text"]))
    write(tmp_path / "a.json", json.dumps([{"text": text} for text in long["text"]]))
    for suffix in ("parquet", "csv", "json"):
        reader = RowReader([tmp_path / f"a.{suffix}"])
        sizes = [chunk.rows.nbytes for chunk in reader.chunks()]
        reader.close()
        assert max(sizes) < 48 * 1024 * 1024, suffix
        assert sum(sizes) > 50_000_000
