"""How many values are out of the ordinary, decided when they are read: only then is known what came before.

With a window, a value counts where it lies more than ``sigma`` standard deviations (of the population) from the mean
of the values in the window's panes before its own. Without one it is held against all other values, itself left out.
Either way there must be five others or more, and they must differ. The state is ``[moments, numbers]``, the numbers
as in ``quantiles``: exact up to 256 per pane, then within 1.33 % of the pane's.
"""

from __future__ import annotations

import math
from typing import Any

from headrace.reduce.features import distributions
from headrace.reduce.features.moments import Moments, add_value, deviation, merge_moments
from headrace.reduce.features.operator import OfValues
from headrace.reduce.features.window import Windowed
from headrace.schema.descriptor.nodes import Type

LEAST = 5


class Outliers(OfValues):
    """How many values lie far from all the others."""

    commutative = True

    def __init__(self, field: str, kind: Type, sigma: float) -> None:
        super().__init__(field, kind)
        self.sigma = sigma

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value."""
        moments, numbers = (None, None) if state is None else state
        return [add_value(moments, value), distributions.add_number(numbers, value)]

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The values of both."""
        return [merge_moments(left[0], right[0]), distributions.merge_states([left[1], right[1]])]

    def finish(self, state: list[Any] | None, now_ms: int) -> int:
        """How many; without a value its others have other moments, which gives one distance from the mean for all."""
        if state is None:
            return 0
        (n, mean, squares), numbers = state
        if n <= LEAST or squares <= 0:
            return 0
        away = self.sigma * math.sqrt(squares * (n - 1) / (n * (n + self.sigma**2)))
        return distributions.outside(numbers, mean - away, mean + away)


class OutliersInWindow(Windowed):
    """How many values of the window lie far from those in its panes before their own."""

    def __init__(self, inner: Outliers, window_ms: int) -> None:
        super().__init__(inner, window_ms)
        self._sigma = inner.sigma

    def finish(self, state: dict[int, Any] | None, now_ms: int) -> int:
        """How many, pane by pane."""
        before: Moments | None = None
        outliers = 0
        in_order = dict(sorted(state.items())) if state else None
        for moments, numbers in self.counting(in_order, now_ms):
            if before is not None and before[0] >= LEAST and before[2] > 0:
                away = self._sigma * deviation(before)
                outliers += distributions.outside(numbers, before[1] - away, before[1] + away)
            before = merge_moments(before, moments)
        return outliers
