"""Entities that may be the same: pairs whose texts differ by few letters, however many entities there are.

Not every pair is measured. Of two texts that differ by at most ``k`` edits, where one is cut into ``k + 1`` pieces at
least one piece stands unchanged in the other, near its place. So pairs are looked for by pieces, which are cut so that
each is in as few texts as possible; those whose letters differ by more than ``k``, in whatever order, are left out; and
what remains is measured. None is missed. Where the most similar pairs are enough, the others are not looked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge, nsmallest
from itertools import islice
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from headrace.deadline import check_deadline

#: Texts are compared up to so many letters.
MAX_LETTERS = 256
#: The least similarity that can be asked for.
LEAST = 0.5
#: The similarities that are looked for one after the other, until there are enough pairs.
_STEPS = (0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6)
_TOGETHER = 50_000
_BUCKETS = 32
_ROUNDING = 1e-9
#: So many texts of a length tell where all of them are best cut; where there are fewer it does not matter.
_SAMPLE = 64
#: Letters that can be compared as bytes, whichever they are.
_MAX_KINDS = 127


class Pair(NamedTuple):
    """Two entities and how similar they are: 1 where their texts are the same."""

    similarity: float
    left: str
    right: str


class _Near(NamedTuple):
    """Two texts, how similar they are, and the entities that come first of those that have them."""

    similarity: float
    first: tuple[str, str]
    texts: tuple[str, str]


def find_duplicates(texts: Mapping[str, str], threshold: float, limit: int) -> list[Pair]:
    """The most similar pairs of entities, given the text of each; for a thread."""
    by_text: dict[str, list[str]] = {}
    for entity, text in sorted(texts.items()):
        by_text.setdefault(text[:MAX_LETTERS], []).append(entity)
    same_pairs = list(islice(merge(*(_pairs_among(entities) for entities in by_text.values())), limit))
    pairs = [Pair(1.0, *pair) for pair in same_pairs]
    ordered = sorted(by_text, key=lambda text: (len(text), text))
    for step in (*(step for step in _STEPS if step > threshold), threshold):
        if len(pairs) >= limit:
            break
        nearest = nsmallest(limit, _nearest(ordered, by_text, step), key=lambda near: (-near.similarity, near.first))
        pairs = [Pair(1.0, *pair) for pair in same_pairs] + _entity_pairs(nearest, by_text, limit)
    return pairs[:limit]


def _pairs_among(entities: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, left in enumerate(entities):
        for right in islice(entities, number + 1, None):
            yield left, right


def _nearest(texts: list[str], by_text: Mapping[str, list[str]], threshold: float) -> Iterator[_Near]:
    for left, right, apart in _near(texts, threshold):
        similarity = round(1 - apart / max(len(left), len(right)), 4)
        first = min(by_text[left][0], by_text[right][0]), max(by_text[left][0], by_text[right][0])
        yield _Near(similarity, first, (left, right))


def _entity_pairs(near: list[_Near], by_text: Mapping[str, list[str]], limit: int) -> list[Pair]:
    """Pairs of entities in order, given pairs of texts in order."""
    pairs: list[Pair] = []
    for similarity in dict.fromkeys(each.similarity for each in near):
        parts = [
            _pairs_between(*map(by_text.__getitem__, near_texts.texts))
            for near_texts in near
            if near_texts.similarity == similarity
        ]
        pairs += (Pair(similarity, *pair) for pair in islice(merge(*parts), limit - len(pairs)))
    return pairs


def _pairs_between(left: list[str], right: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs of an entity of each, in order."""
    check_deadline()
    for first, others in merge(((entity, right) for entity in left), ((entity, left) for entity in right)):
        for second in islice(others, bisect_right(others, first), None):
            yield first, second


def _near(texts: list[str], threshold: float) -> Iterator[tuple[str, str, int]]:
    """Pairs of different texts, given by their lengths, that are near enough, and their distances."""
    pieces, waiting = _Pieces(texts, threshold), list[tuple[str, str]]()
    for number, text in enumerate(texts):
        check_deadline()
        waiting += ((texts[other], text) for other in pieces.like(number))
        pieces.add(number)
        if len(waiting) >= _TOGETHER:
            yield from _measure_pairs(waiting, threshold)
            waiting = []
    yield from _measure_pairs(waiting, threshold)


