"""Whose bytes those of a companion are: columns, full text, panes, exact values, the lexicon.

The postings of all fields lie in one file, and nobody reads it only to measure. Its bytes are split by how many
postings each field has: one for each event, and two numbers for each word of a text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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

    def add(self, companion: Companion) -> None:
        """Count one more companion."""
        self.total += sum(part.bytes for part in companion.parts.values())
        self.families["col"] += companion.columns.bytes
        self.families["agg"] += 0 if companion.panes is None else companion.panes.bytes
        if companion.postings is not None:
            for name, size in split(companion.postings.bytes, self._postings(companion)).items():
                self.postings[name] += size
                if name != KEYS:
                    self.families["fts" if self._is_text(companion, name) else "exact"] += size

    def _postings(self, companion: Companion) -> dict[str, int]:
        """About how many numbers the postings of every field have."""
        found = {KEYS: companion.count} if companion.keys else {}
        for name in companion.fields:
            if name in companion.words:
                found[name] = 2 * companion.words[name][1]
            elif self._has_postings(name):
                found[name] = companion.count
        return found

    def _has_postings(self, name: str) -> bool:
        field = None if self._search is None else self._search.fields.get(name)
        return field is None or field.exact or field.kind is Kind.KEYWORD

    def _is_text(self, companion: Companion, name: str) -> bool:
        """Whether postings answer for words and prefixes, and not for whole values."""
        field = None if self._search is None else self._search.fields.get(name)
        return name in companion.words or (field is not None and not field.exact)


def split(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Parts of a whole by weight, which together are the whole; nobody has any where all weigh nothing."""
    whole = sum(weights.values())
    given, so_far, before = dict[str, int](), 0, 0
    for name, weight in weights.items():
        so_far += weight
        upto = total * so_far // whole if whole else 0
        given[name], before = upto - before, upto
    return given
