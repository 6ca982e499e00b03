"""Warnings about what is tried again and again: logged at once, and then only where they say something else."""

from __future__ import annotations

import logging
from time import monotonic

from headrace.errors import HeadraceError

#: An equal warning is logged again after this long.
QUIET_S = 600.0


class RepeatedWarning:
    """One warning of a loop; objects of a store have other names each time, so the cause decides what is equal."""

    def __init__(self, logger: str, text: str) -> None:
        self._log, self._text = logging.getLogger(logger), text
        self._last: object = None
        self._logged_s = 0.0
        self._left_out = 0

    def warn(self, reason: HeadraceError) -> None:
        """Log why, unless the same was logged not long ago; then it is counted."""
        same = type(reason), reason.facts.get("cause", reason.message)
        now_s = monotonic()
        if same == self._last and now_s < self._logged_s + QUIET_S:
            self._left_out += 1
            return
        before = f" (and {self._left_out} times before)" if self._left_out and same == self._last else ""
        self._log.warning("%s: %s%s", self._text, reason.message, before)
        self._last, self._logged_s, self._left_out = same, now_s, 0
