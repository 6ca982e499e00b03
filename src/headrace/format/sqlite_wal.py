"""SQLite's write-ahead log: which of its frames are valid, and whether a bad one is damage or a commit cut short.

The file has a header of 32 bytes and frames of 24 bytes and a page each. SQLite uses the frames up to the first bad
one and ignores the rest. A commit is synced before the next one is written, so a bad frame that a valid frame of a
later commit follows is damage. A bad frame in the last commit is what a crash leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
_MAGIC, _VERSION = 0x377F0682, 3_007_000
_WORD = 0xFFFFFFFF
#: Frames that are checked at once, so that a long log takes no more memory than a short one.
_AT_ONCE = 256

Words = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]


class LogDamage(NamedTuple):
    """Where a write-ahead log is damaged, in bytes of the file."""

    #: Everything that was committed before the damage lies before this byte.
    intact_bytes: int
    start: int
    #: The end of the last valid frame: commits up to there were acknowledged, and are not recovered by SQLite.
    end: int
    #: Commits that follow the damage and are valid themselves.
    commits: int


class _Frames(NamedTuple):
    """What is known of each frame."""

    page: Words
    size: Words
    salts: Words
    stored: Words
    #: The checksum that follows from the checksum of the frame before, as that is stored and as it is computed.
    computed: Words
    chained: Words
    #: The page number and the database size that the stored checksum is right for.
    implied: Words


def find_damage(data: bytes | memoryview, page_bytes: int) -> LogDamage | None:
    """Where a write-ahead log is damaged; None where it is whole or ends with a commit that was cut short.

    ``page_bytes`` is the page size of the database, in case the header of the log is damaged.
    """
    if len(data) < HEADER_BYTES + FRAME_HEADER_BYTES:
        return None
    header = np.frombuffer(data, dtype=">u4", count=HEADER_BYTES // 4).astype(np.uint32)
    is_valid_header = _is_valid(header, data)
    big_endian = bool(int(header[0]) & 1) if is_valid_header else False
    page_bytes = int(header[2]) if is_valid_header else page_bytes
    frame_bytes = FRAME_HEADER_BYTES + page_bytes
    count = (len(data) - HEADER_BYTES) // frame_bytes
    if count == 0:
        return None
    frames = _frames(data, count, page_bytes, big_endian, header[6:8])
    if not is_valid_header:
        return _headless(frames, frame_bytes)
    return _damage(frames, header[4:6], frame_bytes)


def later_pages(data: bytes, intact_bytes: int, page_bytes: int) -> Iterator[tuple[int, memoryview | None, memoryview]]:
    """Every frame from a byte on: its page, what that holds before the byte if it was written there, and in the frame.

    Frames of an earlier use of the file are left out.
    """
    view, frame_bytes = memoryview(data), FRAME_HEADER_BYTES + page_bytes
    before: dict[int, memoryview] = {}
    salts: bytes | None = None
    for at in range(HEADER_BYTES, len(view) - frame_bytes + 1, frame_bytes):
        number, content = int.from_bytes(view[at : at + 4], "big"), view[at + FRAME_HEADER_BYTES : at + frame_bytes]
        salts = bytes(view[at + 8 : at + 16]) if salts is None else salts
        if view[at + 8 : at + 16] != salts or not number:
            continue
        if at < intact_bytes:
            before[number] = content
        else:
            yield number, before.get(number), content


def _damage(frames: _Frames, salts: Words, frame_bytes: int) -> LogDamage | None:
    right_sum, has_salts = (frames.stored == frames.computed).all(1), (frames.salts == salts).all(1)
    valid = right_sum & has_salts & (frames.page != 0)
    bad = np.flatnonzero(~valid)
    if not bad.size:
        return None
    first = int(bad[0])
    proof = valid | (has_salts & (frames.stored == frames.chained).all(1))
    ends = _commit_ends(frames, right_sum, has_salts)
    boundaries = np.flatnonzero(ends[first:])
    if not boundaries.size:
        return None
    later = np.flatnonzero(proof[first + int(boundaries[0]) + 1 :])
    if not later.size:
        return None
    last = first + int(boundaries[0]) + 1 + int(later[-1])
    before = np.flatnonzero(frames.size[:first])
    intact = int(before[-1]) + 1 if before.size else 0
    commits = int(np.count_nonzero(ends[first : last + 1]))
    return LogDamage(_at(intact, frame_bytes), _at(first, frame_bytes), _at(last + 1, frame_bytes), commits)


def _headless(frames: _Frames, frame_bytes: int) -> LogDamage | None:
    """A damaged header makes SQLite ignore every frame; frames that follow one another say that there were some."""
    same_salts = (frames.salts == frames.salts[0]).all(1)  # others are of an earlier use of the file
    following = (frames.stored == frames.computed).all(1)
    first_follows = following[0] and frames.page[0] != 0
    following[0] = False
    valid = np.flatnonzero(following & same_salts & (frames.page != 0))
    if not valid.size and not (first_follows and frames.size[0]):
        return None
    last = int(valid[-1]) if valid.size else 0
    commits = int(np.count_nonzero(frames.size[: last + 1]))
    return LogDamage(0, 0, _at(last + 1, frame_bytes), commits) if commits else None


def _commit_ends(frames: _Frames, right_sum: Flags, has_salts: Flags) -> Flags:
    """Which frames end a commit; of a frame whose size field was damaged, the size that its checksum is right for."""
    only_size_differs = (frames.implied[:, 0] == frames.page) & (frames.implied[:, 1] != frames.size)
    size = np.where(only_size_differs & ~right_sum, frames.implied[:, 1], frames.size)
    # Frames of an earlier use of the file follow one another as well, but not a frame or header of this one.
    follows = right_sum & np.concatenate([[True], has_salts[:-1]])
    return np.asarray((has_salts | follows) & (size != 0), dtype=np.bool_)


def _is_valid(header: Words, data: bytes | memoryview) -> bool:
    magic, version, page_bytes = (int(word) for word in header[:3])
    if magic & ~1 != _MAGIC or version != _VERSION or not 512 <= page_bytes <= 65536 or page_bytes & (page_bytes - 1):
        return False
    words = np.frombuffer(data, dtype=">u4" if magic & 1 else "<u4", count=6).astype(np.uint32)
    first = second = 0
    for first_word, second_word in zip(words[::2].tolist(), words[1::2].tolist(), strict=True):
        first = (first + first_word + second) & _WORD
        second = (second + second_word + first) & _WORD
    return (first, second) == (int(header[6]), int(header[7]))


def _frames(data: bytes | memoryview, count: int, page_bytes: int, big_endian: bool, start: Words) -> _Frames:
    frame_bytes = FRAME_HEADER_BYTES + page_bytes
    octets = np.frombuffer(data, dtype=np.uint8, offset=HEADER_BYTES, count=count * frame_bytes)
    words = octets.view(">u4" if big_endian else "<u4").reshape(count, frame_bytes // 4)
    fields = octets.view(">u4").reshape(count, frame_bytes // 4)[:, :6].astype(np.uint32)
    weights = _weights(page_bytes)
    added = np.empty((count, 2), dtype=np.uint32)
    for at in range(0, count, _AT_ONCE):
        pages = words[at : at + _AT_ONCE, 6:].astype(np.uint32)
        added[at : at + _AT_ONCE] = pages @ weights
    stored = fields[:, 4:6]
    previous = np.concatenate([start.reshape(1, 2), stored[:-1]])
    steps = page_bytes // 8
    head = words[:, :2].astype(np.uint32)
    computed = _checksums(previous, head, added, steps)
    chained = _checksums(np.concatenate([previous[:1], computed[:-1]]), head, added, steps)
    implied = _implied_head(previous, stored, added, steps)
    if big_endian is False:
        implied = implied.byteswap()
    return _Frames(fields[:, 0], fields[:, 1], fields[:, 2:4], stored, computed, chained, implied)


def _checksums(previous: Words, head: Words, added: Words, steps: int) -> Words:
    """The checksum of frames after a given one; a step takes two words, the first of them from the frame header."""
    taken = np.stack([head[:, 0], head[:, 0] + head[:, 1]], axis=1)
    once = previous @ _power(1).T + taken
    return np.asarray(once @ _power(steps).T + added, dtype=np.uint32)


def _implied_head(previous: Words, stored: Words, added: Words, steps: int) -> Words:
    """The first two words of frames for which their stored checksums would be right."""
    taken = (stored - added) @ _power(-steps).T - previous @ _power(1).T
    return np.stack([taken[:, 0], taken[:, 1] - taken[:, 0]], axis=1).astype(np.uint32)


@cache
def _power(steps: int) -> Words:
    """What so many steps of the checksum make of it, apart from the words: a matrix modulo 2**32."""
    base = [[1, 1], [1, 2]] if steps >= 0 else [[2, _WORD], [_WORD, 1]]
    power = [[1, 0], [0, 1]]
    for _ in range(abs(steps)):
        power = [[sum(row[k] * base[k][column] for k in (0, 1)) & _WORD for column in (0, 1)] for row in power]
    return np.array(power, dtype=np.uint32)


@cache
def _weights(page_bytes: int) -> Words:
    """How much each word of a page adds to both sums: the words of a step, taken through the steps after it."""
    rows: list[Any] = []
    power = [[1, 0], [0, 1]]
    for _ in range(page_bytes // 8):
        (a, b), (c, d) = power
        rows.append([[(a + b) & _WORD, (c + d) & _WORD], [b, d]])
        power = [[(a + b) & _WORD, (a + 2 * b) & _WORD], [(c + d) & _WORD, (c + 2 * d) & _WORD]]
    return np.array(rows[::-1], dtype=np.uint32).reshape(page_bytes // 4, 2)


def _at(frame: int, frame_bytes: int) -> int:
    return HEADER_BYTES + frame * frame_bytes
