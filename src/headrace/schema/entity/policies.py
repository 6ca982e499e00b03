"""The merge policies of a schema, read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, get_args

from headrace.schema.entity.nodes import SOURCE_KINDS, Policy, ReducerConfig, Strategy, TieBreaker
from headrace.schema.entity.problem import DANGLING, INVALID, Place
from headrace.schema.entity.shape import distinct, members

UNKNOWN_STRATEGY = "unknown_strategy"
UNKNOWN_TIE_BREAKER = "unknown_tie_breaker"
UNKNOWN_SOURCE_KIND = "unknown_source_kind"

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
TIE_BREAKERS: tuple[TieBreaker, ...] = get_args(TieBreaker)


def read_config(given: Any, names: Collection[str] | None, place: Place) -> ReducerConfig | None:
    """The configuration for fields of these names, if they are known, or None where problems were noted."""
    before = len(place.problems)
    readers = {"merge_policies": _policies, "observation_source_priority": _kinds}
    found = members(given, readers, place, required=("merge_policies",))
    for name in found.get("merge_policies", ()):
        if names is not None and name not in names:
            place.at("merge_policies").at(name).refuse(DANGLING, f"there is no field {name!r}")
    return ReducerConfig(**found) if len(place.problems) == before else None


def read_strategy(given: Any, place: Place) -> Any:
    """One of the strategies."""
    if given not in STRATEGIES:
        place.refuse(UNKNOWN_STRATEGY, f"{given!r} is no strategy; there are {', '.join(STRATEGIES)}")
    return given


def read_tie_breaker(given: Any, place: Place) -> Any:
    """One of the tie breakers."""
    if given not in TIE_BREAKERS:
        place.refuse(UNKNOWN_TIE_BREAKER, f"{given!r} is no tie breaker; there are {', '.join(TIE_BREAKERS)}")
    return given


def _policies(given: Any, place: Place) -> dict[str, Policy]:
    if not isinstance(given, dict):
        place.refuse(INVALID, "merge_policies is an object from fields to policies")
        return {}
    found = {}
    for name, policy in given.items():
        read = members(
            policy, {"strategy": read_strategy, "tie_breaker": read_tie_breaker}, place.at(name), ("strategy",)
        )
        found[name] = Policy(read.get("strategy", "last_write"), read.get("tie_breaker", "observed_at"))
    return found


def _kinds(given: Any, place: Place) -> tuple[str, ...]:
    found = distinct(given, place)
    for number, kind in enumerate(found):
        if kind and kind not in SOURCE_KINDS:
            message = f"{kind!r} is no kind of source; there are {', '.join(SOURCE_KINDS)}"
            place.at(number).refuse(UNKNOWN_SOURCE_KIND, message)
    return found
