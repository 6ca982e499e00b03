"""What an erasure is about: how its observations are told from others, wherever they lie."""

from __future__ import annotations

from functools import cached_property

import msgspec

from headrace import decoding
from headrace.schema.entity.observation import Observation

#: An observation by the entity that it was stored for, and its id.
Mark = tuple[str, str]


class Targets(msgspec.Struct, frozen=True, dict=True):
    """Entities, the observations of others that were moved to them, and theirs that were moved to others."""

    entity_type: str
    ids: tuple[str, ...]
    here: tuple[Mark, ...] = ()
    away: tuple[Mark, ...] = ()
    #: Observations from it on are of entities that came later.
    before_seq: int = 0

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The routing keys that observations may have that go."""
        return tuple(sorted({*self.ids, *(entity for entity, _ in self.here)}))

    def dump(self) -> str:
        """The targets as they are stored."""
        return msgspec.json.encode(self).decode()

    def take(self, seq: int, one: Observation) -> bool:
        """Whether an observation goes. What only says where those of others belong stays."""
        if seq >= self.before_seq or one.kind == "erased":
            return False
        if one.kind == "split" or one.details.get("undoes") == "split":
            return one.details["into"] in self._ids
        mark = one.entity_id, one.id
        return mark in self._here or (one.entity_id in self._ids and mark not in self._away)

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(self.ids)

    @cached_property
    def _here(self) -> frozenset[Mark]:
        return frozenset(self.here)

    @cached_property
    def _away(self) -> frozenset[Mark]:
        return frozenset(self.away)


def load(document: str) -> Targets:
    """Read back what was stored."""
    return decoding.decode(document, Targets)
