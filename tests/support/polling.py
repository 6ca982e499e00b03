"""Waiting for what another process does, which sends no event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_PAUSE_S = 0.02


def wait_until(holds: Callable[[], Any], timeout_s: float = 60.0, reason: Callable[[], object] = lambda: "") -> None:
    """Return once a condition holds; fails after the timeout, with a reason that is computed then."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, reason() or f"it does not hold within {timeout_s} s"
        time.sleep(_PAUSE_S)
