"""Streams as plain lists, forks of forks included, and the laws of reading that hold for them.

A world changes streams and their models together; the laws compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Literal, NamedTuple

import msgspec
from hypothesis import strategies as st

from headrace.engine.log import read as reading
from headrace.engine.log.stream import Stream
from headrace.errors import OffsetFenced, OffsetGone
from headrace.format import offset as offsets
from headrace.schema.registry import KeySetting
from headrace.schema.update import SchemaUpdate
from headrace.types import JSON, OCTETS
from support.engine_rig import Rig

#: Entries of a routed stream carry their own keys, so that those of one append may differ.
Kind = Literal["bytes", "json", "routed"]
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

    def first_within(self, limit: int) -> int:
        """Where the newest whole requests begin that have so many bytes at most."""
        total = self.bytes_before(len(self.cells))
        if total - self.bytes_before(self.first) <= limit:
            return self.first
        return next(b for b in self.boundaries() if b >= self.first and self.bytes_before(b) >= total - limit)

    def chosen(self, start: int, stop: int, key: str | None) -> list[bytes]:
        return [cell.text for cell in self.cells[start:stop] if key is None or cell.key == key]


class World:
    """Streams and their models, changed together."""

    def __init__(self, rig: Rig, kind: Kind) -> None:
        self.rig, self.kind, self.is_json = rig, kind, kind != "bytes"
        self.lines: list[Line] = []
        self._requests = count()

    def create(self) -> None:
        line = Line(f"line/{next(LINES)}", [], 0, None)
        stream = self.rig.create(line.name, JSON if self.is_json else OCTETS)
        if self.kind == "routed":
            update = SchemaUpdate(routing_key=KeySetting(pointer="/k", required=False))
            self.rig.run(self.rig.engine.schemas.apply(stream, update))
        self.lines.append(line)

    def append(self, line: Line, entries: list[tuple[str, str | None]], later_us: int) -> None:
        """Append texts with their keys; where the entries cannot have keys of their own, the first is for all."""
        self.rig.clock.us += later_us
        request, at = next(self._requests), self.rig.clock.us
        if self.kind == "routed":
            cells = [Cell(_event(text, key), key, at, request) for text, key in entries]
        elif self.kind == "json":
            cells = [Cell(msgspec.json.encode(text), entries[0][1], at, request) for text, _ in entries]
        else:
            cells = [Cell("".join(text for text, _ in entries).encode(), entries[0][1], at, request)]
        body = self.joined(cell.text for cell in cells)
        key = None if self.kind == "routed" else entries[0][1]
        settled = self.rig.append(line.name, b"[%s]" % body if self.is_json else body, key=key)
        line.cells += cells
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

    def retain(self, line: Line, exact: int, *, size: int | None = None, age_us: int | None = None) -> None:
        """Apply a rule by which the line begins at ``exact``, or where the segment does that holds the last to go."""
        self.rig.retain(line.name, size=size, age_us=age_us)
        self.rig.retain(line.name)
        first = self.rig.find(line.name).head.first_seq
        assert first == exact or (line.first <= first < exact and self._may_begin(line, first, exact))
        line.first = first

    def _may_begin(self, line: Line, first: int, exact: int) -> bool:
        """Whether a published segment cannot go, since it holds more than what is to go."""
        stream = self.rig.find(line.name)
        part = next(reading.owned_entries(stream, stream.head, first))
        placed = self.rig.engine.published.holding(part.owner, first)
        if placed is None:
            return False
        begin, end = placed.segment.first_seq, placed.segment.end_seq
        return max(begin, line.first) == first and (end >= exact or end > part.end)

    def joined(self, texts: Iterable[bytes]) -> bytes:
        return (b"," if self.is_json else b"").join(texts)


def _event(text: str, key: str | None) -> bytes:
    return msgspec.json.encode({"v": text} if key is None else {"k": key, "v": text})


TEXTS = st.lists(st.tuples(st.text("xyzé", min_size=1, max_size=6), st.sampled_from(KEYS)), min_size=1, max_size=4)
STEPS = ["append"] * 5 + ["fork", "fork", "bytes", "age"]


@st.composite
def histories(draw: st.DrawFn, rig: Rig, *more: Literal["publish", "reopen"]) -> World:
    """A world with a history; ``more`` are further things that happen in it."""
    world = World(rig, draw(st.sampled_from(["bytes", "json", "routed"])))
    world.create()
    for step in draw(st.lists(st.sampled_from([*STEPS, *more]), max_size=14 + 2 * len(more))):
        line = draw(st.sampled_from(world.lines))
        if step == "append":
            world.append(line, draw(TEXTS), draw(st.integers(0, 3)))
        elif step == "fork" and line.cells[line.first :]:
            position = draw(st.integers(line.first, len(line.cells) - 1))
            world.fork(line, position, draw(st.integers(0, 6)))
        elif step == "bytes":
            limit = draw(st.integers(0, 40))
            world.retain(line, line.first_within(limit), size=limit)
        elif step == "age":
            age = draw(st.integers(0, 12))
            world.retain(line, line.seek(rig.clock.us - age), age_us=age)
        elif step == "publish":
            rig.publish(line.name)
        elif step == "reopen":
            rig.reopen()
    if draw(st.booleans()):
        rig.reopen()
    return world


def check_pages(world: World, data: st.DataObject) -> None:
    """Following the pages yields every entry once, in order, each page within its budget."""
    for line in world.lines:
        stream = world.rig.find(line.name)
        assert stream.head.first_seq == line.first
        assert stream.head.next_seq == len(line.cells)
        position = data.draw(st.integers(line.first, len(line.cells)))
        key, budget = data.draw(st.sampled_from(KEYS)), data.draw(st.integers(1, 40))
        while position < len(line.cells):
            position = _check_page(world, line, stream, position, budget, key)


def check_budgets(world: World, data: st.DataObject) -> None:
    """A page from anywhere holds at least one entry, and nothing more once its budget is reached."""
    line = data.draw(st.sampled_from(world.lines))
    budget, stream = data.draw(st.integers(1, 40)), world.rig.find(line.name)
    for position in range(line.first, len(line.cells)):
        _check_page(world, line, stream, position, budget, None)


def _check_page(world: World, line: Line, stream: Stream, position: int, budget: int, key: str | None) -> int:
    rig = world.rig
    ask = partial(rig.engine.log.read, stream, stream.head, position, budget=budget, key=key)
    parts, following = rig.ask(ask)
    assert following > position, "a page must lead on"
    page = line.chosen(position, following, key)
    assert page or key is not None
    assert world.joined(parts) == world.joined(page)
    assert sum(map(len, page[:-1])) < budget
    return following


def check_seeks(world: World) -> None:
    """Seeking a moment finds the first retained entry at or after it."""
    rig = world.rig
    for line in world.lines:
        times = {cell.at_us for cell in line.cells} | {rig.clock.us}
        for since_us in {at + shift for at in times for shift in (-1, 0, 1)}:
            assert rig.ask(partial(rig.engine.log.seek, rig.find(line.name), since_us)) == line.seek(since_us)


def check_offsets(world: World) -> None:
    """An offset leads back to its position, and is shared with forks."""
    for line in world.lines:
        stream = world.rig.find(line.name)
        texts = [stream.offset_at(position) for position in range(len(line.cells) + 1)]
        assert texts == sorted(set(texts))
        for position, text in enumerate(texts[1:], start=1):
            assert _located(stream, text) == (position if position >= line.first else "gone")
        for position, text in enumerate(_texts(world.rig, line.source)[1:], start=1):
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