class _Pieces:
    """The pieces of texts that were added, the shorter ones first, and which texts have them."""

    def __init__(self, texts: list[str], threshold: float) -> None:
        self._texts, self._threshold = texts, threshold
        self._having: dict[tuple[int, int, str], array[int]] = {}
        self._cuts_by_length: dict[int, list[tuple[int, int]]] = {}
        self._lengths = [len(text) for text in texts]
        #: How often each letter is in a text, and which are in it at all, a bit for each.
        self._letters: Any = np.zeros((len(texts), _BUCKETS), np.int16)
        self._marks: Any = np.zeros(len(texts), np.uint64)
        for number, text in enumerate(texts):
            check_deadline()
            self._letters[number] = np.bincount([ord(letter) % _BUCKETS for letter in text], minlength=_BUCKETS)
            self._marks[number] = sum(1 << bit for bit in {ord(letter) % 64 for letter in text})

    def add(self, number: int) -> None:
        text = self._texts[number]
        for piece_number, (start, end) in enumerate(self._cuts(len(text))):
            self._having.setdefault((len(text), piece_number, text[start:end]), array("L")).append(number)

    def like(self, number: int) -> list[int]:
        """The texts that may be near one that is no shorter than any of them."""
        check_deadline()
        text = self._texts[number]
        max_edits = int((1 - self._threshold) * len(text) + _ROUNDING)
        lengths = range(ceil(self._threshold * len(text) - _ROUNDING), len(text) + 1)
        having = [numbers for length in lengths for numbers in self._sharing(text, length, max_edits)]
        if not having:
            return []
        shares = np.zeros(number, bool)
        for numbers in having:
            shares[np.array(numbers)] = True
        others = np.flatnonzero(shares)
        # An edit changes two letters at most; what differs in more is known at a glance.
        others = others[np.bitwise_count(self._marks[others] ^ self._marks[number]) <= 2 * max_edits]
        apart = self._letters[others] - self._letters[number]
        near = (np.maximum(apart, 0).sum(axis=1) <= max_edits) & (np.maximum(-apart, 0).sum(axis=1) <= max_edits)
        chosen: list[int] = others[near].tolist()
        return chosen

    def _sharing(self, text: str, length: int, max_edits: int) -> Iterator[array[int]]:
        """Texts of a length that have a piece which stands in another text too, not too far from its place."""
        longer = len(text) - length
        for piece_number, (start, end) in enumerate(self._cuts(length)):
            low = max(0, start - piece_number, start + longer - (max_edits - piece_number))
            high = min(start + piece_number, start + longer + (max_edits - piece_number), len(text) - (end - start))
            for at in range(low, high + 1):
                numbers = self._having.get((length, piece_number, text[at : at + end - start]))
                if numbers is not None:
                    yield numbers

    def _cuts(self, length: int) -> list[tuple[int, int]]:
        """Where a text is cut: into one piece more than it may have edits to the longest text that is near enough."""
        pieces = self._cuts_by_length.get(length)
        if pieces is None:
            longest = int(length / self._threshold + _ROUNDING)
            count = int((1 - self._threshold) * longest + _ROUNDING) + 1
            pieces = self._cuts_by_length[length] = choose_cuts(self._of_length(length), length, count)
        return pieces

    def _of_length(self, length: int) -> list[str]:
        """Some of the texts of a length, from all over."""
        first, end = bisect_left(self._lengths, length), bisect_right(self._lengths, length)
        return self._texts[first : end : max(1, (end - first) // _SAMPLE)]


def choose_cuts(texts: Sequence[str], length: int, count: int) -> list[tuple[int, int]]:
    """So many pieces of texts of a length, each of which is the same in as few of the texts as can be."""
    evenly = [(length * number // count, length * (number + 1) // count) for number in range(count)]
    if len(texts) < _SAMPLE or count > length or count == 1:
        return evenly
    cutting = _PieceSearch(texts, length, count)
    pieces, max_alike = evenly, max(cutting.alike(*piece) for piece in evenly)
    while max_alike and (better := cutting.pieces(max_alike // 2)) is not None:
        pieces, max_alike = better, max_alike // 2
    return pieces


class _PieceSearch:
    """Finds texts of one length by pieces."""

    def __init__(self, texts: Sequence[str], length: int, count: int) -> None:
        self._texts, self._length, self._count = texts, length, count
        self._pair_counts: dict[tuple[int, int], int] = {}

    def alike(self, start: int, end: int) -> int:
        """How many pairs of texts have the same piece."""
        pairs = self._pair_counts.get((start, end))
        if pairs is None:
            check_deadline()
            counted = Counter(text[start:end] for text in self._texts)
            pairs = self._pair_counts[start, end] = sum(count * (count - 1) // 2 for count in counted.values())
        return pairs

    def pieces(self, max_alike: int) -> list[tuple[int, int]] | None:
        """Pieces that so many pairs have alike at most; None where there are too few."""
        pieces: list[tuple[int, int]] = []
        start = 0
        for left in range(self._count - 1, -1, -1):
            last = self._length - left
            # A longer piece is in fewer texts.
            end = bisect_left(range(last), True, start + 1, key=lambda end: self.alike(start, end) <= max_alike)
            end = self._length if not left else end
            if end > last or self.alike(start, end) > max_alike:
                return None
            pieces.append((start, end))
            start = end
        return pieces


def _measure_pairs(pairs: list[tuple[str, str]], threshold: float) -> Iterator[tuple[str, str, int]]:
    byte_pairs = [_single_byte_pair(*pair) for pair in pairs]
    distances = iter(_byte_distances([byte_pair for byte_pair in byte_pairs if byte_pair is not None]))
    for (left, right), byte_pair in zip(pairs, byte_pairs, strict=True):
        apart = distance(left, right) if byte_pair is None else next(distances)
        if apart <= (1 - threshold) * max(len(left), len(right)) + _ROUNDING:
            yield left, right, apart


def _single_byte_pair(left: str, right: str) -> tuple[str, str] | None:
    """Two texts with a byte for each letter; None where they have too many different letters."""
    if left.isascii() and right.isascii():
        return left, right
    kinds = sorted({*left, *right})
    if len(kinds) > _MAX_KINDS:
        return None
    table = {ord(letter): number for number, letter in enumerate(kinds, 1)}
    return left.translate(table), right.translate(table)


def _byte_distances(pairs: list[tuple[str, str]]) -> list[int]:
    """The distances of texts whose letters are bytes."""
    if not pairs:
        return []
    import pyarrow as pa

    from headrace.reduce.duck import query  # loads DuckDB, which takes long

    columns = {"l": [left for left, _ in pairs], "r": [right for _, right in pairs]}
    distances: list[int] = query("SELECT levenshtein(l, r) AS d FROM pairs", {"pairs": pa.table(columns)})[
        "d"
    ].to_pylist()
    return distances


def distance(left: str, right: str) -> int:
    """How many letters have to be put in, taken out or replaced to make one text the other."""
    before = list(range(len(right) + 1))
    for row, letter in enumerate(left, 1):
        now = [row]
        for column, other in enumerate(right, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (letter != other)))
        before = now
    return before[-1]
