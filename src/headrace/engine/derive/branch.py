"""Branches: which streams are folded into which states, and by which job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headrace.reduce.states.definition import Definitions
from headrace.reduce.work_units import Job
from headrace.storage.database import Connection


class Branch(NamedTuple):
    """What is folded over the streams whose names begin with the prefix."""

    job: Job
    prefix: str
    current: Callable[[Connection], Definitions[Any]]


def branches_of(branches: Iterable[Branch], stream: str) -> list[Branch]:
    """The branches of a stream: what is folded over it, by job."""
    return [branch for branch in branches if stream.startswith(branch.prefix)]
