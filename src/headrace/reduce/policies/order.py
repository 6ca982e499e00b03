"""Which of two observations a field is taken from: one key for each, and the smaller key wins.

A correction wins over everything that is none, whatever the strategy, and a later correction over an earlier one.
Among the others, each strategy has its order, which always ends in the id:

====================================  ====================================================================
last_write                            later, id
highest_priority                      priority, kind of source, later, id
highest_priority by source_priority   priority, kind of source, id
most_specific                         specificity, kind of source, later, id
most_specific by source_priority      specificity, priority, kind of source, later, id
====================================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.schema.entity.nodes import SOURCE_KINDS, Policy, ReducerConfig
from headrace.schema.entity.observation import Observation

#: What observations are compared by.
Key = tuple[Any, ...]

_ENCODE = msgspec.json.Encoder().encode


NO_PRIORITIES: Mapping[str, int] = {}


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a state keeps of an observation that it has values of."""

    observed_at_us: int
    id: str
    source_id: str | None
    #: That of the source by the configuration of the state, else that of the observation.
    source_priority: int
    observation_source: str
    specificity_score: float | None
    correction: bool


def origin_of(observation: Observation, priorities: Mapping[str, int] = NO_PRIORITIES) -> Origin:
    """An observation without its values; ``priorities`` are those of sources."""
    source_id, priority = observation.source_id, observation.source_priority
    if priorities and source_id is not None:
        priority = priorities.get(source_id, priority)
    return Origin(
        observation.observed_at_us,
        observation.id,
        source_id,
        priority,
        observation.observation_source,
        observation.specificity_score,
        observation.kind == "correction",
    )


def last_write_key(origin: Origin) -> Key:
    """The key of last_write, and of corrections whatever the strategy."""
    return (not origin.correction, -origin.observed_at_us, origin.id)


def ranks(config: ReducerConfig) -> dict[str, int]:
    """The rank of each kind of source; the least wins, and kinds without one come last."""
    return {kind: rank for rank, kind in enumerate(config.observation_source_priority or SOURCE_KINDS)}


def uses_priorities(config: ReducerConfig) -> bool:
    """Whether priorities of sources decide about a field, by any of its policies."""
    return any(policy.strategy != "last_write" for policy in config.merge_policies.values())


def policy_key(policy: Policy, ranks: Mapping[str, int]) -> Callable[[Origin], Key]:
    """The key that a policy gives an observation that is no correction."""
    by_priority, last = policy.tie_breaker == "source_priority", len(ranks)

    def by_rank(origin: Origin) -> Key:
        rank = ranks.get(origin.observation_source, last)
        if by_priority:
            return (True, -origin.source_priority, rank, origin.id, -origin.observed_at_us)
        return (True, -origin.source_priority, rank, -origin.observed_at_us, origin.id)

    def by_specificity(origin: Origin) -> Key:
        specificity, rank = -(origin.specificity_score or 0.0), ranks.get(origin.observation_source, last)
        priority = -origin.source_priority if by_priority else 0
        return (True, specificity, priority, rank, -origin.observed_at_us, origin.id)

    return {"highest_priority": by_rank, "most_specific": by_specificity}.get(policy.strategy, last_write_key)


def comes_first(origin: Origin, value: Any, other: Origin, than: Any) -> bool:
    """Whether the first of two values that are equal in every order wins, whichever is given first."""
    return _ENCODE((origin, value)) < _ENCODE((other, than))
