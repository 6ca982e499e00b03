"""Which configurations fold alike: their states are one life, and a change between them rebuilds nothing."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

import msgspec

from headrace.schema.entity.nodes import SOURCE_KINDS, Policy, ReducerConfig

#: Raised when the same observations give other states than before.
VERSION = 1

#: The strategies in which the kind of a source and the tie breaker count.
RANKED = ("highest_priority", "most_specific")


def life_of(config: ReducerConfig, user: str | None = None, undone: Collection[str] = ()) -> str:
    """The name of the states that a configuration makes, of all entities or of those of one user.

    Of migrations that were ``undone`` they hold nothing. Fields with the default policy are not in it, nor is what
    decides nothing: so adding fields keeps the life.
    """
    policies = sorted((name, *_told(policy)) for name, policy in config.merge_policies.items() if _told(policy))
    ranked = any(policy.strategy in RANKED for policy in config.merge_policies.values())
    kinds = config.observation_source_priority or SOURCE_KINDS
    said = [VERSION, user, policies, kinds if ranked else None, *([sorted(undone)] if undone else [])]
    return sha256(msgspec.json.encode(said)).hexdigest()[:16]


def _told(policy: Policy) -> tuple[str, ...]:
    """What a policy says beyond the default."""
    if policy.strategy == "last_write":
        return ()
    return (policy.strategy, policy.tie_breaker) if policy.strategy in RANKED else (policy.strategy,)
