"""Entities that may be the same: pairs whose texts differ by few letters, however many entities there are.

Not every pair is measured. Of two texts that differ by at most ``k`` edits, where one is cut into ``k + 1`` pieces at
least one piece stands unchanged in the other, near its place. So pairs are looked for by pieces; those whose letters
differ by more than ``k``, in whatever order, are left out; and what remains is measured. None is missed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

#: Texts are compared up to so many letters.
MOST_LETTERS = 256
#: The least similarity that can be asked for.
LEAST = 0.5
_TOGETHER = 50_000
_BUCKETS = 32
_ROUNDING = 1e-9


class Pair(NamedTuple):
    """Two entities and how similar they are: 1 where their texts are the same."""

    similarity: float
    left: str
    right: str


def duplicates(texts: Mapping[str, str], threshold: float, limit: int) -> list[Pair]:
    """The most similar pairs of entities, given the text of each; for a thread."""
    by_text: dict[str, list[str]] = {}
    for entity, text in sorted(texts.items()):
        by_text.setdefault(text[:MOST_LETTERS], []).append(entity)
    found = [Pair(1.0, *pair) for same in by_text.values() for pair in _pairs(same)]
    for left, right, distance in _near(sorted(by_text, key=lambda text: (len(text), text)), threshold):
        similarity = round(1 - distance / max(len(left), len(right)), 4)
        found += [Pair(similarity, *sorted((a, b))) for a in by_text[left] for b in by_text[right]]
    found.sort(key=lambda pair: (-pair.similarity, pair.left, pair.right))
    return found[:limit]


def _pairs(entities: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, left in enumerate(entities):
        for right in entities[place + 1 :]:
            yield left, right


def _near(texts: list[str], threshold: float) -> Iterator[tuple[str, str, int]]:
    """Pairs of different texts, given by their lengths, that are near enough, and their distances."""
    pieces, waiting = _Pieces(texts, threshold), list[tuple[str, str]]()
    for number, text in enumerate(texts):
        waiting += ((texts[other], text) for other in pieces.like(number))
        pieces.add(number)
        if len(waiting) >= _TOGETHER:
            yield from _measured(waiting, threshold)
            waiting = []
    yield from _measured(waiting, threshold)


class _Pieces:
    """The pieces of texts that were added, the shorter ones first, and which texts have them."""

    def __init__(self, texts: list[str], threshold: float) -> None:
        self._texts, self._threshold = texts, threshold
        self._having: dict[tuple[int, int, str], array[int]] = {}
        #: How often each letter is in a text, and which are in it at all, a bit for each.
        self._letters: Any = np.zeros((len(texts), _BUCKETS), np.int16)
        self._marks: Any = np.zeros(len(texts), np.uint64)
        for number, text in enumerate(texts):
            self._letters[number] = np.bincount([ord(letter) % _BUCKETS for letter in text], minlength=_BUCKETS)
            self._marks[number] = sum(1 << bit for bit in {ord(letter) % 64 for letter in text})

    def add(self, number: int) -> None:
        text = self._texts[number]
        for place, (start, end) in enumerate(self._cuts(len(text))):
            self._having.setdefault((len(text), place, text[start:end]), array("L")).append(number)

    def like(self, number: int) -> list[int]:
        """The texts that may be near one that is no shorter than any of them."""
        text = self._texts[number]
        most = int((1 - self._threshold) * len(text) + _ROUNDING)
        lengths = range(ceil(self._threshold * len(text) - _ROUNDING), len(text) + 1)
        having = [found for length in lengths for found in self._sharing(text, length, most)]
        if not having:
            return []
        shares = np.zeros(number, bool)
        for found in having:
            shares[np.array(found)] = True
        others = np.flatnonzero(shares)
        # An edit changes two letters at most; what differs in more is known at a glance.
        others = others[np.bitwise_count(self._marks[others] ^ self._marks[number]) <= 2 * most]
        apart = self._letters[others] - self._letters[number]
        near = (np.maximum(apart, 0).sum(axis=1) <= most) & (np.maximum(-apart, 0).sum(axis=1) <= most)
        chosen: list[int] = others[near].tolist()
        return chosen

    def _sharing(self, text: str, length: int, most: int) -> Iterator[array[int]]:
        """Texts of a length that have a piece which stands in another text too, not too far from its place."""
        longer = len(text) - length
        for place, (start, end) in enumerate(self._cuts(length)):
            low = max(0, start - place, start + longer - (most - place))
            high = min(start + place, start + longer + (most - place), len(text) - (end - start))
            for at in range(low, high + 1):
                found = self._having.get((length, place, text[at : at + end - start]))
                if found is not None:
                    yield found

    def _cuts(self, length: int) -> list[tuple[int, int]]:
        """Where a text is cut: into one piece more than it may have edits to the longest text that is near enough."""
        longest = int(length / self._threshold + _ROUNDING)
        count = int((1 - self._threshold) * longest + _ROUNDING) + 1
        return [(length * place // count, length * (place + 1) // count) for place in range(count)]


def _measured(pairs: list[tuple[str, str]], threshold: float) -> Iterator[tuple[str, str, int]]:
    plain = [pair for pair in pairs if pair[0].isascii() and pair[1].isascii()]
    others = [pair for pair in pairs if not (pair[0].isascii() and pair[1].isascii())]
    distances = [*_native(plain), *(distance(left, right) for left, right in others)]
    for (left, right), apart in zip([*plain, *others], distances, strict=True):
        if apart <= (1 - threshold) * max(len(left), len(right)) + _ROUNDING:
            yield left, right, apart


def _native(pairs: list[tuple[str, str]]) -> list[int]:
    """The distances of texts whose letters are bytes."""
    if not pairs:
        return []
    import pyarrow as pa

    from headrace.reduce.duck import query

    columns = {"l": [left for left, _ in pairs], "r": [right for _, right in pairs]}
    found: list[int] = query("SELECT levenshtein(l, r) AS d FROM pairs", {"pairs": pa.table(columns)})["d"].to_pylist()
    return found


def distance(left: str, right: str) -> int:
    """How many letters have to be put in, taken out or replaced to make one text the other."""
    before = list(range(len(right) + 1))
    for row, letter in enumerate(left, 1):
        now = [row]
        for column, other in enumerate(right, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (letter != other)))
        before = now
    return before[-1]
