"""What a search must find, in plain Python: all documents, one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cmp_to_key
from typing import Any

from headrace.query import predicate
from headrace.query.request import SearchRequest
from headrace.query.search import Field, Kind, Search
from headrace.query.sort import SortKey
from headrace.query.tree import And, Node, Or, Phrase, Term
from headrace.query.values import values, words

K1, B = 1.2, 0.75

#: Every match, in order, with the values it is sorted by; an offset is a sequence number.
Matches = list[tuple[int, tuple[Any, ...]]]


def expected(search: Search, documents: Mapping[int, Any], request: SearchRequest) -> Matches:
    """Every match of one search."""
    return Oracle(search, documents).expected(request)


class Oracle:
    """Answers searches of some documents, and keeps in mind the words of their texts."""

    def __init__(self, search: Search, documents: Mapping[int, Any]) -> None:
        self._search = search
        self._documents = documents
        self._texts: dict[str, dict[int, list[list[str]]]] = {}
        self._averages: dict[str, float] = {}
        self._rarities: dict[tuple[str, str, bool], float] = {}

    def expected(self, request: SearchRequest) -> Matches:
        """Every match of a search."""
        holds = predicate.compile(request.tree, self._search)
        matches = [seq for seq, document in self._documents.items() if holds(document)]
        order = request.order
        places = {seq: tuple(self._value(key, request.tree, seq) for key in order) for seq in matches}

        def compare(a: int, b: int) -> int:
            for key, left, right in zip(order, places[a], places[b], strict=True):
                if left != right:
                    is_less = right is None or (left is not None and left < right)
                    return (-1 if is_less else 1) * (-1 if key.descending else 1)
            return 0

        return [(seq, places[seq]) for seq in sorted(matches, key=cmp_to_key(compare))]

    def _value(self, key: SortKey, tree: Node, seq: int) -> Any:
        if key.field is not None:
            found = values(key.field, self._documents[seq])
            return found[0] if found else None
        if key.name == "offset":
            return seq
        return round(self._score(tree, seq) * 1e6) / 1e6

    def _score(self, tree: Node, seq: int) -> float:
        """BM25, recomputed from all documents."""
        if isinstance(tree, And | Or):
            return sum(self._score(part, seq) for part in tree.parts)
        if not isinstance(tree, Term | Phrase):
            return 0.0
        if tree.field is None:
            targets = [(self._search[given.field], given.boost) for given in self._search.bare_fields()]
        else:
            field = self._search[tree.field]
            targets = [(field, 1.0)] if field.kind is Kind.TEXT else []
        return max((boost * self._clause(tree, field, seq) for field, boost in targets), default=0.0)

    def _clause(self, clause: Term | Phrase, field: Field, seq: int) -> float:
        test = predicate.value_test(clause, field)
        if not any(test(value) for value in values(field, self._documents[seq])):
            return 0.0
        if field.kind is not Kind.TEXT:
            return 1.0
        texts = self._words(field)
        norm = K1 * (1 - B + B * sum(map(len, texts[seq])) / self._averages[field.name])
        last = len(words(clause.value)) - 1
        asked = [(word, clause.prefix and at == last) for at, word in enumerate(words(clause.value))]
        if isinstance(clause, Phrase) and len(asked) > 1:
            times = sum(
                all(_is(value[at + number], *asked[number]) for number in range(len(asked)))
                for value in texts[seq]
                for at in range(len(value) - len(asked) + 1)
            )
            return sum(self._rarity(field, *one) for one in asked) * times * (K1 + 1) / (times + norm)
        score = 0.0
        for one in asked:
            times = sum(_is(word, *one) for value in texts[seq] for word in value)
            score += self._rarity(field, *one) * times * (K1 + 1) / (times + norm)
        return score

    def _rarity(self, field: Field, asked: str, prefix: bool) -> float:
        mark = field.name, asked, prefix
        if mark not in self._rarities:
            texts = self._words(field).values()
            held = sum(any(_is(word, asked, prefix) for value in found for word in value) for found in texts)
            self._rarities[mark] = math.log(1 + (len(texts) - held + 0.5) / (held + 0.5))
        return self._rarities[mark]

    def _words(self, field: Field) -> dict[int, list[list[str]]]:
        """The words of every value of a text field, of the documents that have one."""
        known = self._texts.get(field.name)
        if known is None:
            given = {
                seq: [words(str(value)) for value in values(field, document)]
                for seq, document in self._documents.items()
            }
            known = self._texts[field.name] = {seq: found for seq, found in given.items() if found}
            held = sum(len(value) for found in known.values() for value in found)
            self._averages[field.name] = held / max(1, len(known))
        return known


def _is(word: str, asked: str, prefix: bool) -> bool:
    return word.startswith(asked) if prefix else word == asked
