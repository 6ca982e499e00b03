"""The fragments of an entity type as a reducer: what is known of every key, by user.

The order of observations never matters. Of very many keys of one user some are left out, always the same ones; those
that are kept lack nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from headrace.reduce.fragments.stats import STATS, Stats
from headrace.reduce.states.definition import KeyedReducer
from headrace.schema.entity.observation import Observation

#: Keys of one user that are kept.
MAX_KEYS = 1_000
#: What states of fragments are called; another one whenever the same fragments give other states.
VERSION_ID = "fragments-1"
_PACK = msgspec.msgpack.Encoder().encode
_UNPACK = msgspec.msgpack.Decoder(tuple[bool, dict[str, bytes]]).decode


class UserFragments(msgspec.Struct):
    """What is known of the fragments of one user, by key, and whether there were more keys than are kept."""

    stats: dict[str, Stats] = msgspec.field(default_factory=dict)
    truncated: bool = False


class FragmentReducer(KeyedReducer[Observation, UserFragments]):
    """Observations become rows of their users; times are in microseconds."""

    order = "any"

    def key_and_row(self, observation: Observation) -> tuple[bytes, Observation] | None:
        """The key and the row of an observation; None where everything in it has its place."""
        return (observation.user_id.encode(), observation) if observation.fragments else None

    def fold(
        self, state: UserFragments | None, at: int, seq: int, row: Observation, matched: bool = True
    ) -> UserFragments:
        """The state with one more observation."""
        user_fragments = UserFragments() if state is None else state
        stats = user_fragments.stats
        for fragment in row.fragments:
            stats[fragment.key] = STATS.fold(stats.get(fragment.key), at, seq, (row, fragment))
        if len(user_fragments.stats) > 2 * MAX_KEYS:
            _shorten(user_fragments)
        return user_fragments

    def merge_both(self, left: UserFragments, right: UserFragments) -> UserFragments:
        """The fragments of both."""
        stats = dict(left.stats)
        for key, held in right.stats.items():
            stats[key] = STATS.merge_both(stats[key], held) if key in stats else held
        user_fragments = UserFragments(stats, left.truncated or right.truncated)
        _shorten(user_fragments)
        return user_fragments

    def finish(self, state: UserFragments | None, now: int = 0) -> UserFragments:
        """The fragments as they are."""
        return UserFragments() if state is None else state

    def pack(self, state: UserFragments) -> dict[str, bytes]:
        """The row as bytes, the same for the same fragments."""
        _shorten(state)
        packed = {key: STATS.pack(state.stats[key]) for key in sorted(state.stats)}
        return {"": b"", VERSION_ID: _PACK((state.truncated, packed))}

    def unpack(self, packed: Mapping[str, bytes]) -> UserFragments:
        """The row that was packed."""
        if VERSION_ID not in packed:
            return UserFragments()
        truncated, packed_stats = _UNPACK(packed[VERSION_ID])
        return UserFragments({key: STATS.unpack(part) for key, part in packed_stats.items()}, truncated)


def _shorten(user_fragments: UserFragments) -> None:
    """Leave keys out that are too many: those with the greatest hashes, whatever came first."""
    if len(user_fragments.stats) > MAX_KEYS:
        kept = sorted(user_fragments.stats, key=_hash)[:MAX_KEYS]
        user_fragments.stats, user_fragments.truncated = {key: user_fragments.stats[key] for key in kept}, True


def _hash(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=8).digest()
