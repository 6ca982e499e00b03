"""The rows of ``touch``: the epoch of a stream's journal, and the templates that are active on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.storage.table import Table, TableQueries


class TemplateRow(NamedTuple):
    """An active template as it is stored."""

    template: str
    entity: str
    fields: str
    active_from: int
    seen_us: int
    ttl_ms: int


_TEMPLATES = Table("touch_templates", TemplateRow, extra=("stream",))


class TouchRows(TableQueries):
    """Reads and writes epochs and templates."""

    def epoch(self, stream: int) -> str | None:
        """The epoch of a stream's journal, if it has one."""
        epoch: str | None = self._value("SELECT epoch FROM touch WHERE stream = ?", stream)
        return epoch

    def begin(self, stream: int, epoch: str) -> str:
        """Give a stream an epoch unless it has one; returns the one it has."""
        self._connection.execute("INSERT OR IGNORE INTO touch VALUES (?, ?)", (stream, epoch))
        return self.epoch(stream) or epoch

    def templates(self, stream: int) -> list[TemplateRow]:
        """The templates of a stream, the one that was used longest ago first."""
        return self._all(_TEMPLATES, "WHERE stream = ? ORDER BY seen_us, template", stream)

    def save(self, stream: int, rows: Iterable[TemplateRow]) -> None:
        """Store templates, in place of what was stored of them."""
        self._replace(_TEMPLATES, rows, stream)

    def drop(self, stream: int, templates: Iterable[str]) -> None:
        """Remove templates."""
        self._delete_each("touch_templates", "stream = ? AND template = ?", ((stream, name) for name in templates))

    def end(self, stream: int) -> None:
        """Remove everything of a stream."""
        for table in ("touch", "touch_templates"):
            self._delete(table, "stream = ?", stream)
