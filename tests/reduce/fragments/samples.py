"""Fragments that several tests start from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.reduce.fragments.stats import Stats
from headrace.schema.entity.accept import Fragment
from headrace.schema.entity.observation import Observation
from reduce.fragments.counting import count_observations, of_everyone
from reduce.policies.samples import FIRST_US, observed

Told = tuple[int, int, Observation]


def told(values: Iterable[Any], key: str = "extra", sources: int = 2, **members: Any) -> list[Told]:
    """Observations with one fragment each, from so many sources in turn."""
    return [
        (
            seq,
            FIRST_US + seq,
            observed(
                f"o{seq}",
                source_id=f"src_{seq % sources}",
                entity_id=f"ent_{seq}",
                fragments=(Fragment(key, value, "unknown_field"),),
                **members,
            ),
        )
        for seq, value in enumerate(values)
    ]


def stats(values: Iterable[Any], key: str = "extra", sources: int = 2, **members: Any) -> dict[str, Stats]:
    """What is known of these values."""
    return of_everyone(count_observations(told(values, key, sources, **members)))
