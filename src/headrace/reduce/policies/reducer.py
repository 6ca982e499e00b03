"""An entity type as a reducer: observations become rows of their entities, rows merge, and finish as snapshots.

The order of observations never matters, so ranges merge in any order, and so do the rows of entities that were found
to be one. What is folded twice is counted twice, and changes nothing else; the commit lets nothing in twice.

An entity is deleted if its latest deletion is later than its latest restoration. No other observation, of whatever
priority, restores it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from headrace.reduce.policies.fields import Fields, Policies
from headrace.reduce.policies.order import Origin, uses_priorities
from headrace.reduce.states.definition import KeyedReducer
from headrace.schema.entity.nodes import SOURCE_KINDS, Policy, ReducerConfig, Schema
from headrace.schema.entity.observation import Observation

#: Raised when the same observations give other states than before.
VERSION = 1

#: The strategies in which the kind of a source and the tie breaker count.
RANKED = ("highest_priority", "most_specific")


def policy_hash(config: ReducerConfig, user: str | None = None, undone: Collection[str] = ()) -> str:
    """The id of the version whose states a configuration makes, of all entities or of those of one user.

    Observations of migrations that were ``undone`` are not in the states. Fields with the default policy do not change
    the id, nor do settings without effect: so adding fields keeps the states.
    """
    policies = sorted(
        (name, *_strategy_key(policy)) for name, policy in config.merge_policies.items() if _strategy_key(policy)
    )
    ranked = any(policy.strategy in RANKED for policy in config.merge_policies.values())
    kinds = config.observation_source_priority or SOURCE_KINDS
    identity: list[Any] = [VERSION, user, policies, kinds if ranked else None, *([sorted(undone)] if undone else [])]
    if config.source_priorities and uses_priorities(config):
        identity.append({"source_priorities": sorted(config.source_priorities.items())})
    return sha256(msgspec.json.encode(identity)).hexdigest()[:16]


def _strategy_key(policy: Policy) -> tuple[str, ...]:
    """What a policy sets beyond the default."""
    if policy.strategy == "last_write":
        return ()
    return (policy.strategy, policy.tie_breaker) if policy.strategy in RANKED else (policy.strategy,)


#: The version that holds every entity.
EVERYONE = ""

#: The time (negative), the id and the schema version of an observation.
Newest = tuple[int, str, str]
#: The time (negative) of a deletion or restoration, whether it is a deletion, and its id.
DeletionChange = tuple[int, bool, str]

_NOT_FOLDED = ("merge", "split", "undo", "erased")
_DELETES = {"deletion": True, "restoration": False}
_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder().decode


class EntityState(msgspec.Struct, gc=False):
    """The state of one entity: the frame of its observations, and its fields in every version that folds it."""

    first_seq: int
    first_ms: int
    last_seq: int
    last_ms: int
    count: int
    #: Of the latest observation.
    newest: Newest
    #: Of the last deletion or restoration.
    deletion_change: DeletionChange | None
    fields_by_version: dict[str, Fields]

    @property
    def is_deleted(self) -> bool:
        """Whether there is nothing to show."""
        return self.deletion_change is not None and self.deletion_change[1]


def encode_frame(
    first_seq: int,
    first_ms: int,
    last_seq: int,
    last_ms: int,
    count: int,
    newest: Newest,
    deletion_change: DeletionChange | None,
) -> bytes:
    """The frame of a state as it is kept."""
    return _ENCODE((first_seq, first_ms, last_seq, last_ms, count, newest, deletion_change))


class Snapshot(msgspec.Struct, frozen=True):
    """An entity at a moment; ``origins`` are the observations of each field, from which their sources are found."""

    snapshot: dict[str, Any]
    provenance: dict[str, str]
    origins: dict[str, tuple[Origin, ...]]
    schema_version: str
    computed_at_us: int
    last_observation_at_us: int
    observation_count: int
    #: Fields that had more values than are kept.
    truncated: tuple[str, ...] = ()

    @property
    def sources(self) -> dict[str, list[str]]:
        """The sources of each field, each once, in the order of their values; a correction has none."""
        return {
            name: list(dict.fromkeys(origin.source_id for origin in origins if origin.source_id is not None))
            for name, origins in self.origins.items()
        }

    def has_source(self, source_id: str) -> bool:
        """Whether a value is from a source."""
        return any(origin.source_id == source_id for origins in self.origins.values() for origin in origins)


class TypeReducer(KeyedReducer[Observation, EntityState]):
    """The observations of one entity type as a reducer; a version is named "" or by its user."""

    order = "any"

    def __init__(self, configs: Mapping[str, ReducerConfig], undone: Collection[str] = ()) -> None:
        """Observations of migrations that were ``undone`` do not count."""
        self.policies = {name: Policies(config) for name, config in configs.items()}
        #: The id of each version.
        self.ids = {name: policy_hash(config, name or None, undone) for name, config in configs.items()}
        self._everyone = (EVERYONE,) if EVERYONE in configs else ()
        self._names = {id: name for name, id in self.ids.items()}
        self._undone = frozenset(undone)

    def key_and_row(self, observation: Observation) -> tuple[bytes, Observation] | None:
        """The key and the row of an observation; None where it changes no entity, or no version folds it."""
        if observation.kind in _NOT_FOLDED or not self.versions_for(observation.user_id):
            return None
        if self._undone and observation.run_id in self._undone:
            return None
        return observation.entity_id.encode(), observation

    def fold(self, state: EntityState | None, at: int, seq: int, row: Observation, matched: bool = True) -> EntityState:
        """The state with one more observation, and its time in milliseconds."""
        newest = (-row.observed_at_us, row.id, row.schema_version)
        if state is None:
            state = EntityState(seq, at, seq, at, 1, newest, None, {})
        else:
            state.count += 1
            if seq > state.last_seq:
                state.last_seq, state.last_ms = seq, at
            elif seq < state.first_seq:
                state.first_seq, state.first_ms = seq, at
            state.newest = min(state.newest, newest)
        deletes = _DELETES.get(row.kind)
        if deletes is not None:
            state.deletion_change = _later(state.deletion_change, (-row.observed_at_us, deletes, row.id))
        for name in self.versions_for(row.user_id):
            fields = state.fields_by_version.setdefault(name, {})
            if deletes is None:
                self.policies[name].fold(fields, at, seq, row)
        return state

    def merge_both(self, left: EntityState, right: EntityState) -> EntityState:
        """The state of two, whichever is given first."""
        fields_by_version = {**left.fields_by_version, **right.fields_by_version}
        for name in left.fields_by_version.keys() & right.fields_by_version.keys():
            fields_by_version[name] = self.policies[name].merge_both(
                left.fields_by_version[name], right.fields_by_version[name]
            )
        return EntityState(
            *min((left.first_seq, left.first_ms), (right.first_seq, right.first_ms)),
            *max((left.last_seq, left.last_ms), (right.last_seq, right.last_ms)),
            left.count + right.count,
            min(left.newest, right.newest),
            right.deletion_change
            if left.deletion_change is None
            else _later(right.deletion_change, left.deletion_change),
            fields_by_version,
        )

    def finish(
        self, state: EntityState | None, now: int = 0, version_name: str = EVERYONE, schema: Schema | None = None
    ) -> Snapshot | None:
        """The entity as a schema shows it, all of it without one; None where it was never seen or is deleted.

        Nothing here depends on the clock: a snapshot is as old as the latest observation in it.
        """
        if state is None or state.is_deleted:
            return None
        shown_fields = self.policies[version_name].finish(state.fields_by_version[version_name], now, schema)
        observed_at_us = -state.newest[0]
        return Snapshot(
            {name: shown.value for name, shown in shown_fields.items()},
            {name: ",".join(origin.id for origin in shown.origins) for name, shown in shown_fields.items()},
            {name: shown.origins for name, shown in shown_fields.items()},
            state.newest[2] if schema is None else schema.schema_version,
            observed_at_us,
            observed_at_us,
            state.count,
            tuple(name for name, shown in shown_fields.items() if shown.truncated),
        )

    def pack(self, state: EntityState) -> dict[str, bytes]:
        """The frame under the empty name, and the fields of every version that the entity is in."""
        seen = state.first_seq, state.first_ms, state.last_seq, state.last_ms
        packed = {"": encode_frame(*seen, state.count, state.newest, state.deletion_change)}
        for name in sorted(state.fields_by_version):
            packed[self.ids[name]] = self.policies[name].pack(state.fields_by_version[name])
        return packed

    def unpack(self, packed: Mapping[str, bytes]) -> EntityState:
        """Restore a packed state; versions that this reducer does not have are ignored."""
        first_seq, first_ms, last_seq, last_ms, count, newest, deletion_change = _DECODE(packed[""])
        names = self._names
        fields_by_version = {
            name: self.policies[name].unpack(part) for id, part in packed.items() if (name := names.get(id)) is not None
        }
        change = None if deletion_change is None else tuple(deletion_change)
        return EntityState(first_seq, first_ms, last_seq, last_ms, count, tuple(newest), change, fields_by_version)

    def key(self, entity_id: str) -> bytes:
        """The key of an entity."""
        return entity_id.encode()

    def version_for(self, user_id: str) -> str:
        """The version from which queries for the entities of a user are answered."""
        return user_id if user_id in self.policies else EVERYONE

    def versions_for(self, user_id: str) -> tuple[str, ...]:
        """The versions that fold the entities of a user."""
        return (*self._everyone, user_id) if user_id in self.policies else self._everyone


def _later(held: DeletionChange | None, deletion_change: DeletionChange) -> DeletionChange:
    """The later change; of two at once a restoration."""
    return deletion_change if held is None else min(held, deletion_change)
