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
from headrace.query.values import values
from headrace.query.words import words

K1, B = 1.2, 0.75


def expected(search: Search, documents: Mapping[int, Any], request: SearchRequest) -> list[tuple[int, tuple[Any, ...]]]:
    """Every match, in order, with the values it is sorted by; an offset is a sequence number."""
    holds = predicate.compile(request.tree, search)
    matches = [seq for seq, document in documents.items() if holds(document)]
    places = {seq: tuple(_value(key, search, documents, request.tree, seq) for key in request.order) for seq in matches}
    order = request.order

    def compare(a: int, b: int) -> int:
        for key, left, right in zip(order, places[a], places[b], strict=True):
            if left != right:
                is_less = right is None or (left is not None and left < right)
                return (-1 if is_less else 1) * (-1 if key.descending else 1)
        return 0

    return [(seq, places[seq]) for seq in sorted(matches, key=cmp_to_key(compare))]


def _value(key: SortKey, search: Search, documents: Mapping[int, Any], tree: Node, seq: int) -> Any:
    if key.field is not None:
        found = values(key.field, documents[seq])
        return found[0] if found else None
    if key.name == "offset":
        return seq
    return round(score(tree, search, documents, seq) * 1e6) / 1e6


def score(tree: Node, search: Search, documents: Mapping[int, Any], seq: int) -> float:
    """BM25, recomputed from all documents."""
    if isinstance(tree, And | Or):
        return sum(score(part, search, documents, seq) for part in tree.parts)
    if not isinstance(tree, Term | Phrase):
        return 0.0
    if tree.field is None:
        targets = [(search[given.field], given.boost) for given in search.bare_fields()]
    else:
        field = search[tree.field]
        targets = [(field, 1.0)] if field.kind is Kind.TEXT else []
    return max((boost * _clause(tree, field, documents, seq) for field, boost in targets), default=0.0)


def _clause(clause: Term | Phrase, field: Field, documents: Mapping[int, Any], seq: int) -> float:
    test = predicate.value_test(clause, field)
    if not any(test(value) for value in values(field, documents[seq])):
        return 0.0
    if field.kind is not Kind.TEXT:
        return 1.0
    texts = {at: [words(value) for value in values(field, document)] for at, document in documents.items()}
    texts = {at: found for at, found in texts.items() if found}
    lengths = {at: sum(map(len, found)) for at, found in texts.items()}
    average = sum(lengths.values()) / len(texts)
    norm = K1 * (1 - B + B * lengths[seq] / average)
    asked = words(clause.value)

    def is_word(number: int, word: str) -> bool:
        is_prefix = clause.prefix and number == len(asked) - 1
        return word.startswith(asked[number]) if is_prefix else word == asked[number]

    def rarity(number: int) -> float:
        held = sum(any(is_word(number, word) for value in found for word in value) for found in texts.values())
        return math.log(1 + (len(texts) - held + 0.5) / (held + 0.5))

    if isinstance(clause, Phrase) and len(asked) > 1:
        times = sum(
            all(is_word(number, value[at + number]) for number in range(len(asked)))
            for value in texts[seq]
            for at in range(len(value) - len(asked) + 1)
        )
        return sum(map(rarity, range(len(asked)))) * times * (K1 + 1) / (times + norm)
    total = 0.0
    for number in range(len(asked)):
        times = sum(is_word(number, word) for value in texts[seq] for word in value)
        total += rarity(number) * times * (K1 + 1) / (times + norm)
    return total
