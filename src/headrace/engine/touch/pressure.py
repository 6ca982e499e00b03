"""Which touches are reported under load: all of them, rows that have waiters, or only tables."""

from __future__ import annotations

from headrace.profiles.state_protocol.profile import Touch

IDLE, FINE, RESTRICTED, COARSE_ONLY = "idle", "fine", "restricted", "coarseOnly"


class Pressure:
    """What one stream has to spend on keys of rows, batch by batch."""

    def __init__(self, touch: Touch, now_s: float) -> None:
        self.touch = touch
        #: How the last batch went.
        self.mode = IDLE
        #: Whether there is too much to process, and not only too much to tell.
        self.lags = False
        self._tokens = float(touch.fine_burst_tokens)
        self._filled_s = now_s
        self._room = 0
        self._reserve = 0

    def begin(self, lag: int, now_s: float, *, fine: bool, free: bool) -> None:
        """A batch begins, so many entries behind; ``fine``: there are templates; ``free``: keys cost nothing."""
        touch = self.touch
        if lag >= touch.lag_degrade_fine_touches_at_source_offsets > 0 and not free:
            self.lags = True
        elif lag <= touch.lag_recover_fine_touches_at_source_offsets or free:
            self.lags = False
        grown = (now_s - self._filled_s) * touch.fine_tokens_per_second
        self._tokens = min(touch.fine_burst_tokens, self._tokens + max(0.0, grown))
        self._filled_s = now_s
        self._room = int(min(touch.fine_touch_budget_per_batch, self._tokens))
        self._reserve = touch.lag_reserved_fine_touch_budget_per_batch
        if free:
            self._room = 2**62
        behind = RESTRICTED if self._reserve else COARSE_ONLY
        self.mode = IDLE if not fine else behind if self.lags else FINE

    def spend(self, keys: int) -> bool:
        """Whether so many keys may be told; where not, the rest of the batch is restricted."""
        if self.mode is not FINE:
            return False
        if keys > self._room:
            self.mode = RESTRICTED
            return False
        self._room -= keys
        self._tokens -= keys
        return True

    def spare(self, keys: int) -> bool:
        """Whether so many keys that someone waits for may be told; where not, only tables are for the rest of it."""
        self._reserve -= keys
        if self._reserve < 0 and self.lags:
            self.mode = COARSE_ONLY
            return False
        return True
