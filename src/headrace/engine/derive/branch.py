"""Branches: which streams are folded into which states, and by which job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headrace.reduce.states.definition import Definitions
from headrace.reduce.work_units import JobName
from headrace.storage.database import Connection


class StateKind(NamedTuple):
    """What is folded over the streams whose names begin with the prefix."""

    job: JobName
    prefix: str
    current: Callable[[Connection], Definitions[Any]]


def kinds_of(branches: Iterable[StateKind], stream: str) -> list[StateKind]:
    """The branches of a stream: what is folded over it, by job."""
    return [branch for branch in branches if stream.startswith(branch.prefix)]
