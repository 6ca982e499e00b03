"""A companion of format version 1, written once; every Headrace must read it as this one does."""

from __future__ import annotations

import hashlib

import duckdb
import pyarrow as pa
import pytest

from golden.companion import COLUMNS, HERE, INFO, NAME, PANES, PANES_SCHEMA, POSTINGS
from headrace.format.companion.file_reader import FileCompanion, sources_of
from headrace.format.companion.layout import PartName
from headrace.format.decoded_columns import LruCache
from headrace.format.object_names import file_name

DIGESTS: dict[PartName, str] = {
    "columns": "b31506f7466dda93554525ae2b7e39f5abdc3ce63512a216dd7ad5ef74ad8869",
    "postings": "e35cbb00a3f82bebec0bda3b153b442857683debde1a11bdf45f0b5ef489afd0",
    "panes": "241e8672f2293cb649e03fad35c39e093ec2a856d63213a0b375aa41b5f18aca",
}


def golden() -> FileCompanion:
    columns, postings, panes = (HERE / file_name(NAME, part) for part in DIGESTS)
    sources = sources_of(NAME, {"columns": columns, "postings": postings, "panes": panes})
    return FileCompanion(sources, name=NAME, decoded=LruCache(1 << 20))


@pytest.mark.parametrize("part", DIGESTS)
def test_the_file_is_the_one_that_was_written_once(part: PartName) -> None:
    assert hashlib.sha256((HERE / file_name(NAME, part)).read_bytes()).hexdigest() == DIGESTS[part]


def test_the_companion_says_what_it_is() -> None:
    assert golden().info == INFO


@pytest.mark.parametrize("field", POSTINGS)
def test_every_term_is_found(field: str) -> None:
    companion, terms = golden(), POSTINGS[field]
    for term, (rows, positions) in terms.items():
        assert companion.rows(field, term).tolist() == sorted(set(rows))
        if positions is not None:
            found = companion.occurrences(field, term, prefix=False)
            assert [part.tolist() for part in found] == [rows, positions]
        for prefix in {term, term[:1]}:
            wanted = {row for other, (rows, _) in terms.items() if other.startswith(prefix) for row in rows}
            assert companion.rows_with_prefix(field, prefix).tolist() == sorted(wanted)
    assert companion.rows(field, "unheard").tolist() == []


def test_the_lexicon_is_read_in_order() -> None:
    assert golden().keys(None, 10) == sorted(POSTINGS[""])
    assert golden().keys("größe", 10) == ["key"]


def test_parts_of_texts_are_found() -> None:
    companion = golden()
    assert companion.rows_containing("message", "two, o").tolist() == [3]
    assert companion.rows_containing("message", "netw").tolist() == [5]
    assert companion.rows_containing("tags", "b").tolist() == [0, 1]


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_is_read_back_with_bounds(name: str) -> None:
    companion, (_, wanted) = golden(), COLUMNS[name]
    groups = companion.groups(name)
    assert [(group.start, group.stop) for group in groups] == [(0, 4), (4, 8), (8, 10)]
    for number, group in enumerate(groups):
        given = wanted[group.start : group.stop]
        assert companion.column(name, number).to_pylist() == given
        values = [
            one for value in given if value is not None for one in (value if isinstance(value, list) else [value])
        ]
        assert group.least == min(values, default=None)
        assert group.greatest == max(values, default=None)
        assert group.nulls == given.count(None)


def test_odd_and_present_rows_are_known() -> None:
    companion = golden()
    assert companion.irregular_rows().tolist() == [8]
    assert companion.present("message").tolist() == [value is not None for value in COLUMNS["n.message"][1]]
    assert companion.present("took").tolist() == [value is not None for value in COLUMNS["f.took"][1]]


@pytest.mark.parametrize("interval", [1000, 60_000, 5])
def test_panes_are_read_back(interval: int) -> None:
    panes = pa.concat_tables([PANES_SCHEMA.empty_table(), *(golden().panes("requests", interval) or ())])
    wanted = [pane for pane in PANES if pane["interval"] == interval]
    assert panes.equals(pa.Table.from_pylist(wanted, schema=PANES_SCHEMA))


def test_duckdb_reads_it() -> None:
    columns, postings = HERE / file_name(NAME, "columns"), HERE / file_name(NAME, "postings")
    assert duckdb.sql(f"SELECT \"f.status\" FROM '{columns}' ORDER BY seq").fetchall() == [
        (value,) for value in COLUMNS["f.status"][1]
    ]
    asked = f"SELECT rows FROM '{postings}' WHERE field = 'tags' AND term = 'a'"
    assert duckdb.sql(asked).fetchall() == [([0, 4],)]
