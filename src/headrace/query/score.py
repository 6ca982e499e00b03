"""How well an event answers a query: BM25 over the words of text fields.

Side by side and alternatives add up what each part gives; what is negated gives nothing. A clause that asks several
fields gives the most that any of them does. Words and phrases in a text give BM25 times the boost of the field, a
default field of keywords gives its boost, every other clause nothing.

The statistics are those of the whole stream: how many events have a value of the field (*documents*), how many of these
hold the word (*document frequency*), how many words a value has on the average. A prefix counts as one word, the sum of
all that begin so. A phrase counts how often it occurs, and weighs as much as its words together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.query.predicate import value_test
from headrace.query.search import Field, Kind, Search
from headrace.query.tree import And, Node, Or, Phrase, Term
from headrace.query.values import has_phrase, values, words

K1, B = 1.2, 0.75
#: Scores are whole multiples of 1/STEPS, so that sums in another order are the same.
STEPS = 1e6


class ScoredClause(NamedTuple):
    """A clause that gives a score, and the fields it asks with their boosts."""

    clause: Term | Phrase
    fields: tuple[tuple[Field, float], ...]


class Word(NamedTuple):
    """A word that is searched in a text field, or with ``prefix`` the beginning of one."""

    field: str
    text: str
    prefix: bool

    def times(self, held: list[str]) -> int:
        """How often it occurs among the words of a text."""
        return sum(word.startswith(self.text) if self.prefix else word == self.text for word in held)


def scoring_clauses(tree: Node, search: Search) -> list[ScoredClause]:
    """The clauses that give a score, from left to right; those below a negation do not."""
    match tree:
        case And(parts=parts) | Or(parts=parts):
            return [scored for part in parts for scored in scoring_clauses(part, search)]
        case Term(field=None) | Phrase(field=None):
            return [
                ScoredClause(tree, tuple((search[default.field], default.boost) for default in search.bare_fields()))
            ]
        case Term(field=str(name)) | Phrase(field=str(name)) if search[name].kind is Kind.TEXT:
            return [ScoredClause(tree, ((search[name], 1.0),))]
    return []


def query_words(clause: Term | Phrase, field: Field) -> list[Word]:
    """The words that a clause asks a text field for, in order."""
    word_list = words(clause.value)
    return [Word(field.name, word, clause.prefix and at == len(word_list) - 1) for at, word in enumerate(word_list)]


def idf(documents: int, document_frequency: int) -> float:
    """The inverse document frequency of a word that so many of so many documents hold."""
    return math.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5))


def saturate(frequency: Any, length: Any, average: float) -> Any:
    """The weight of a term frequency in a text of this length, which saturates; numbers, or arrays of them."""
    return frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / average))


class Statistics:
    """What scores are computed from: sums over all events, for the fields and words of the scoring clauses."""

    def __init__(self, scoring: list[ScoredClause]) -> None:
        self.scoring = scoring
        self.documents: Counter[str] = Counter()
        self.words: Counter[str] = Counter()
        self.document_frequency: Counter[Word] = Counter()
        texts = [(scored.clause, field) for scored in scoring for field, _ in scored.fields if field.kind is Kind.TEXT]
        self.fields = list({field.name: field for _, field in texts}.values())
        self.query_words = list(dict.fromkeys(word for clause, field in texts for word in query_words(clause, field)))

    def idf(self, word: Word) -> float:
        """The inverse document frequency of a word."""
        return idf(self.documents[word.field], self.document_frequency[word])

    def average(self, field: str) -> float:
        """The average number of words of a field, over the events that have a value of it."""
        return self.words[field] / self.documents[field]

    def count(self, document: Any) -> None:
        """Add an event that is given as a document."""
        for field in self.fields:
            held = _text_words(field, document)
            if held is not None:
                self.documents[field.name] += 1
                self.words[field.name] += len(held)
                self.document_frequency.update(
                    word for word in self.query_words if word.field == field.name and word.times(held)
                )

    def score(self, document: Any) -> float:
        """The score of an event that is given as a document and was counted."""
        return round(sum(self._clause(scored, document) for scored in self.scoring) * STEPS) / STEPS

    def _clause(self, scored: ScoredClause, document: Any) -> float:
        field_scores = [boost * self._field(scored.clause, field, document) for field, boost in scored.fields]
        return max(field_scores, default=0.0)

    def _field(self, clause: Term | Phrase, field: Field, document: Any) -> float:
        answers = value_test(clause, field)
        if not any(answers(value) for value in values(field, document)):
            return 0.0
        if field.kind is not Kind.TEXT:
            return 1.0
        held, wanted = _text_words(field, document) or [], query_words(clause, field)
        average = self.average(field.name)
        if isinstance(clause, Phrase) and len(wanted) > 1:
            times = sum(_times(words(str(value)), wanted) for value in values(field, document))
            return float(sum(map(self.idf, wanted)) * saturate(times, len(held), average))
        parts = (self.idf(word) * saturate(word.times(held), len(held), average) for word in wanted)
        return float(sum(parts))


def _text_words(field: Field, document: Any) -> list[str] | None:
    """All words of a text field, or None where it has no value."""
    field_values = values(field, document)
    return [word for value in field_values for word in words(str(value))] if field_values else None


def _times(held: list[str], phrase: list[Word]) -> int:
    """How often a phrase stands in one value."""
    texts, prefix = [word.text for word in phrase], phrase[-1].prefix
    return sum(has_phrase(run, texts, prefix=prefix) for run in _runs(held, len(texts)))


def _runs(held: list[str], length: int) -> Iterator[list[str]]:
    return (held[at : at + length] for at in range(len(held) - length + 1))
