"""Scores of many events at once: the same sums and the same formula as for one document, natively."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.extract.match.evaluate import Evaluator
from headrace.extract.match.selection import Int32s, among, between
from headrace.query.score import STEPS, ScoredClause, Statistics, query_words, saturate
from headrace.query.search import Field, Kind
from headrace.query.tree import Phrase, Term

Floats = NDArray[np.float64]


def count(statistics: Statistics, evaluator: Evaluator, start: int, stop: int) -> None:
    """Add the events of rows ``start`` to ``stop`` of a companion, but for odd ones."""
    companion = evaluator.companion
    whole = start == 0 and stop == companion.end_seq - companion.first_seq
    for field in statistics.fields:
        documents, words = companion.words(field.name) if whole else _words(evaluator, field.name, start, stop)
        statistics.documents[field.name] += documents
        statistics.words[field.name] += words
    for word in statistics.query_words:
        rows = evaluator.texts.word(word.field, word.text, prefix=word.prefix).rows
        low, high = between(rows, start, stop)
        statistics.holding[word] += high - low


def scores(statistics: Statistics, evaluator: Evaluator, rows: Int32s) -> Floats:
    """The score of each of some ascending rows, none of them odd."""
    total = np.zeros(len(rows))
    for weighted in statistics.scoring:
        field_scores = [
            boost * _field(statistics, evaluator, weighted, field, rows) for field, boost in weighted.fields
        ]
        if field_scores:
            total += np.maximum.reduce(field_scores)
    return np.rint(total * STEPS) / STEPS


def _words(evaluator: Evaluator, field: str, start: int, stop: int) -> tuple[int, int]:
    """How many rows of a part have a value of a text field, and how many words these have."""
    lengths = evaluator.columns.first_values(f"n.{field}", np.arange(start, stop, dtype=np.int32))
    return len(lengths) - lengths.null_count, pc.sum(lengths).as_py() or 0


def _field(statistics: Statistics, evaluator: Evaluator, weighted: ScoredClause, field: Field, rows: Int32s) -> Floats:
    """What a clause gives for one field it asks, before the boost."""
    field_scores = np.zeros(len(rows))
    at = np.flatnonzero(among(rows, evaluator.rows(weighted.clause, field)))
    if not len(at):
        return field_scores
    if field.kind is not Kind.TEXT:
        field_scores[at] = 1.0
        return field_scores
    answering = rows[at]
    lengths = evaluator.columns.first_values(f"n.{field.name}", answering).to_numpy(zero_copy_only=False)
    field_scores[at] = _text(statistics, evaluator, weighted.clause, field, answering, lengths)
    return field_scores


def _text(
    statistics: Statistics,
    evaluator: Evaluator,
    clause: Term | Phrase,
    field: Field,
    rows: Int32s,
    lengths: NDArray[np.int32],
) -> Floats:
    texts, words, average = evaluator.texts, query_words(clause, field), statistics.average(field.name)
    if isinstance(clause, Phrase) and len(words) > 1:
        phrase = texts.phrase(field.name, [word.text for word in words], prefix=clause.prefix)
        weight = sum(map(statistics.rarity, words))
        phrase_scores: Floats = weight * saturate(phrase.of(rows), lengths, average)
        return phrase_scores
    total = np.zeros(len(rows))
    for word in words:
        counted = texts.word(word.field, word.text, prefix=word.prefix)
        total += statistics.rarity(word) * saturate(counted.of(rows), lengths, average)
    return total
