"""What is wrong with a registration: a stable code, the place in the payload, and a sentence."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong; the path is like ``descriptors[0].agg.total.params.window``."""

    code: str
    path: str
    message: str


class Finding(NamedTuple):
    """A problem of a node, before it is known where the payload has the node."""

    node: str
    code: str
    rest: str
    message: str


class Place(NamedTuple):
    """Where a value stands, and where problems with it go."""

    path: str
    problems: list[Problem]

    def at(self, name: str | int) -> Place:
        """The place of a member."""
        return self._replace(path=joined(self.path, name))

    def refuse(self, code: str, message: str) -> None:
        """Note a problem with what stands here."""
        self.problems.append(Problem(code, self.path, message))


def joined(path: str, name: str | int) -> str:
    """The path of a member."""
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name
