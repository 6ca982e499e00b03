"""How many values are out of the ordinary, decided when they are read: only then is known what came before.

With a window, a value counts where it lies more than ``sigma`` standard deviations (of the population) from the mean
of the values in the window's panes before its own. Without one it is held against all other values, itself left out.
Either way there must be five others or more, and they must differ. The state is ``[moments, numbers]``, the numbers
as in ``quantiles``: exact up to 256 per pane, then within 1.33 % of the pane's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from headrace.operators import distributions
from headrace.operators.declaration import CHANGE, NUMBER, Parameter, declare
from headrace.operators.moments import Moments, add_value, deviation, merge_moments, moments_of_field
from headrace.operators.operator import FieldOperator, Windowed
from headrace.operators.parts import EXACT as EXACT_PART
from headrace.operators.parts import Parts, plain, pooled
from headrace.operators.runs import RowRuns
from headrace.operators.state_columns import Records

LEAST = 5


class Outliers(FieldOperator):
    """How many values lie far from all the others."""

    declaration = declare(
        "outlier_count",
        CHANGE,
        "values further than `sigma` deviations from the mean of the panes before their own",
        "i64",
        window="required",
        memory=distributions.MEMORY,
        field=NUMBER,
        sigma=Parameter("number", 3.0, above=0, example="2.5"),
    )
    order = "any"

    def in_window(self, window_ms: int, ahead_ms: int = 0) -> OutliersInWindow:
        """Those of a window."""
        return OutliersInWindow(self, window_ms, ahead_ms)

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value."""
        moments, numbers = (None, None) if state is None else state
        return [add_value(moments, value), distributions.add_number(numbers, value)]

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The values of both."""
        return [merge_moments(left[0], right[0]), distributions.merge_states([left[1], right[1]])]

    def finish(self, state: list[Any] | None, now: int = 0) -> int:
        """How many; without a value its others have other moments, which gives one distance from the mean for all."""
        if state is None:
            return 0
        (n, mean, squares), numbers = state
        if n <= LEAST or squares <= 0:
            return 0
        sigma = self.params["sigma"]
        away = sigma * math.sqrt(squares * (n - 1) / (n * (n + sigma**2)))
        return distributions.outside(numbers, mean - away, mean + away)

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The moments and the numbers of each run."""
        moments = moments_of_field(self._field, runs)
        return Records(moments, distributions.states_of_runs(self._field, runs))

    def catalyst_parts(self) -> Parts:
        """Moments, numbers that are kept as they are, and a sketch."""
        return Parts(
            pooled("moments"),
            EXACT_PART,
            plain("numbers"),
            apart=lambda state: [state[0], *state[1]],
            together=lambda moments, exact, sketch: [moments, distributions.merge_parts(exact, sketch)],
        )


class OutliersInWindow(Windowed):
    """How many values of the window lie far from those in its panes before their own."""

    def finish(self, state: dict[int, Any] | None, now: int = 0) -> int:
        """How many, pane by pane."""
        before: Moments | None = None
        outliers, sigma = 0, self.inner.params["sigma"]
        for moments, numbers in self.counting(state, now):
            if before is not None and before[0] >= LEAST and before[2] > 0:
                away = sigma * deviation(before)
                outliers += distributions.outside(numbers, before[1] - away, before[1] + away)
            before = merge_moments(before, moments)
        return outliers
