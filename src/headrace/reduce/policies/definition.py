"""Entity types as definitions of states: a version for the common policies, and one for each user with others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property, lru_cache

import msgspec

from headrace import decoding
from headrace.reduce.policies.reducer import TypeReducer, policy_hash
from headrace.schema.descriptor.nodes import FeatureVersion
from headrace.schema.entity.nodes import ReducerConfig

_KEPT = 256


class TypeDefinition(msgspec.Struct, frozen=True, dict=True):
    """An entity type and the policies of its versions; equal definitions fold alike."""

    entity_type: str
    #: The stream of its observations.
    stream: str
    configs: dict[str, ReducerConfig]
    #: Migrations whose observations do not count.
    undone: tuple[str, ...] = ()

    @classmethod
    def load(cls, document: object) -> TypeDefinition:
        """Read back what was dumped."""
        return decoding.convert(document, cls)

    def dump(self) -> object:
        """The definition as a document."""
        return msgspec.to_builtins(self)

    @property
    def name(self) -> str:
        """The name of the entity type."""
        return self.entity_type

    @property
    def source(self) -> str:
        """The entity type."""
        return self.entity_type

    @property
    def delays_retention(self) -> bool:
        """Observations are retained for ever."""
        return True

    @property
    def start_seq(self) -> int:
        """Always the first: every version folds all observations."""
        return 0

    @cached_property
    def lives(self) -> Mapping[str, FeatureVersion]:
        """The versions by name: "" for everyone, otherwise the user whose policies it has."""
        return {
            name: FeatureVersion(policy_hash(config, name or None, self.undone), 0)
            for name, config in self.configs.items()
        }

    @cached_property
    def reducer(self) -> TypeReducer:
        """What folds it; equal ones share it."""
        return _reducer(msgspec.json.encode(self.configs), self.undone)

    def with_versions(self, versions: Mapping[str, FeatureVersion]) -> TypeDefinition:
        """The same: no version of it is ever replaced by one that answers in its place."""
        return self

    def restricted(self, names: Collection[str]) -> TypeDefinition:
        """The definition with only the versions of these names."""
        configs = {name: config for name, config in self.configs.items() if name in names}
        return msgspec.structs.replace(self, configs=configs)


@lru_cache(maxsize=_KEPT)
def _reducer(encoded: bytes, undone: tuple[str, ...]) -> TypeReducer:
    return TypeReducer(decoding.decode(encoded, dict[str, ReducerConfig]), undone)
