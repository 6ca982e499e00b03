"""An engine to store entities with: requests go in as JSON, and come out as their answers."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.entities import registering
from headrace.engine.entities.read.source_reader import SourceSummary
from headrace.engine.entities.write.decisions import Decision, DecisionKind, StoreDecision
from headrace.engine.entities.write.store_observations import StoreObservations
from headrace.engine.entities.write.store_request import ObservationWrite
from headrace.engine.log.append import Append
from headrace.schema.entity import request
from support.engine_rig import Rig

Payload = dict[str, Any]

CONTACT: Payload = {
    "fields": {
        "email": {"type": "string", "required": True},
        "name": {"type": "string"},
        "age": {"type": "number", "constraints": {"min": 0, "max": 150}},
        "born": {
            "type": "date",
            "converters": [
                {"from": "number", "to": "date", "function": "timestamp_nanos_to_iso", "deterministic": True}
            ],
        },
        "active": {"type": "boolean"},
        "tags": {"type": "array"},
        "address": {"type": "object"},
    },
    "canonical_name_fields": ["email"],
}


class Store:
    """Registers types, stores entities and looks at what became of them."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.engine = rig.engine

    def register(
        self, definition: Payload, entity_type: str = "contact", version: str = "1.0.0", owner: str = "", **config: Any
    ) -> None:
        """Make a version of a type the active one."""
        payload = {
            "entity_type": entity_type,
            "schema_version": version,
            "schema_definition": definition,
            "reducer_config": {"merge_policies": config},
            "activate": True,
        }
        outcome = registering.register(self.rig, payload, owner)
        assert not outcome.plan.refusals, outcome.plan.refusals

    def asked(self, entities: list[Payload], user: str = "local", **said: Any) -> request.StoreRequest:
        return request.read_store_request(msgspec.json.encode({"entities": entities, **said}), user)

    def wish(self, entities: list[Payload], user: str = "local", **said: Any) -> tuple[ObservationWrite, Any]:
        """What is wished for, and the types it found."""
        asked = self.asked(entities, user, **said)
        found = self.rig.engine.entity_store.resolve_types(asked)
        return self.rig.engine.entity_store.make_write(asked, found), found.resolved

    def observe(self, *entities: Payload, user: str = "local", **said: Any) -> StoreObservations:
        """Store entities, and see what the commit made of them."""
        asked = self.asked(list(entities), user, **said)
        stores = self.rig.engine.entity_store
        if asked.envelope.commit:
            self.rig.run(stores.ensure_schemas(asked, stores.resolve_types(asked)))
        wish, typed = self.wish(list(entities), user, **said)
        return self.rig.run(stores.store(wish, lambda: typed))

    def store(self, *entities: Payload, user: str = "local", **said: Any) -> Payload:
        """Store entities; the answer."""
        answer: Payload = msgspec.json.decode(self.observe(*entities, user=user, **said).body)
        return answer

    def decide(
        self, kind: DecisionKind, entity_id: str, user: str = "local", key: str | None = None, **given: Any
    ) -> Payload:
        """Correct, delete or restore; the answer."""
        stores = self.rig.engine.entity_store
        row, entity_type = stores.find(entity_id, user)
        self.rig.clock.us += 1
        decision = Decision(
            kind=kind,
            entity_id=entity_id,
            entity_type=entity_type,
            canonical_name=row.canonical_name,
            user_id=user,
            at_us=self.rig.clock.us,
            fields=given,
            idempotency_key=key,
        )
        observe = self.rig.run(stores.store(StoreDecision(decision), lambda: stores.require_type(entity_type, user)))
        answer: Payload = msgspec.json.decode(observe.body)
        return answer

    def append(self, entity_type: str, *entries: Any, **terms: Any) -> Append:
        """A plain append to the stream of a type."""
        return self.rig.append(f"entities/{entity_type}", msgspec.json.encode(entries), **terms)

    def observations(self, entity_type: str = "contact", key: str | None = None) -> list[Payload]:
        """The documents that the stream of a type holds."""
        return [msgspec.json.decode(body) for body in self.rig.read(f"entities/{entity_type}", key=key)]

    def source(self, source_id: str, user: str = "local") -> SourceSummary:
        sourcing = self.rig.engine.source_reader
        return sourcing.read(user, source_id, sourcing.find_parts(user, source_id))

    def actions(self, answer: Payload) -> list[str]:
        return [entity["action"] for entity in answer["entities"]]

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """What a query finds in the database."""
        connection = self.rig.engine.connect()
        try:
            return list(connection.execute(sql, values))
        finally:
            connection.close()
