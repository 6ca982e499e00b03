"""Problems of documents and requests, and locations that collect them while a request is read."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from headrace.schema import pointer


class Problem(NamedTuple):
    """One error in a document: a JSON Pointer into it, and the reason."""

    pointer: str
    reason: str


class RequestProblem(NamedTuple):
    """One error in a request: a stable code, the path of the value, and a sentence."""

    code: str
    path: str
    message: str

    def dump(self) -> dict[str, Any]:
        """The problem as a JSON object."""
        return self._asdict()


class Location(NamedTuple):
    """The path of a value in a request, as a JSON Pointer, and the list that its problems are added to."""

    path: str
    problems: list[RequestProblem]

    def at(self, name: str | int) -> Self:
        """The location of a member."""
        return self._replace(path=self.path + pointer.text((str(name),)))

    def refuse(self, code: str, message: str) -> None:
        """Note a problem with the value here."""
        self.problems.append(RequestProblem(code, self.path, message))


class DottedLocation(Location):
    """A location whose path is like ``descriptors[0].agg.total.params.window``."""

    def at(self, name: str | int) -> Self:
        """The location of a member."""
        return self._replace(path=join_path(self.path, name))


def join_path(path: str, name: str | int) -> str:
    """The dotted path of a member."""
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name
