"""Single payloads are picked from their pages as they were stored, and never from damaged ones."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import CorruptData
from headrace.format.segment import layout, pages
from support.segment_files import Cell, reader_of, seal

VALUES = [f'{{"n":{n},"text":"{"✓" * (n % 50)}"}}'.encode() for n in range(6000)]


def _chunk(**settings: Any) -> bytes:
    """A column of the values, as it is stored."""
    file = io.BytesIO()
    facts = {"compression": "zstd", "use_dictionary": False, "data_page_size": pages.PAGE_BYTES} | settings
    with pq.ParquetWriter(file, pa.schema([pa.field("payload", pa.binary(), nullable=False)]), **facts) as writer:
        writer.write_table(pa.table([pa.array(VALUES)], schema=writer.schema))
    place = pq.ParquetFile(file).metadata.row_group(0).column(0)
    first = place.dictionary_page_offset or place.data_page_offset
    return file.getvalue()[first : first + place.total_compressed_size]


@pytest.mark.parametrize("checked", [True, False])
def test_values_are_picked_from_any_page(checked: bool) -> None:
    chunk = _chunk(write_page_checksum=checked)
    assert len(list(pages._pages(chunk))) > 2
    for rows in ([0], [5999], [1023, 1024, 1025], [0, 1, 2047, 2048, 5999], list(range(0, 6000, 7))):
        assert pages.pick(chunk, rows) == [VALUES[row] for row in rows]


@pytest.mark.parametrize(
    "settings", [{"use_dictionary": True}, {"data_page_size": 1 << 30, "write_batch_size": 1 << 20}]
)
def test_what_is_stored_in_another_way_is_left_to_the_library(settings: dict[str, Any]) -> None:
    assert pages.pick(_chunk(**settings), [3]) is None


def test_damaged_pages_are_refused() -> None:
    chunk = _chunk(write_page_checksum=True)
    page = list(pages._pages(chunk))[1]
    for place in (page.start, page.start + page.packed_size - 1):
        damaged = chunk[:place] + bytes([chunk[place] ^ 1]) + chunk[place + 1 :]
        assert pages.pick(damaged, [0]) == VALUES[:1]
        with pytest.raises(ValueError, match="checksum"):
            pages.pick(damaged, [0, 2000])


@pytest.mark.parametrize("size", [0, 3, 5000])
def test_a_column_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r"column ends|header|checksum"):
        pages.pick(_chunk(write_page_checksum=True)[:size], [5999])


@pytest.mark.parametrize("is_json", [True, False])
def test_a_key_that_is_seldom_is_read_from_single_pages(is_json: bool) -> None:
    cells = [Cell(value, key=f"k{n % 2000}") for n, value in enumerate(VALUES)]
    reader = reader_of(seal(cells, is_json=is_json)[0])
    [part] = reader.read(0, 6000, 1 << 20, "k77").parts
    assert bytes(part.body) == (b"," if is_json else b"").join(VALUES[77::2000])
    assert not reader.is_loaded(0)


def test_a_damaged_page_is_no_answer_to_a_question_for_a_key() -> None:
    data, _ = seal([Cell(value, key=f"k{n}") for n, value in enumerate(VALUES)])
    place = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(layout.PAYLOAD)
    at = place.data_page_offset + place.total_compressed_size - 100
    reader = reader_of(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert bytes(reader.read(0, 6000, 1 << 20, "k1").parts[0].body) == VALUES[1]
    with pytest.raises(CorruptData):
        reader.read(0, 6000, 1 << 20, "k5999")
