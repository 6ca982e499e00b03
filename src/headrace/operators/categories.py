"""How often each value occurs: the most frequent, their shares, their entropy.

The state is ``[{value: count}, number of all, most that any count may miss]``. All values are counted until there are
more than 2,048 different ones (or twice as many as are asked for); then the rarer half is given up, and every count
loses as much as the first of those had (Misra-Gries, as in DataSketches' frequent items). So counts are exact until
then, and afterwards never too high and too low by at most 1/1,024 of all.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.operators.declaration import DISTRIBUTIONS, MAX_CATEGORIES, VALUE, Parameter, Params, declare
from headrace.operators.distinct import counts_of_values
from headrace.operators.operator import FieldOperator, canonical
from headrace.operators.runs import RowRuns, counts_by_run
from headrace.operators.state_columns import Coded, Maps, Mixed, Numbers, Records, Same
from headrace.types import FieldType

KEPT = 1024
_MEMORY = "2,048 counts"


class ValueCounts(FieldOperator):
    """Counts the values of a field."""

    order = "any"

    def __init__(self, params: Params, types: Mapping[str, FieldType]) -> None:
        super().__init__(params, types)
        self._wanted = self.wanted()
        self._kept = max(KEPT, self._wanted)

    @abstractmethod
    def wanted(self) -> int:
        """How many values an answer has at most."""

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

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The counts of each run."""
        owners, values, counted, forms = counts_of_values(self._field, self.kind, runs)
        if self.is_selective:
            chosen = np.array([self.counts(form) for form in forms], np.bool_)[values]
            owners, values, counted = owners[chosen], values[chosen], counted[chosen]
        different, totals = counts_by_run(owners, len(runs.starts)), runs.counts()
        states = Records(
            Maps(different, Coded(values, forms), Numbers(counted)), Numbers(totals), Same(0, len(different))
        )
        many = np.flatnonzero(different > 2 * self._kept).tolist()
        return Mixed(states, many, [self._thin(states[run]) for run in many])

    @property
    def is_selective(self) -> bool:
        """Whether some values are not counted by themselves."""
        return False

    def counts(self, value: Any) -> bool:
        """Whether a value, in its canonical form, is counted by itself."""
        return True

    def top_values(self, state: list[Any] | None) -> list[tuple[Any, int]]:
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

    declaration = declare(
        "top_k",
        DISTRIBUTIONS,
        '`[{"value": …, "count": …}]`, the most frequent values first; exact up to 2,048 different ones',
        "list<struct<value: field, count: i64>>",
        window="optional",
        bound="k",
        memory=_MEMORY,
        field=VALUE,
        k=Parameter(
            "integer",
            10,
            least=1,
            greatest=1024,
            code="invalid_top_k_k",
            example="3",
            position="optional",
            note="up to 1,024",
        ),
    )

    def wanted(self) -> int:
        """So many values."""
        k: int = self.params["k"]
        return k

    def finish(self, state: list[Any] | None, now: int = 0) -> list[dict[str, Any]]:
        """The values."""
        return [{"value": self.render(value), "count": count} for value, count in self.top_values(state)]


class Mode(ValueCounts):
    """The most frequent value, in the type of the field; null where there is none."""

    declaration = declare(
        "mode",
        DISTRIBUTIONS,
        "the most frequent value, the least of equally frequent ones; exact up to 2,048 different ones",
        "field",
        window="optional",
        memory=_MEMORY,
        field=VALUE,
    )

    def wanted(self) -> int:
        """One value."""
        return 1

    def finish(self, state: list[Any] | None, now: int = 0) -> Any:
        """The value."""
        return next((self.render(value) for value, _ in self.top_values(state)), None)


class Entropy(ValueCounts):
    """How mixed the most frequent values are, in bits; 0 of one value, null of none. Rarer ones are left out."""

    declaration = declare(
        "entropy",
        DISTRIBUTIONS,
        "how evenly values are spread, in bits",
        "f64",
        window="optional",
        bound="max_categories",
        memory=_MEMORY,
        field=VALUE,
        max_categories=MAX_CATEGORIES,
    )

    def wanted(self) -> int:
        """So many categories."""
        categories: int = self.params["max_categories"]
        return categories

    def finish(self, state: list[Any] | None, now: int = 0) -> float | None:
        """The entropy."""
        counts = [count for _, count in self.top_values(state)]
        total = sum(counts)
        if total == 0:
            return None
        return math.fsum(count / total * math.log2(total / count) for count in counts)


class Mix(ValueCounts):
    """The share of each category among all values, by its text; where categories are given, of those alone."""

    declaration = declare(
        "event_type_mix",
        DISTRIBUTIONS,
        "`{category: share of all values}`",
        "map<f64>",
        bound="max_categories",
        memory=_MEMORY,
        field=VALUE,
        categories=Parameter("categories", None, example='["web", "till"]'),
        max_categories=MAX_CATEGORIES,
    )

    def __init__(self, params: Params, types: Mapping[str, FieldType]) -> None:
        super().__init__(params, types)
        chosen = params.get("categories")
        self._categories = None if chosen is None else frozenset(canonical(value, self.kind) for value in chosen)

    def wanted(self) -> int:
        """The categories given, or so many."""
        chosen = self.params.get("categories")
        limit: int = self.params["max_categories"] if chosen is None else len(chosen)
        return limit

    @property
    def is_selective(self) -> bool:
        """Where categories are given, only they are counted."""
        return self._categories is not None

    def counts(self, value: Any) -> bool:
        """Whether it is one of the categories."""
        return self._categories is None or value in self._categories

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more of this category, or of none."""
        if self._categories is None or canonical(value, self.kind) in self._categories:
            return super().add(state, value, at_ms, seq)
        return [{}, 1, 0] if state is None else [state[0], state[1] + 1, state[2]]

    def top_values(self, state: list[Any] | None) -> list[tuple[str, int]]:
        """The texts of the categories wanted with their counts, in the order of their frequency and then of texts."""
        counts = {} if state is None else state[0]
        named = ((self._text(value), count) for value, count in counts.items())
        return sorted(named, key=lambda entry: (-entry[1], entry[0]))[: self._wanted]

    def finish(self, state: list[Any] | None, now: int = 0) -> dict[str, float]:
        """The shares, by name."""
        return {} if state is None else {name: count / state[1] for name, count in sorted(self.top_values(state))}

    def _text(self, value: Any) -> str:
        return ("true" if value else "false") if isinstance(value, bool) else str(self.render(value))
