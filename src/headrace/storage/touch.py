"""The rows of ``touch``: the epoch of a stream's journal, and the templates that are active on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.storage.database import Connection


class TemplateRow(NamedTuple):
    """An active template as it is stored."""

    template: str
    entity: str
    fields: str
    active_from: int
    seen_us: int
    ttl_ms: int


class TouchRows:
    """Reads and writes them through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def epoch(self, stream: int) -> str | None:
        """The epoch of a stream's journal, if it has one."""
        row = self._connection.execute("SELECT epoch FROM touch WHERE stream = ?", (stream,)).fetchone()
        return None if row is None else str(row[0])

    def begin(self, stream: int, epoch: str) -> str:
        """Give a stream an epoch unless it has one; answers the one it has."""
        self._connection.execute("INSERT OR IGNORE INTO touch VALUES (?, ?)", (stream, epoch))
        return self.epoch(stream) or epoch

    def templates(self, stream: int) -> list[TemplateRow]:
        """The templates of a stream, the one that was used longest ago first."""
        sql = """SELECT template, entity, fields, active_from, seen_us, ttl_ms FROM touch_templates
                 WHERE stream = ? ORDER BY seen_us, template"""
        return [TemplateRow(*row) for row in self._connection.execute(sql, (stream,))]

    def save(self, stream: int, rows: Iterable[TemplateRow]) -> None:
        """Store templates, in place of what was stored of them."""
        sql = "INSERT OR REPLACE INTO touch_templates VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._connection.executemany(sql, ((stream, *row) for row in rows))

    def drop(self, stream: int, templates: Iterable[str]) -> None:
        """Forget templates."""
        sql = "DELETE FROM touch_templates WHERE stream = ? AND template = ?"
        self._connection.executemany(sql, ((stream, template) for template in templates))

    def end(self, stream: int) -> None:
        """Forget everything about a stream."""
        for table in ("touch", "touch_templates"):
            self._connection.execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))
