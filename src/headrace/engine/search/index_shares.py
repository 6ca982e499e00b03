"""Whose bytes those of a companion are: columns, full text, panes, exact values, the lexicon.

The postings of all fields lie in one file, and nobody reads it only to measure. Its bytes are split by how many
postings each field has: one for each event, and two numbers for each word of a text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from headrace.format.companion.layout import KEYS, Companion
from headrace.query.search import Kind, Search

Family = Literal["exact", "col", "fts", "agg"]
FAMILIES: tuple[Family, ...] = ("exact", "col", "fts", "agg")


class Shares:
    """The bytes of companions, by family and by the field whose postings they are; the lexicon is no family."""

    def __init__(self, search: Search | None) -> None:
        self._search = search
        self.families: Counter[str] = Counter()
        self.postings: Counter[str] = Counter()
        self.total = 0

    @property
    def lexicon(self) -> int:
        """The bytes of routing keys."""
        return self.postings[KEYS]

    def add(self, alike: Sequence[Companion]) -> None:
        """Count more companions, all of which hold the same."""
        sizes = Counter[str]()
        for companion in alike:
            sizes.update({name: part.bytes for name, part in companion.parts.items()})
        self.total += sizes.total()
        self.families["col"] += sizes["columns"]
        self.families["agg"] += sizes["panes"]
        texts = alike[0].words
        for name, size in split(sizes["postings"], self._postings(alike)).items():
            self.postings[name] += size
            if name != KEYS:
                self.families["fts" if name in texts or self._is_prefix(name) else "exact"] += size

    def _postings(self, alike: Sequence[Companion]) -> dict[str, int]:
        """About how many numbers the postings of every field have."""
        one, events = alike[0], sum(companion.count for companion in alike)
        found = {KEYS: events} if one.keys else {}
        for name in one.fields:
            if name in one.words:
                found[name] = 2 * sum(companion.words[name][1] for companion in alike)
            elif self._has_postings(name):
                found[name] = events
        return found

    def _has_postings(self, name: str) -> bool:
        field = None if self._search is None else self._search.fields.get(name)
        return field is None or field.exact or field.kind is Kind.KEYWORD

    def _is_prefix(self, name: str) -> bool:
        """Whether the postings of a field answer for beginnings of values, and not for whole ones."""
        field = None if self._search is None else self._search.fields.get(name)
        return field is not None and not field.exact


def split(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Parts of a whole by weight, which together are the whole; nobody has any where all weigh nothing."""
    whole = sum(weights.values())
    given, so_far, before = dict[str, int](), 0, 0
    for name, weight in weights.items():
        so_far += weight
        upto = total * so_far // whole if whole else 0
        given[name], before = upto - before, upto
    return given
