"""An entity type as a reducer: observations become rows of their entities, rows merge, and finish as snapshots.

The order of observations never matters, so ranges merge in any order, and so do the rows of entities that were found
to be one. What is folded twice is counted twice, and changes nothing else; the commit lets nothing in twice.

An entity is deleted if its latest deletion is later than its latest restoration. Whatever else is said of it, with
whatever priority, does not bring it back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from headrace.reduce.policies.fields import Fields, Policies
from headrace.reduce.policies.order import Origin
from headrace.reduce.states.definition import KeyedReducer
from headrace.schema.entity.nodes import SOURCE_KINDS, Policy, ReducerConfig, Schema
from headrace.schema.entity.observation import Observation

#: Raised when the same observations give other states than before.
VERSION = 1

#: The strategies in which the kind of a source and the tie breaker count.
RANKED = ("highest_priority", "most_specific")


def life_of(config: ReducerConfig, user: str | None = None, undone: Collection[str] = ()) -> str:
    """The name of the states that a configuration makes, of all entities or of those of one user.

    Of migrations that were ``undone`` they hold nothing. Fields with the default policy are not in it, nor is what
    decides nothing: so adding fields keeps the life.
    """
    policies = sorted(
        (name, *_strategy_key(policy)) for name, policy in config.merge_policies.items() if _strategy_key(policy)
    )
    ranked = any(policy.strategy in RANKED for policy in config.merge_policies.values())
    kinds = config.observation_source_priority or SOURCE_KINDS
    identity = [VERSION, user, policies, kinds if ranked else None, *([sorted(undone)] if undone else [])]
    return sha256(msgspec.json.encode(identity)).hexdigest()[:16]


def _strategy_key(policy: Policy) -> tuple[str, ...]:
    """What a policy says beyond the default."""
    if policy.strategy == "last_write":
        return ()
    return (policy.strategy, policy.tie_breaker) if policy.strategy in RANKED else (policy.strategy,)


#: The life that holds every entity.
EVERYONE = ""

#: The time (negative), the id and the schema version of an observation.
Newest = tuple[int, str, str]
#: The time (negative) of a deletion or restoration, whether it is a deletion, and its id.
Fate = tuple[int, bool, str]

_NOT_FOLDED = ("merge", "split", "undo", "erased")
_FATES = {"deletion": True, "restoration": False}
_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder().decode


class EntityState(msgspec.Struct, gc=False):
    """The state of one entity: the frame of its observations, and its fields in every life that it is folded in."""

    first_seq: int
    first_ms: int
    last_seq: int
    last_ms: int
    count: int
    #: Of the latest observation.
    newest: Newest
    #: Of the last deletion or restoration.
    fate: Fate | None
    lives: dict[str, Fields]

    @property
    def is_deleted(self) -> bool:
        """Whether there is nothing to show."""
        return self.fate is not None and self.fate[1]


def encode_frame(
    first_seq: int, first_ms: int, last_seq: int, last_ms: int, count: int, newest: Newest, fate: Fate | None
) -> bytes:
    """The frame of a state as it is kept."""
    return _ENCODE((first_seq, first_ms, last_seq, last_ms, count, newest, fate))


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


class TypeReducer(KeyedReducer[Observation, EntityState]):
    """The observations of one entity type as a reducer; lives are named "" for everyone, or by the user they are of."""

    order = "any"

    def __init__(self, configs: Mapping[str, ReducerConfig], undone: Collection[str] = ()) -> None:
        """Observations of migrations that were ``undone`` do not count."""
        self.lives = {name: Policies(config) for name, config in configs.items()}
        #: What the states of each life are called.
        self.ids = {name: life_of(config, name or None, undone) for name, config in configs.items()}
        self._everyone = (EVERYONE,) if EVERYONE in configs else ()
        self._names = {id: name for name, id in self.ids.items()}
        self._undone = frozenset(undone)

    def place(self, observation: Observation) -> tuple[bytes, Observation] | None:
        """The key and the row of an observation; None where it changes no entity, or no life folds it."""
        if observation.kind in _NOT_FOLDED or not self.lives_of(observation.user_id):
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
        deletes = _FATES.get(row.kind)
        if deletes is not None:
            state.fate = _later(state.fate, (-row.observed_at_us, deletes, row.id))
        for name in self.lives_of(row.user_id):
            fields = state.lives.setdefault(name, {})
            if deletes is None:
                self.lives[name].fold(fields, at, seq, row)
        return state

    def merge_both(self, left: EntityState, right: EntityState) -> EntityState:
        """The state of two, whichever is given first."""
        fields_by_life = {**left.lives, **right.lives}
        for name in left.lives.keys() & right.lives.keys():
            fields_by_life[name] = self.lives[name].merge_both(left.lives[name], right.lives[name])
        return EntityState(
            *min((left.first_seq, left.first_ms), (right.first_seq, right.first_ms)),
            *max((left.last_seq, left.last_ms), (right.last_seq, right.last_ms)),
            left.count + right.count,
            min(left.newest, right.newest),
            right.fate if left.fate is None else _later(right.fate, left.fate),
            fields_by_life,
        )

    def finish(
        self, state: EntityState | None, now: int = 0, life: str = EVERYONE, schema: Schema | None = None
    ) -> Snapshot | None:
        """The entity as a schema shows it, all of it without one; None where it was never seen or is deleted.

        Nothing here depends on the clock: a snapshot is as old as the latest observation in it.
        """
        if state is None or state.is_deleted:
            return None
        shown_fields = self.lives[life].finish(state.lives[life], now, schema)
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
        """The frame under the empty name, and the fields of every life that the entity is in."""
        seen = state.first_seq, state.first_ms, state.last_seq, state.last_ms
        packed = {"": encode_frame(*seen, state.count, state.newest, state.fate)}
        for name in sorted(state.lives):
            packed[self.ids[name]] = self.lives[name].pack(state.lives[name])
        return packed

    def unpack(self, packed: Mapping[str, bytes]) -> EntityState:
        """The state that was packed; lives that are not of this reducer are passed over."""
        first_seq, first_ms, last_seq, last_ms, count, newest, fate = _DECODE(packed[""])
        names = self._names
        fields_by_life = {
            name: self.lives[name].unpack(part) for id, part in packed.items() if (name := names.get(id)) is not None
        }
        fated = None if fate is None else tuple(fate)
        return EntityState(first_seq, first_ms, last_seq, last_ms, count, tuple(newest), fated, fields_by_life)

    def key(self, entity_id: str) -> bytes:
        """The key of an entity."""
        return entity_id.encode()

    def life(self, user_id: str) -> str:
        """The life from which queries for the entities of a user are answered."""
        return user_id if user_id in self.lives else EVERYONE

    def lives_of(self, user_id: str) -> tuple[str, ...]:
        """The lives that the entities of a user are folded in."""
        return (*self._everyone, user_id) if user_id in self.lives else self._everyone


def _later(held: Fate | None, fate: Fate) -> Fate:
    """The later fate; of two at once a restoration."""
    return fate if held is None else min(held, fate)
