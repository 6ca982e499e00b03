"""What the load driver is told to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """One measurement: what to send, over how many connections, for how long."""

    kind: str
    port: int
    redis: bool = False
    stream: str = "bench"
    connections: int = 1
    batch: int = 1
    warm: float = 0.5
    seconds: float = 2.0
    count: int = 0
    #: The number of the first event.
    first: int = 0
    event: str = "small"
    keys: int = 0
    #: Of features: the pipeline, and what stands before its paths.
    pipeline: str = ""
    prefix: str = ""
