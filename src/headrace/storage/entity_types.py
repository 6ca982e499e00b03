"""The rows of ``schema_registry`` and ``entity_type_aliases``: versions of entity types, and their other names.

What a row says never changes. That no version of an owner is there twice, and that one of them at most is active,
the database sees to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.storage.database import Connection

#: The owner of what is global.
EVERYBODY = ""


class SchemaRow(msgspec.Struct, frozen=True):
    """One version of an entity type; documents are JSON, and ``user_id`` is empty where it is global."""

    id: str
    entity_type: str
    schema_version: str
    scope: str
    user_id: str
    schema_definition: str
    reducer_config: str
    metadata: str
    base_version: str | None
    created_us: int
    active: int = 0


_COLUMNS = SchemaRow.__struct_fields__
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM schema_registry"
_INSERT = f"INSERT INTO schema_registry ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_OWNED = "entity_type = ? AND scope = ? AND user_id = ?"


class SchemaRegistry:
    """Reads and writes versions of entity types through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def connection(self) -> Connection:
        """What it reads and writes through."""
        return self._connection

    def active(self, entity_type: str) -> list[SchemaRow]:
        """The active versions of a type: the global one, and those of users."""
        return self._rows("WHERE entity_type = ? AND active = 1 ORDER BY user_id", entity_type)

    def effective(self, entity_type: str, user_id: str) -> SchemaRow | None:
        """The active version that holds for a user: the user's own, else the global one."""
        where = "WHERE entity_type = ? AND active = 1 AND user_id IN (?, '') ORDER BY user_id DESC LIMIT 1"
        return next(iter(self._rows(where, entity_type, user_id)), None)

    def version(self, entity_type: str, user_id: str, schema_version: str) -> SchemaRow | None:
        """One version of an owner."""
        where = f"WHERE {_OWNED} AND schema_version = ?"
        return next(iter(self._rows(where, entity_type, _scope(user_id), user_id, schema_version)), None)

    def versions(self, entity_type: str, user_id: str) -> list[SchemaRow]:
        """All versions of an owner."""
        return self._rows(f"WHERE {_OWNED}", entity_type, _scope(user_id), user_id)

    def taken(self, entity_type: str, user_id: str) -> list[str]:
        """The versions that an owner has."""
        sql = f"SELECT schema_version FROM schema_registry WHERE {_OWNED}"
        return [str(row[0]) for row in self._connection.execute(sql, (entity_type, _scope(user_id), user_id))]

    def taken_by(self, entity_type: str) -> dict[str, list[str]]:
        """The versions that each owner has of a type."""
        versions: dict[str, list[str]] = {}
        sql = "SELECT user_id, schema_version FROM schema_registry WHERE entity_type = ?"
        for user, version in self._connection.execute(sql, (entity_type,)):
            versions.setdefault(str(user), []).append(str(version))
        return versions

    def seen_by(self, user_id: str, after: str, limit: int, keyword: str = "") -> list[SchemaRow]:
        """The active versions that a user sees, by type and with their own after the global one.

        Where a keyword is given, the name of the type or what is said about it has it.
        """
        where = "WHERE active = 1 AND user_id IN ('', ?) AND entity_type > ?"
        if keyword:
            where += " AND instr(lower(entity_type || ' ' || metadata), lower(?))"
        where += " ORDER BY entity_type, user_id LIMIT ?"
        return self._rows(where, user_id, after, *([keyword] if keyword else []), limit)

    def every(self, after: str, limit: int) -> list[SchemaRow]:
        """All versions of everybody, in the order of their ids."""
        return self._rows("WHERE id > ? ORDER BY id LIMIT ?", after, limit)

    def types(self) -> list[str]:
        """Every entity type that has a version."""
        sql = "SELECT DISTINCT entity_type FROM schema_registry ORDER BY entity_type"
        return [str(row[0]) for row in self._connection.execute(sql)]

    def knows(self, entity_type: str) -> bool:
        """Whether a type has any version."""
        sql = "SELECT 1 FROM schema_registry WHERE entity_type = ? LIMIT 1"
        return self._connection.execute(sql, (entity_type,)).fetchone() is not None

    def insert(self, row: SchemaRow) -> None:
        """Store a version."""
        self._connection.execute(_INSERT, msgspec.structs.astuple(row))

    def activate(self, row: SchemaRow) -> None:
        """Make a version the active one of its owner."""
        self.deactivate(row.entity_type, row.user_id)
        self._connection.execute("UPDATE schema_registry SET active = 1 WHERE id = ?", (row.id,))

    def deactivate(self, entity_type: str, user_id: str) -> None:
        """Deactivate the version of an owner."""
        sql = f"UPDATE schema_registry SET active = 0 WHERE {_OWNED} AND active = 1"
        self._connection.execute(sql, (entity_type, _scope(user_id), user_id))

    def clear(self) -> None:
        """Forget everything, before a recovery does all of it again."""
        self._connection.execute("DELETE FROM schema_registry")
        self._connection.execute("DELETE FROM entity_type_aliases")

    # -- other names of types

    def set_aliases(self, entity_type: str, user_id: str, aliases: Iterable[str]) -> None:
        """Let a type have these other names, for a user or for everybody, and no more; one that is taken stays so."""
        self._connection.execute(
            "DELETE FROM entity_type_aliases WHERE entity_type = ? AND user_id = ?", (entity_type, user_id)
        )
        rows = ((alias, user_id, entity_type) for alias in dict.fromkeys(aliases))
        self._connection.executemany("INSERT OR IGNORE INTO entity_type_aliases VALUES (?, ?, ?)", rows)

    def named(self, name: str, user_id: str) -> str | None:
        """The type that has this name where a user looks: one that holds for them, or one that is called so."""
        schema = self.effective(name, user_id)
        return self.aliased(name, user_id) if schema is None else name

    def aliased(self, alias: str, user_id: str) -> str | None:
        """The type that a user calls so: by a name of their own, else by one of everybody's."""
        sql = "SELECT entity_type FROM entity_type_aliases WHERE alias = ? AND user_id IN (?, '') ORDER BY user_id DESC"
        row = self._connection.execute(sql, (alias, user_id)).fetchone()
        return None if row is None else str(row[0])

    def _rows(self, where: str, *values: Any) -> list[SchemaRow]:
        rows = self._connection.execute(f"{_SELECT} {where}", values)
        return [SchemaRow(*row) for row in rows]


def _scope(user_id: str) -> str:
    return "user" if user_id else "global"
