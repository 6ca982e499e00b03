"""Redaction: values under listed keys are replaced, at any depth, and their paths are recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

REDACTED = "[REDACTED]"

#: Whether the value under a key must not be stored.
Listed = Callable[[str], bool]

#: Keys that are remembered not to be listed: most events have the same ones.
_MAX_REMEMBERED = 10_000


class Redactor:
    """Replaces the values under listed keys."""

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._harmless: set[str] = set()

    def is_clean(self, container: dict[str, Any]) -> bool:
        """Whether no key in a container is listed, as far as its keys were met before."""
        return container.keys() <= self._harmless and self._are_clean(container.values())

    def _are_clean(self, values: Iterable[Any]) -> bool:
        for value in values:
            kind = type(value)
            if kind is dict:
                if not self.is_clean(value):
                    return False
            elif kind is list and not self._are_clean(value):
                return False
        return True

    def redact(self, container: Any, paths: list[str], base: str = "") -> None:
        """Replace what is listed, in place; ``paths`` gets the dotted way to each."""
        waiting, harmless = [(base, container)], self._harmless
        while waiting:
            where, value = waiting.pop()
            for name, member in value.items() if type(value) is dict else enumerate(value):
                if name not in harmless and type(name) is str and self._is_listed(name):
                    value[name] = REDACTED
                    paths.append(f"{where}{name}")
                elif type(member) is dict or type(member) is list:
                    waiting.append((f"{where}{name}.", member))

    def _is_listed(self, name: str) -> bool:
        if self._listed(name):
            return True
        if len(self._harmless) < _MAX_REMEMBERED:
            self._harmless.add(name)
        return False


def is_among(keys: Collection[str]) -> Listed:
    """Whether a key is one of these, however its letters are cased."""
    key_set = frozenset(keys)
    return lambda name: name.lower() in key_set
