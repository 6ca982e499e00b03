"""Entities for tests: an engine that types are registered with, observations stored in and snapshots asked of."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.engine.entities.read.entity_list import EntityFilter
from headrace.engine.entities.read.snapshots import EntityAnswer, EntityQuery
from headrace.engine.entities.types.entity_types import Outcome
from headrace.engine.entities.write.store_observations import StoreObservations
from headrace.reduce.policies.build import fold_observations
from headrace.reduce.policies.reducer import TypeReducer
from headrace.reduce.work_units import JobName
from headrace.schema.entity import registration, request
from headrace.schema.entity.nodes import ReducerConfig
from headrace.schema.entity.observation import Observation, decode
from headrace.schema.entity.registration import ChangeRequest, TypeRegistration
from headrace.storage.entity_types import EVERYBODY
from support.feature_rig import SECOND_US, Pipelines

USER = "local"
FIELDS = {"email": "string", "name": "string", "phone": "string", "tags": "array", "score": "number"}
POLICIES = {
    "name": {"strategy": "highest_priority"},
    "phone": {"strategy": "most_specific"},
    "tags": {"strategy": "merge_array"},
}


def contact(version: str = "1.0.0", policies: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A type that is identified by its email."""
    fields = {name: {"type": type_} for name, type_ in {**FIELDS, **more.pop("fields", {})}.items()}
    definition = {"fields": fields, "canonical_name_fields": ["email"], **more.pop("definition", {})}
    return {
        "entity_type": "contact",
        "schema_version": version,
        "schema_definition": definition,
        "reducer_config": {"merge_policies": POLICIES if policies is None else policies},
        "activate": True,
        **more,
    }


class Entities(Pipelines):
    """An engine with entities; a worker comes when it is called, unless the server helps itself."""

    jobs: tuple[JobName, ...] = ("snapshots",)

    def register_type(self, payload: dict[str, Any], owner: str = EVERYBODY) -> Outcome:
        """Register a version, for everybody or for a user, and activate it."""
        found = registration.read_registration({**payload, "scope": "user" if owner else "global"})
        assert isinstance(found, TypeRegistration), found
        outcome = self.run(self.engine.types.register(found, owner, "tests"))
        assert not outcome.plan.refusals, outcome.plan.refusals
        return outcome

    def update_type(self, entity_type: str = "contact", owner: str = EVERYBODY, **wishes: Any) -> Outcome:
        """Change a type, for everybody or for a user."""
        found = registration.read_change_request({"scope": "user" if owner else "global", **wishes})
        assert isinstance(found, ChangeRequest), found
        return self.run(self.engine.types.update(entity_type, found, owner, "tests"))

    def activate_type(self, version: str, entity_type: str = "contact", owner: str = EVERYBODY) -> Outcome:
        """Let a version hold."""
        return self.run(self.engine.types.activate(entity_type, version, owner, "tests"))

    def store(self, *entities: dict[str, Any], user: str = USER, after_s: float = 1.0, **terms: Any) -> list[Any]:
        """Store entities in one request, some time after the last; answers what became of each."""
        self.clock.us += round(after_s * SECOND_US)
        asked = request.read_store_request(msgspec.json.encode({"entities": list(entities), **terms}), user)
        answer: list[Any] = msgspec.json.decode(self.run(self._store(asked)).body)["entities"]
        return answer

    async def _store(self, asked: request.StoreRequest) -> StoreObservations:
        stores = self.engine.entity_store
        await stores.ensure_schemas(asked, stores.resolve_types(asked))
        found = stores.resolve_types(asked)
        return await stores.store(stores.make_write(asked, found), lambda: stores.resolve_types(asked).resolved)

    def said(self, email: str, user: str = USER, after_s: float = 1.0, **fields: Any) -> str:
        """Store one contact; answers its id. ``_meta`` members may be given as ``meta``."""
        meta = {"_meta": fields.pop("meta")} if "meta" in fields else {}
        entity = {"entity_type": "contact", "email": email, **fields, **meta}
        return str(self.store(entity, user=user, after_s=after_s)[0]["entity_id"])

    def shown(self, entity_id: str, user: str = USER, **terms: Any) -> EntityAnswer:
        """What is answered for an entity."""
        return self.run(self.engine.snapshots.find(EntityQuery(entity_id, user, **terms)))

    def snapshot(self, entity_id: str, user: str = USER, **terms: Any) -> dict[str, Any]:
        """The fields of an entity."""
        found = self.shown(entity_id, user, **terms).snapshot
        assert found is not None
        return found.snapshot

    def ready(self, entity_type: str = "contact") -> None:
        """Let states and the tail of a type be at hand."""

        async def wait() -> None:
            serving = self.engine.snapshots.state_reader
            await serving.ready(entity_type)
            for task in list(serving._building.values()):
                await task

        self.run(wait())

    def rows(self, entity_type: str = "contact") -> dict[str, bytes]:
        """Everything that is told of every entity, as bytes."""
        found = self.run(self._every(entity_type))
        return {one.view.group.row.entity_id: msgspec.json.encode(one.snapshot) for one in found}

    async def _every(self, entity_type: str) -> list[EntityAnswer]:
        stream = self.find(f"entities/{entity_type}").id
        return [
            entity
            for user in self.users(entity_type)
            for entity in await self.list_entities(EntityFilter(user, stream))
        ]

    async def list_entities(self, wanted: EntityFilter) -> list[EntityAnswer]:
        """The entities that match a filter."""
        return [entity async for page in self.engine.entity_list.pages(wanted) for entity in page]

    def users(self, entity_type: str = "contact") -> list[str]:
        """Whose entities a type has."""
        sql = "SELECT DISTINCT user_id FROM entities WHERE stream = ?"
        found = self.engine._reader.execute(sql, (self.find(f"entities/{entity_type}").id,))
        return sorted(str(row[0]) for row in found)

    def oracle(self, entity_type: str = "contact") -> dict[str, bytes]:
        """The same, folded from all observations in one pass by the policies that hold."""
        kind = self.engine.types.find(entity_type)
        assert kind is not None
        rows: dict[str, list[Observation]] = {}
        for body in self.read(f"entities/{entity_type}"):
            observation = decode(body)
            rows.setdefault(observation.entity_id, []).append(observation)
        found: dict[str, bytes] = {}
        for entity_id, observations in rows.items():
            user = observations[0].user_id
            effective = kind.effective(user)
            schema = None if effective is None else effective.schema
            reducer = TypeReducer({"": ReducerConfig({}) if schema is None else schema.reducer_config})
            told = [(seq, 0, one) for seq, one in enumerate(observations)]
            snapshot = reducer.finish(fold_observations(reducer, told).get(entity_id.encode()), schema=schema)
            if snapshot is not None:
                found[entity_id] = msgspec.json.encode(snapshot)
        return found

    def seal_type(self, entity_type: str = "contact") -> None:
        """Publish the observations of a type."""
        self.publish(f"entities/{entity_type}")

    def states_of(self, entity_type: str = "contact") -> list[Any]:
        """The states of a type that count."""
        stream = self.find(f"entities/{entity_type}")
        return self.engine.snapshots.state_reader._states.listed(stream.id)
