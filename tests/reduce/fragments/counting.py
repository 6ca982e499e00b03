"""The statistics of fragments by the book: one pass over all observations, by user and key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.reduce.fragments.stats import STATS, Stats
from headrace.schema.entity.observation import Observation

#: The user and the key of fragments.
FragmentId = tuple[str, str]


def count_observations(observations: Iterable[tuple[int, int, Observation]]) -> dict[FragmentId, Stats]:
    """The fragments of observations, which come with their sequence numbers and the times they were appended, µs."""
    by_fragment: dict[FragmentId, Stats] = {}
    for seq, at_us, observation in observations:
        for fragment in observation.fragments:
            of = (observation.user_id, fragment.key)
            by_fragment[of] = STATS.fold(by_fragment.get(of), at_us, seq, (observation, fragment))
    return by_fragment


def merge_counts(tallies: Iterable[Mapping[FragmentId, Stats]]) -> dict[FragmentId, Stats]:
    """The merged statistics of several counts."""
    merged: dict[FragmentId, Stats] = {}
    for tally in tallies:
        for of, stats in tally.items():
            merged[of] = STATS.merge_both(merged[of], stats) if of in merged else stats
    return merged


def of_user(tally: Mapping[FragmentId, Stats], user_id: str) -> dict[str, Stats]:
    """The keys of one user."""
    return {key: stats for (user, key), stats in tally.items() if user == user_id}


def of_everyone(tally: Mapping[FragmentId, Stats]) -> dict[str, Stats]:
    """The keys of all users together."""
    by_key: dict[str, Stats] = {}
    for (_, key), stats in tally.items():
        by_key[key] = STATS.merge_both(by_key[key], stats) if key in by_key else stats
    return by_key
