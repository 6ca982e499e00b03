"""Problems of a registration: a stable code, the path in the payload, and a sentence."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec


class DescriptorProblem(NamedTuple):
    """One error in a registration; the path is like ``descriptors[0].agg.total.params.window``."""

    code: str
    path: str
    message: str


class NodeProblem(NamedTuple):
    """A problem of a node, before the path of the node in the payload is known."""

    node: str
    code: str
    rest: str
    message: str


class DescriptorLocation(NamedTuple):
    """The path of a value in a payload, and the list that its problems are added to."""

    path: str
    problems: list[DescriptorProblem]

    def at(self, name: str | int) -> DescriptorLocation:
        """The location of a member."""
        return self._replace(path=join_path(self.path, name))

    def refuse(self, code: str, message: str) -> None:
        """Note a problem with the value here."""
        self.problems.append(DescriptorProblem(code, self.path, message))


def join_path(path: str, name: str | int) -> str:
    """The path of a member."""
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


Status = Literal["ok", "conflict", "invalid"]


class RegistrationResponse(msgspec.Struct, frozen=True):
    """The answer to a registration, applied or refused."""

    status: Status
    registry_version: int
    added: list[str] = []
    removed: list[str] = []
    changed: list[dict[str, Any]] = []
    #: What happens to features and streams: the rest of the diff.
    features: list[dict[str, Any]] = []
    streams: list[dict[str, Any]] = []
    #: Why it is refused, or would be without force.
    errors: list[DescriptorProblem] = []
    refused: bool = False

    @property
    def http_status(self) -> int:
        """200, or why not."""
        return 200 if not self.refused else 409 if self.status == "conflict" else 400

    def body(self) -> dict[str, Any]:
        """The JSON answer."""
        answer: dict[str, Any] = {
            "status": self.status,
            "registry_version": self.registry_version,
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "plan": {"features": self.features, "streams": self.streams},
        }
        errors = [problem._asdict() for problem in self.errors]
        if errors and self.refused:
            first = self.errors[0]
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            answer["error"] = {"code": first.code, "message": first.message + more, "errors": errors}
        elif errors:
            answer["plan"]["refusals"] = errors
        return answer
