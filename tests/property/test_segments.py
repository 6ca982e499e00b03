"""Segments held against the plain list of entries that they were made of."""

from __future__ import annotations

import io
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptData
from headrace.format.segment.reader import SegmentReader
from headrace.format.segment.writer import SegmentWriter
from headrace.schema.entries import entries_of
from support.segment_files import START_US, Cell, opened, reader_of, runs_of, seal

ALL = 1 << 40
KEYS = [None, "", "a", "b", "é", "k" * 40]
TEXTS = st.one_of(
    st.integers(-(10**12), 10**12).map(lambda n: b"%d" % n),
    st.text(st.characters(codec="utf-8", exclude_characters='"\\'), max_size=30).map(lambda s: f'"{s}"'.encode()),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Cell], bool]:
    """Entries of some append requests, and whether they are JSON."""
    is_json = draw(st.booleans())
    payloads = TEXTS if is_json else st.binary(max_size=30)
    cells: list[Cell] = []
    at_us = START_US
    version = draw(st.integers(0, 1))
    for request in range(draw(st.integers(1, 12))):
        at_us += draw(st.integers(0, 3))
        version += draw(st.sampled_from([0, 0, 0, 1]))
        keys = [draw(st.sampled_from(KEYS))] if draw(st.booleans()) else KEYS
        cells += [
            Cell(payload, draw(st.sampled_from(keys)), at_us, version, request)
            for payload in draw(st.lists(payloads, min_size=1, max_size=6))
        ]
    return cells, is_json


GROUPS = st.fixed_dictionaries({"group_bytes": st.integers(1, 200), "group_rows": st.integers(1, 20)})


def joined(cells: list[Cell], is_json: bool) -> bytes:
    return (b"," if is_json else b"").join(cell.payload for cell in cells)


def follow(reader: SegmentReader, position: int, end: int, budget: int, key: str | None) -> list[tuple[int, bytes]]:
    """Page after page to the end: the version of each part, and its body."""
    found: list[tuple[int, bytes]] = []
    while position < min(end, reader.end_seq):
        parts, following = reader.read(position, end, budget, key)
        assert following > position, "a page must lead on"
        found += [(part.version, part.body) for part in parts]
        position = following
    return found


@given(histories(), GROUPS, st.data())
def test_following_the_pages_yields_every_entry_once_in_order(
    history: tuple[list[Cell], bool], groups: dict[str, int], data: st.DataObject
) -> None:
    cells, is_json = history
    first = data.draw(st.sampled_from([0, 7, 2**53]))
    reader = opened(cells, is_json=is_json, first_seq=first, **groups)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(cells) + 1)] * 2)))
    key, budget = data.draw(st.sampled_from([None, "never", *KEYS[1:]])), data.draw(st.integers(0, 120))
    wanted = [cell for cell in cells[start:end] if key is None or cell.key == key]
    found = follow(reader, first + start, first + end, budget, key)
    assert (b"," if is_json else b"").join(body for _, body in found) == joined(wanted, is_json)
    for version in {cell.version for cell in wanted}:
        of_version = [body for found_version, body in found if found_version == version]
        cells_of_version = [cell for cell in wanted if cell.version == version]
        assert (b"," if is_json else b"").join(of_version) == joined(cells_of_version, is_json)
    reader.verify()


@given(histories(), GROUPS, st.data())
def test_a_page_is_as_long_as_its_budget_allows(
    history: tuple[list[Cell], bool], groups: dict[str, int], data: st.DataObject
) -> None:
    cells, is_json = history
    reader = opened(cells, is_json=is_json, **groups)
    position, budget = data.draw(st.integers(0, len(cells) - 1)), data.draw(st.integers(0, 120))
    key = data.draw(st.sampled_from([None, *{cell.key for cell in cells} - {None}]))
    chosen = [n for n in range(position, len(cells)) if key is None or cells[n].key == key]
    sizes = list(accumulate((len(cells[n].payload) + is_json for n in chosen), initial=-int(is_json)))[1:]
    fitting = max(1, sum(size <= budget for size in sizes)) if chosen else 0
    parts, following = reader.read(position, ALL, budget, key)
    assert sum(part.entries for part in parts) == fitting
    assert following == (chosen[fitting] if fitting < len(chosen) else len(cells))


@given(histories(), GROUPS)
def test_places_in_a_segment_are_those_of_the_list(history: tuple[list[Cell], bool], groups: dict[str, int]) -> None:
    cells, is_json = history
    reader = opened(cells, is_json=is_json, first_seq=5, **groups)
    requests = [cell.request for cell in cells]
    for place, cell in enumerate(cells):
        begin = requests.index(cell.request)
        assert reader.request_at(5 + place) == (5 + begin, 5 + begin + requests.count(cell.request))
        assert reader.time_at(5 + place) == cell.at_us
    for since_us in range(START_US - 1, cells[-1].at_us + 2):
        later = ((5 + place, cell.at_us) for place, cell in enumerate(cells) if cell.at_us >= since_us)
        assert reader.append_times().first_since(since_us) == next(later, None)
    for place in range(len(cells) + 1):
        commas = sum(a == b for a, b in pairwise(requests[:place])) if is_json else 0
        assert reader.bytes_before(5 + place) == sum(len(cell.payload) for cell in cells[:place]) + commas


@given(histories(), GROUPS, GROUPS, st.data())
def test_a_segment_that_is_rewritten_and_goes_on_is_as_if_written_at_once(
    history: tuple[list[Cell], bool], before: dict[str, int], after: dict[str, int], data: st.DataObject
) -> None:
    cells, is_json = history
    starts = [n for n, cell in enumerate(cells) if n and cells[n - 1].request != cell.request]
    cut = data.draw(st.sampled_from([*starts, len(cells)]))
    old = opened(cells[:cut], is_json=is_json, **before)
    file = io.BytesIO()
    writer = SegmentWriter(
        file, stream="tests", incarnation="1", is_json=is_json, split=entries_of, first_seq=0, **after
    )
    writer.copy(old.batches(0, ALL))
    for run in runs_of(cells[cut:], cut):
        writer.add(run)
    sealed = writer.finish()
    new, whole = reader_of(file.getvalue(), sha256=sealed.sha256), opened(cells, is_json=is_json, **after)
    new.verify()
    assert [row for batch in new.batches(0, ALL) for row in batch.to_pylist()] == [
        row for batch in whole.batches(0, ALL) for row in batch.to_pylist()
    ]
    assert new.info.payload_bytes == whole.info.payload_bytes
    assert new.info.min_us == whole.info.min_us
    assert new.info.max_us == whole.info.max_us


@given(histories(), GROUPS, st.data())
def test_a_changed_or_missing_byte_is_always_noticed(
    history: tuple[list[Cell], bool], groups: dict[str, int], data: st.DataObject
) -> None:
    cells, is_json = history
    written, sealed = seal(cells, is_json=is_json, **groups)
    place = data.draw(st.integers(0, len(written) - 1))
    if data.draw(st.booleans()):
        damaged = written[:place] + bytes([written[place] ^ 1 << data.draw(st.integers(0, 7))]) + written[place + 1 :]
    else:
        damaged = written[:place]
    with pytest.raises(CorruptData) as caught:
        reader_of(damaged, name="segments/damaged", sha256=sealed.sha256)
    assert caught.value.facts["object"] == "segments/damaged"
