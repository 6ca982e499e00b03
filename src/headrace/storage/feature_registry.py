"""The rows of ``feature_registry``: event sources, derivations and tables, whole after each change."""

from __future__ import annotations

import msgspec

from headrace.storage.database import Connection


class FeatureRegistryRow(msgspec.Struct, frozen=True):
    """The registry as of one version: who made it, for which app, and the document."""

    version: int
    at_us: int
    who: str
    app: str
    document: str


_SELECT = "SELECT version, at_us, who, app, document FROM feature_registry"


class FeatureRegistry:
    """Reads and writes versions of the registry through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def newest(self) -> FeatureRegistryRow | None:
        """The version that holds now; None where nothing was ever registered."""
        return self._one(f"{_SELECT} ORDER BY version DESC LIMIT 1")

    def get(self, version: int) -> FeatureRegistryRow | None:
        """One version."""
        return self._one(f"{_SELECT} WHERE version = ?", version)

    def page(self, after: int, limit: int) -> list[FeatureRegistryRow]:
        """Versions after one, in order."""
        sql = f"{_SELECT} WHERE version > ? ORDER BY version LIMIT ?"
        return [FeatureRegistryRow(*row) for row in self._connection.execute(sql, (after, limit))]

    def unpublished(self, after: int, limit: int) -> list[FeatureRegistryRow]:
        """Versions after one that the object store does not have yet, the oldest first."""
        sql = f"{_SELECT} WHERE published = 0 AND version > ? ORDER BY version LIMIT ?"
        return [FeatureRegistryRow(*row) for row in self._connection.execute(sql, (after, limit))]

    def save(self, row: FeatureRegistryRow, *, published: bool = False) -> None:
        """Store a version."""
        values = (*msgspec.structs.astuple(row), int(published))
        self._connection.execute("INSERT INTO feature_registry VALUES (?, ?, ?, ?, ?, ?)", values)

    def drop_before(self, version: int) -> list[int]:
        """Forget the versions before one; answers which."""
        sql = "DELETE FROM feature_registry WHERE version < ? RETURNING version"
        return [int(row[0]) for row in self._connection.execute(sql, (version,))]

    def drop_from(self, version: int) -> None:
        """Forget a version and what follows it."""
        self._connection.execute("DELETE FROM feature_registry WHERE version >= ?", (version,))

    def note_published(self, until: int) -> None:
        """The object store has every version up to one."""
        self._connection.execute(
            "UPDATE feature_registry SET published = 1 WHERE published = 0 AND version <= ?", (until,)
        )

    def _one(self, sql: str, *values: object) -> FeatureRegistryRow | None:
        row = self._connection.execute(sql, values).fetchone()
        return None if row is None else FeatureRegistryRow(*row)
