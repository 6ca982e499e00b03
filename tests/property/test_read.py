"""Reading, seeking and retention over forks of forks, held against plain lists."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.stream import Stream
from headrace.errors import OffsetFenced, OffsetGone
from headrace.format import offset as offsets
from headrace.types import JSON, OCTETS
from rig import Rig, array, one_by_one

KEYS = [None, "a", "b"]
LINES = count()


class Cell(NamedTuple):
    """One entry of the model; entries of one request share its number."""

    text: bytes
    key: str | None
    at_us: int
    request: int


class Line:
    """The model of a stream: every entry it ever had, and the first that is retained."""

    def __init__(self, name: str, cells: list[Cell], first: int, source: Line | None) -> None:
        self.name, self.cells, self.first = name, cells, first
        self.source, self.fork_point = source, len(cells)

    def boundaries(self) -> list[int]:
        """Where append requests begin, and the end."""
        starts = [p for p, c in enumerate(self.cells) if p == 0 or self.cells[p - 1].request != c.request]
        return [*starts, len(self.cells)]

    def bytes_before(self, position: int) -> int:
        commas = sum(a.request == b.request for a, b in zip(self.cells, self.cells[1:position], strict=False))
        return sum(len(cell.text) for cell in self.cells[:position]) + commas

    def seek(self, since_us: int) -> int:
        later = (p for p in range(self.first, len(self.cells)) if self.cells[p].at_us >= since_us)
        return next(later, len(self.cells))

    def keep_bytes(self, limit: int) -> None:
        total = self.bytes_before(len(self.cells))
        if total - self.bytes_before(self.first) > limit:
            self.first = next(b for b in self.boundaries() if b >= self.first and self.bytes_before(b) >= total - limit)

    def chosen(self, position: int, key: str | None) -> list[bytes]:
        return [cell.text for cell in self.cells[position:] if key is None or cell.key == key]


class World:
    """Streams and their models, changed together."""

    def __init__(self, rig: Rig, is_json: bool) -> None:
        self.rig, self.is_json = rig, is_json
        self.lines: list[Line] = []
        self._requests = count()

    def create(self) -> None:
        line = Line(f"line/{next(LINES)}", [], 0, None)
        self.rig.create(line.name, JSON if self.is_json else OCTETS)
        self.lines.append(line)

    def append(self, line: Line, texts: list[str], key: str | None, later_us: int) -> None:
        self.rig.clock.us += later_us
        request, at = next(self._requests), self.rig.clock.us
        body = array(*texts) if self.is_json else "".join(texts).encode()
        entries = [array(text)[1:-1] for text in texts] if self.is_json else [body]
        settled = self.rig.append(line.name, body, key=key)
        line.cells += [Cell(entry, key, at, request) for entry in entries]
        assert settled.position == len(line.cells)

    def fork(self, line: Line, position: int, sub: int) -> None:
        """``sub`` is cut to what the next append holds, and wraps around there."""
        name = f"line/{next(LINES)}"
        rest = [cell for cell in line.cells[position:] if cell.request == line.cells[position].request]
        left = len(rest) if self.is_json else len(b"".join(cell.text for cell in rest))
        sub = sub % (left + 1) if rest else 0
        self.rig.fork(line.name, name, position, sub)
        cells = line.cells[: position + sub] if self.is_json else line.cells[:position]
        fork = Line(name, cells, min(line.first, position), line)
        if not self.is_json and sub == left and sub:
            fork.cells = line.cells[: position + 1]
            fork.fork_point = position + 1
        elif not self.is_json and sub:
            cell = line.cells[position]
            fork.cells = [*cells, cell._replace(text=cell.text[:sub], request=next(self._requests))]
        self.lines.append(fork)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("read"))
    yield rig
    rig.close()


@st.composite
def steps(draw: st.DrawFn, rig: Rig) -> World:
    """A world with a history."""
    world = World(rig, draw(st.booleans()))
    world.create()
    texts = st.lists(st.text("xyzé", min_size=1, max_size=6), min_size=1, max_size=4)
    for step in draw(st.lists(st.sampled_from(["append"] * 5 + ["fork", "fork", "bytes", "age"]), max_size=14)):
        line = draw(st.sampled_from(world.lines))
        if step == "append":
            world.append(line, draw(texts), draw(st.sampled_from(KEYS)), draw(st.integers(0, 3)))
        elif step == "fork" and line.cells[line.first :]:
            position = draw(st.integers(line.first, len(line.cells) - 1))
            world.fork(line, position, draw(st.integers(0, 6)))
        elif step == "bytes":
            limit = draw(st.integers(0, 40))
            rig.retain(line.name, size=limit)
            line.keep_bytes(limit)
        elif step == "age":
            age = draw(st.integers(0, 12))
            rig.retain(line.name, age_us=age)
            line.first = line.seek(rig.clock.us - age)
        rig.retain(line.name)
    if draw(st.booleans()):
        rig.reopen()
    return world


@given(st.data())
def test_following_the_pages_yields_every_entry_once_in_order(rig: Rig, data: st.DataObject) -> None:
    world = data.draw(steps(rig))
    for line in world.lines:
        stream = rig.find(line.name)
        assert (stream.head.first_seq, stream.head.next_seq) == (line.first, len(line.cells))
        position = data.draw(st.integers(line.first, len(line.cells)))
        key, budget = data.draw(st.sampled_from(KEYS)), data.draw(st.integers(1, 40))
        assert rig.read(line.name, position, budget=budget, key=key) == line.chosen(position, key)


@given(st.data())
def test_a_page_holds_as_much_as_its_budget_allows_and_at_least_one_entry(rig: Rig, data: st.DataObject) -> None:
    world = data.draw(steps(rig))
    line = data.draw(st.sampled_from(world.lines))
    budget, stream = data.draw(st.integers(1, 40)), rig.find(line.name)
    for position in range(line.first, len(line.cells)):
        parts, following = rig.engine.log.read(stream, stream.head, position, budget=budget)
        page = [entry for part in parts for entry in one_by_one(stream, part)]
        assert page == line.chosen(position, None)[: len(page)]
        assert following == position + len(page) > position
        assert sum(map(len, page[:-1])) < budget


@given(st.data())
def test_seeking_a_moment_finds_the_first_retained_entry_at_or_after_it(rig: Rig, data: st.DataObject) -> None:
    world = data.draw(steps(rig))
    for line in world.lines:
        times = {cell.at_us for cell in line.cells} | {rig.clock.us}
        for since_us in {at + shift for at in times for shift in (-1, 0, 1)}:
            assert rig.engine.log.seek(rig.find(line.name), since_us) == line.seek(since_us)


@given(st.data())
def test_an_offset_leads_back_to_its_position_and_is_shared_with_forks(rig: Rig, data: st.DataObject) -> None:
    world = data.draw(steps(rig))
    for line in world.lines:
        stream = rig.find(line.name)
        texts = [stream.offset_at(position) for position in range(len(line.cells) + 1)]
        assert texts == sorted(set(texts))
        for position, text in enumerate(texts[1:], start=1):
            assert _located(stream, text) == (position if position >= line.first else "gone")
        for position, text in enumerate(_texts(rig, line.source)[1:], start=1):
            if position > line.fork_point:
                assert _located(stream, text) == "fenced"
            else:
                assert text == texts[position]


def _texts(rig: Rig, line: Line | None) -> list[str]:
    if line is None:
        return [offsets.START]
    return [rig.find(line.name).offset_at(position) for position in range(len(line.cells) + 1)]


def _located(stream: Stream, text: str) -> int | str:
    try:
        return stream.locate(offsets.decode(text))
    except OffsetGone as gone:
        assert gone.facts["earliest_offset"] == stream.offset_at(stream.head.first_seq)
        return "gone"
    except OffsetFenced:
        return "fenced"
