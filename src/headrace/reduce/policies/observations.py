"""Observations as they are folded: stored bodies are what was said, whatever the schema is now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from headrace import decoding
from headrace.reduce.states.definition import Folded, Told
from headrace.schema.entity.observation import Observation


class _Folded(msgspec.Struct, gc=False):
    """The members of an observation that are folded; the others are not even read, which takes a third of the time."""

    id: str
    kind: str
    entity_id: str
    user_id: str
    schema_version: str
    source_id: str | None
    observed_at_us: int
    source_priority: int
    observation_source: str
    specificity_score: float | None = None
    fields: dict[str, Any] = {}
    run_id: str | None = None


OBSERVATIONS = cast("msgspec.json.Decoder[list[Observation]]", decoding.make_decoder(list[_Folded]))


class Shapes:
    """Turns stored bodies into observations."""

    def folded(self, told: Told) -> Iterator[Folded]:
        """The observations of a body, with the time they were appended in milliseconds."""
        for at, observation in enumerate(OBSERVATIONS.decode(b"[" + told.body + b"]")):
            yield told.first_seq + at, told.times_us[at] // 1000, observation


SHAPES = Shapes()
