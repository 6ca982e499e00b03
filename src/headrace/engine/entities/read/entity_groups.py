"""Which observations an entity is made of: its own, those of entities merged into it, and those moved from or to it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.engine.entities.read.observed import Observations, Observed
from headrace.errors import EntityNotFound
from headrace.storage.database import Connection
from headrace.storage.entities import Aliases, Entities, EntityRow, SplitRow
from headrace.storage.erasures import Erasures

_EVER = 1 << 62


class EntityGroup(NamedTuple):
    """An entity that is told of by itself, the ids whose observations it has, and observations that were moved."""

    row: EntityRow
    members: tuple[str, ...]
    moved: tuple[SplitRow, ...] = ()
    #: Members whose observations before a number are being erased, and do not count.
    since: tuple[tuple[str, int], ...] = ()

    def observations(
        self, observations: Observations, start: int = 0, stop: int | None = None, *, newest_first: bool = False
    ) -> Iterator[Observed]:
        """Its observations in a range, in the order of the stream or the newest first."""
        away = {(row.entity_id, row.observation_id) for row in self.moved if row.into_id not in self.members}
        here = {(row.entity_id, row.observation_id): row.into_id for row in self.moved if row.into_id in self.members}
        since = dict(self.since)
        others = sorted({entity for entity, _ in here}.difference(self.members))
        read = observations.newest_of if newest_first else observations.of
        parts = [read(id, start, stop) for id in (*self.members, *others)]
        merged = parts[0] if len(parts) == 1 else heapq.merge(*parts, key=_seq, reverse=newest_first)
        for observed in merged:
            mark = observed.observation.entity_id, observed.observation.id
            if since and observed.seq < since.get(here.get(mark, mark[0]), 0):
                continue
            if mark in here or (mark[0] in self.members and mark not in away):
                yield observed


class EntityGroups:
    """Finds groups through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._entities, self._aliases, self._erasures = Entities(connection), Aliases(connection), Erasures(connection)

    def has(self, entity_id: str, user_id: str) -> bool:
        """Whether a user has an entity of this id."""
        row = self._entities.find(entity_id)
        return row is not None and row.user_id == user_id

    def row(self, entity_id: str, user_id: str) -> EntityRow:
        """An entity of a user; those of others are not there."""
        row = self._entities.find(entity_id)
        if row is None or row.user_id != user_id:
            raise EntityNotFound("there is no such entity", entity_id=entity_id)
        return row

    def of(self, row: EntityRow, until_us: int = _EVER) -> EntityGroup:
        """What an entity is told of with, by what was merged and moved until a moment."""
        relations = self._aliases.relations(row.entity_id)
        if not any(relations):
            return EntityGroup(row, (row.entity_id,))
        if relations.is_merged:
            root = self._aliases.root(row.entity_id, until_us)
            row = row if root == row.entity_id else self.row(root, row.user_id)
        members = tuple(self._aliases.below(row.entity_id, until_us))
        return EntityGroup(row, members, self._moved(members, until_us), self._since(members))

    def _since(self, members: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple((member, since) for member in members if (since := self._erasures.since(member)))

    def _moved(self, members: Iterable[str], until_us: int) -> tuple[SplitRow, ...]:
        return tuple(sorted(move for move in self._aliases.moved(members) if move.at_us <= until_us))


def _seq(observed: Observed) -> int:
    return observed.seq
