"""Many who change the same types at once: never two active versions, never a lost field, never a half change."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from engine.entities.registering import added, asked, change, schema
from headrace.engine.entities.entity_type import EntityType, schema_of
from headrace.engine.entities.types import journal
from headrace.engine.entities.types.entity_types import EntityTypes, Outcome
from headrace.storage.database import Connection
from headrace.storage.entity_types import EVERYBODY, SchemaRegistry
from headrace.storage.journals import EntityChanges
from support.engine_rig import Rig

CLIENTS = 16
TYPES = ("contact", "task")


def check_tables(connection: Connection) -> None:
    """What the tables must say at any moment."""
    registry = SchemaRegistry(connection)
    rows = registry.every("", 100_000)
    versions = Counter((row.entity_type, row.user_id, row.schema_version) for row in rows)
    actives = Counter((row.entity_type, row.user_id) for row in rows if row.active)
    assert max(versions.values()) == 1
    assert max(actives.values()) == 1
    replayed: dict[tuple[str, str], str] = {}
    made = set()
    for number, one in enumerate(EntityChanges(connection).all(), 1):
        document = journal.load(one)
        assert one.number == number
        if document.made is not None:
            made.add(document.made.id)
        if document.active is not None:
            replayed[one.entity_type, one.user_id] = document.active
    assert made == {row.id for row in rows}
    assert replayed == {(row.entity_type, row.user_id): row.schema_version for row in rows if row.active}


async def _life(types: EntityTypes, client: int) -> list[Outcome]:
    """What one client does: registers, updates what is global and what is their own, activates."""
    done = []
    user = f"user{client % 4}"
    for number, entity_type in enumerate(TYPES):
        payload = schema(f"{client + 1}.0.0", entity_type)
        done.append(await types.register(asked({**payload, "activate": client % 2 == 0}), EVERYBODY, user))
        for owner, field in ((EVERYBODY, f"shared_{client}"), (user, f"own_{client}_{number}")):
            scope = "user" if owner else "global"
            wanted = change(scope=scope, fields_to_add=[added(field, "number")])
            done.append(await types.update(entity_type, wanted, owner, user))
        if client % 3 == 0:
            done.append(await types.activate(entity_type, f"{client + 1}.0.0", EVERYBODY, user))
    return done


def test_sixteen_clients_leave_whole_tables(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        types = rig.engine.types
        for entity_type in TYPES:
            rig.run(types.register(asked(schema("0.1.0", entity_type)), EVERYBODY, "first"))

        async def all_of_them() -> list[list[Outcome]]:
            return await asyncio.gather(*(_life(types, client) for client in range(CLIENTS)))

        outcomes = [outcome for found in rig.run(all_of_them()) for outcome in found]
        assert all(not outcome.plan.refusals for outcome in outcomes)
        connection = rig.engine.connect()
        try:
            check_tables(connection)
            for entity_type in TYPES:
                kind, stored = types.find(entity_type), EntityType.load(connection, entity_type)
                assert kind is not None
                assert kind.number == stored.number
                assert kind.rows == stored.rows
        finally:
            connection.close()
        rig.reopen()
        for entity_type in TYPES:
            kind = rig.engine.types.find(entity_type)
            assert kind is not None and kind.rows == stored_rows(rig, entity_type)


def stored_rows(rig: Rig, entity_type: str) -> dict[str, object]:
    connection = rig.engine.connect()
    try:
        return {row.user_id: row for row in SchemaRegistry(connection).active(entity_type)}
    finally:
        connection.close()


def test_no_field_is_lost_where_all_add_one(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        types = rig.engine.types
        rig.run(types.register(asked(schema()), EVERYBODY, "first"))

        async def all_of_them() -> list[Outcome]:
            globally = [change(fields_to_add=[added(f"field_{n}")]) for n in range(CLIENTS)]
            own = [change(scope="user", fields_to_add=[added(f"own_{n}")]) for n in range(CLIENTS)]
            return await asyncio.gather(
                *(types.update("contact", one, EVERYBODY, "w") for one in globally),
                *(types.update("contact", one, "u", "u") for one in own),
            )

        outcomes = rig.run(all_of_them())
        assert len({outcome.number for outcome in outcomes}) == 2 * CLIENTS
        shared = {"name", "email", *(f"field_{n}" for n in range(CLIENTS))}
        for user, wanted in (("v", shared), ("u", shared | {f"own_{n}" for n in range(CLIENTS)})):
            found = types.effective("contact", user)
            assert found is not None and set(found.schema.schema_definition.fields) == wanted
        found = types.effective("contact", "v")
        assert found is not None and found.schema.schema_version == f"1.{CLIENTS}.0"


def test_of_many_who_register_one_version_one_succeeds(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        types = rig.engine.types

        async def all_of_them() -> list[Outcome]:
            payloads = [schema(metadata={"client": n}) for n in range(CLIENTS)]
            return await asyncio.gather(*(types.register(asked(one), EVERYBODY, "w") for one in payloads))

        outcomes = rig.run(all_of_them())
        won = [n for n, outcome in enumerate(outcomes) if outcome.number is not None]
        assert len(won) == 1
        refused = [outcome.plan.refusals[0].code for outcome in outcomes if outcome.number is None]
        assert refused == ["version_taken"] * (CLIENTS - 1)
        (row,) = types.versions("contact", "u")
        assert schema_of(row).metadata == {"client": won[0]}


def test_one_type_is_made_where_many_store_for_the_first_time(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        types = rig.engine.types

        async def all_of_them() -> None:
            await asyncio.gather(*(types.ensure("note", [{"a": n}], f"user{n % 4}") for n in range(CLIENTS)))

        rig.run(all_of_them())
        connection = rig.engine.connect()
        try:
            check_tables(connection)
            assert len(SchemaRegistry(connection).every("", 100)) == 4
        finally:
            connection.close()
