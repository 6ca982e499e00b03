"""How often each value occurs: the most frequent, their shares, their entropy.

The state is ``[{value: count}, number of all, most that any count may miss]``. All values are counted until there are
more than 2,048 different ones (or twice as many as are asked for); then the rarer half is given up, and every count
loses as much as the first of those had (Misra-Gries, as in DataSketches' frequent items). So counts are exact until
then, and afterwards never too high and too low by at most 1/1,024 of all.
"""

from __future__ import annotations

import math
from typing import Any

from headrace.reduce.features.operator import OfValues, canonical
from headrace.schema.descriptor.nodes import Type

KEPT = 1024


class ValueCounts(OfValues):
    """Counts the values of a field; ``wanted`` is how many of them an answer has at most."""

    commutative = True

    def __init__(self, field: str, kind: Type, wanted: int) -> None:
        super().__init__(field, kind)
        self._wanted = wanted
        self._kept = max(KEPT, wanted)

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more of this value."""
        key = canonical(value, self.kind)
        if state is None:
            return [{key: 1}, 1, 0]
        counts = state[0]
        counts[key] = counts.get(key, 0) + 1
        state[1] += 1
        return self._thin(state)

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The counts of both."""
        counts = dict(left[0])
        for value, count in right[0].items():
            counts[value] = counts.get(value, 0) + count
        return self._thin([counts, left[1] + right[1], left[2] + right[2]])

    def most(self, state: list[Any] | None) -> list[tuple[Any, int]]:
        """The values wanted with their counts, most frequent first, the lesser of equally frequent ones first."""
        counts = {} if state is None else state[0]
        return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[: self._wanted]

    def _thin(self, state: list[Any]) -> list[Any]:
        counts, total, missed = state
        if len(counts) <= 2 * self._kept:
            return state
        least = sorted(counts.values(), reverse=True)[self._kept]
        return [{value: count - least for value, count in counts.items() if count > least}, total, missed + least]


class TopK(ValueCounts):
    """The k most frequent values: ``[{"value": v, "count": n}]``."""

    def finish(self, state: list[Any] | None, now_ms: int) -> list[dict[str, Any]]:
        """The values."""
        return [{"value": self.render(value), "count": count} for value, count in self.most(state)]


class Entropy(ValueCounts):
    """How mixed the most frequent values are, in bits; 0 of one value, null of none. Rarer ones are left out."""

    def finish(self, state: list[Any] | None, now_ms: int) -> float | None:
        """The entropy."""
        counts = [count for _, count in self.most(state)]
        total = sum(counts)
        if total == 0:
            return None
        return math.fsum(count / total * math.log2(total / count) for count in counts)


class Mix(ValueCounts):
    """The share of each category among all values, by its text; where categories are given, of those alone."""

    def __init__(self, field: str, kind: Type, wanted: int, categories: list[Any] | None) -> None:
        super().__init__(field, kind, wanted if categories is None else len(categories))
        self._categories = None if categories is None else frozenset(canonical(each, kind) for each in categories)

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more of this category, or of none."""
        if self._categories is None or canonical(value, self.kind) in self._categories:
            return super().add(state, value, at_ms, seq)
        return [{}, 1, 0] if state is None else [state[0], state[1] + 1, state[2]]

    def most(self, state: list[Any] | None) -> list[tuple[str, int]]:
        """The texts of the categories wanted with their counts, in the order of their frequency and then of texts."""
        counts = {} if state is None else state[0]
        named = ((self._text(value), count) for value, count in counts.items())
        return sorted(named, key=lambda entry: (-entry[1], entry[0]))[: self._wanted]

    def finish(self, state: list[Any] | None, now_ms: int) -> dict[str, float]:
        """The shares, by name."""
        return {} if state is None else {name: count / state[1] for name, count in sorted(self.most(state))}

    def _text(self, value: Any) -> str:
        return ("true" if value else "false") if isinstance(value, bool) else str(self.render(value))
