from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec
import pytest

from headrace.storage import database
from headrace.storage.entity_types import EVERYBODY, SchemaRegistry, SchemaRow


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[database.Connection]:
    opened = database.connect(tmp_path / "registry.db", cache_bytes=1 << 20)
    database.migrate(opened)
    yield opened
    opened.close()


def row(name: str, version: str = "1.0.0", user: str = EVERYBODY, entity_type: str = "contact") -> SchemaRow:
    return SchemaRow(
        id=name,
        entity_type=entity_type,
        schema_version=version,
        scope="user" if user else "global",
        user_id=user,
        schema_definition='{"fields":{}}',
        reducer_config='{"merge_policies":{}}',
        metadata='{"label":"People"}',
        base_version=None,
        created_us=1,
    )


@pytest.mark.parametrize("column", [name for name in SchemaRow.__struct_fields__ if name != "active"])
def test_what_a_stored_version_says_cannot_be_changed(connection: database.Connection, column: str) -> None:
    registry = SchemaRegistry(connection)
    registry.insert(row("a"))
    with pytest.raises(apsw.ConstraintError, match="never changed"):
        connection.execute(f"UPDATE schema_registry SET {column} = {column} WHERE id = 'a'")
    assert registry.versions("contact", EVERYBODY) == [row("a")]


@pytest.mark.parametrize(
    "column", ["entity_type", "schema_version", "schema_definition", "reducer_config", "scope", "user_id"]
)
def test_a_version_lacks_nothing(connection: database.Connection, column: str) -> None:
    values = {**msgspec.structs.asdict(row("a")), column: None}
    sql = f"INSERT INTO schema_registry ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"
    with pytest.raises(apsw.ConstraintError, match=column):
        connection.execute(sql, tuple(values.values()))


def test_an_owner_has_a_version_once_and_owners_do_not_disturb_each_other(connection: database.Connection) -> None:
    registry = SchemaRegistry(connection)
    for one in (row("a"), row("b", user="u"), row("c", user="v"), row("d", entity_type="task"), row("e", "1.0.1")):
        registry.insert(one)
    for twice in (row("f"), row("g", user="u")):
        with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
            registry.insert(twice)


def test_the_database_lets_one_version_of_an_owner_be_active(connection: database.Connection) -> None:
    registry = SchemaRegistry(connection)
    for one in (row("a"), row("b", "2.0.0"), row("c", user="u")):
        registry.insert(one)
    connection.execute("UPDATE schema_registry SET active = 1 WHERE id IN ('a', 'c')")
    with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
        connection.execute("UPDATE schema_registry SET active = 1 WHERE id = 'b'")
    registry.activate(row("b", "2.0.0"))
    assert [found.id for found in registry.active("contact")] == ["b", "c"]


@pytest.mark.parametrize(("scope", "user"), [("global", "u"), ("user", ""), ("team", "u")])
def test_only_users_schemas_have_users(connection: database.Connection, scope: str, user: str) -> None:
    with pytest.raises(apsw.ConstraintError, match="CHECK"):
        SchemaRegistry(connection).insert(msgspec.structs.replace(row("a"), scope=scope, user_id=user))


def test_a_users_version_comes_before_the_global_one(connection: database.Connection) -> None:
    registry = SchemaRegistry(connection)
    for one in (row("a"), row("b", user="u"), row("c", entity_type="task", user="u")):
        registry.insert(one)
        registry.activate(one)
    found = {user: registry.effective("contact", user) for user in ("u", "v")}
    assert {user: None if one is None else one.id for user, one in found.items()} == {"u": "b", "v": "a"}
    assert registry.effective("task", "v") is None
    registry.deactivate("contact", "u")
    again = registry.effective("contact", "u")
    assert again is not None and again.id == "a"
    assert [one.id for one in registry.seen_by("u", "", 10)] == ["a", "c"]
    assert [one.id for one in registry.seen_by("v", "", 10)] == ["a"]
    assert [one.id for one in registry.seen_by("u", "contact", 10)] == ["c"]
    assert [one.id for one in registry.seen_by("u", "", 10, "PEOPLE")] == ["a", "c"]
    assert registry.seen_by("u", "", 10, "nobody") == []


def test_a_user_finds_types_by_their_own_names_first(connection: database.Connection) -> None:
    registry = SchemaRegistry(connection)
    registry.set_aliases("contact", EVERYBODY, ["person", "friend"])
    registry.set_aliases("buddy", "u", ["friend"])
    assert [registry.aliased("friend", user) for user in ("u", "v")] == ["buddy", "contact"]
    assert registry.aliased("person", "u") == "contact"
    registry.set_aliases("contact", EVERYBODY, ["person"])
    assert registry.aliased("friend", "v") is None
