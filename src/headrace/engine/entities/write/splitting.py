"""Splits as they are asked for: which observations of an entity go, and to which entity."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from headrace.engine.entities.read.observed import Observed
from headrace.engine.entities.read.snapshots import View
from headrace.engine.entities.write.relating import Moved
from headrace.errors import BadRequest
from headrace.schema.entity.identity import entity_id, name_part
from headrace.storage.entities import EntityRow

_ASIDE = ("merge", "split", "undo")


class Predicate(NamedTuple):
    """What is asked of the observations that go; all of it has to hold, and what is not said holds."""

    observation_ids: Collection[str] | None = None
    source_id: str | None = None
    #: Fields that they have, with these values.
    fields: Mapping[str, Any] = {}
    observed_from_us: int | None = None
    observed_until_us: int | None = None

    def holds(self, observed: Observed) -> bool:
        """Whether an observation goes."""
        one, ids = observed.observation, self.observation_ids
        return (
            one.kind not in _ASIDE
            and (ids is None or one.id in ids)
            and (self.source_id is None or one.source_id == self.source_id)
            and all(name in one.fields and one.fields[name] == value for name, value in self.fields.items())
            and (self.observed_from_us is None or one.observed_at_us >= self.observed_from_us)
            and (self.observed_until_us is None or one.observed_at_us < self.observed_until_us)
        )


def moved(view: View, predicate: Predicate, found: Collection[Observed]) -> list[Moved]:
    """The observations that go, with the entities that they were stored for and are about now."""
    chosen = [one.observation for one in found if predicate.holds(one)]
    ids = predicate.observation_ids
    if ids is not None and (unknown := set(ids) - {one.id for one in chosen}):
        raise BadRequest("the entity has no such observation", field="observation_ids", unknown=sorted(unknown))
    if not chosen:
        raise BadRequest("no observation of the entity is meant", field="predicate")
    places = {(row.entity_id, row.observation_id): row.into_id for row in view.group.moved}
    return [Moved(one.id, one.entity_id, places.get((one.entity_id, one.id), one.entity_id)) for one in chosen]


def target(view: View, name: str) -> EntityRow:
    """The entity of a name, as it will be if there is none yet; what is observed under the name later is about it."""
    row, spelled = view.group.row, name_part(name)
    if spelled is None:
        raise BadRequest("the name is empty", field="to_canonical_name")
    prefix = view.entity_type + ":"
    canonical = spelled if spelled.startswith(prefix) else prefix + spelled
    return EntityRow(entity_id(row.user_id, canonical), row.stream, row.user_id, canonical, 0, 0)
