"""Options that are given by name: what is not known is refused, where it would be ignored in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


def known(kind: type, options: Iterable[str]) -> None:
    """Refuse an option that the typed dictionary ``kind`` does not have, and name the one that may be meant."""
    names = list(kind.__annotations__)
    for name in options:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise TypeError(f"there is no option {name!r}; {hint}")


def at_least(least: int, options: Mapping[str, Any], *names: str) -> None:
    """Refuse a number below the least, or what is none at all, among these of the options."""
    for name in names:
        if name in options and not options[name] >= least:
            raise ValueError(f"{name} is at least {least}, not {options[name]}")
