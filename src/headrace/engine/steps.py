"""A setting that changes on the way: what it is from an event on."""

from __future__ import annotations

#: The event from which on a value holds, and the value; the first begins at 0.
Steps = tuple[tuple[int, int | None], ...]
