"""Reading a state from its beginning to its end, row group by row group.

Every failure of its bytes is ``CorruptData`` and names the object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from headrace.format.parquet_file import ParquetSource, intact
from headrace.format.state.layout import FRAME, KEY, LIFE, METADATA, decode_info


class StateReader:
    """One file; it stays open while rows are taken from it."""

    def __init__(self, path: Path, name: str, *, sha256: str | None = None) -> None:
        """Where ``sha256`` is known, the whole file is verified."""
        self._name = name
        with intact(self._name):
            self._source = ParquetSource(path, name, sha256=sha256)
            self.info = decode_info((self._source.metadata.metadata or {}).get(METADATA), name)

    def rows(self, life_ids: Collection[str] | None = None) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """Every key in order, with its frame under the empty name and the states of some lives, or of all."""
        for keys, columns in self.columns(life_ids):
            names = tuple(columns)
            rows = (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))
            if any(None in column for column in columns.values()):
                rows = ({life: state for life, state in row.items() if state is not None} for row in rows)
            yield from zip(keys, rows, strict=True)

    def columns(self, life_ids: Collection[str] | None = None) -> Iterator[tuple[list[bytes], dict[str, list[Any]]]]:
        """The same, many keys at once: those in order, and what they have by life, None where one has nothing."""
        held = sorted(set(self.info.lives.values()))
        chosen = [life for life in held if life_ids is None or life in life_ids]
        for group in range(self._source.metadata.num_row_groups):
            keys, *columns = self._columns(group, chosen)
            yield keys, dict(zip(("", *chosen), columns, strict=True))

    def _columns(self, group: int, life_ids: list[str]) -> list[list[bytes]]:
        with intact(self._name):
            names = [KEY, FRAME, *(LIFE + life for life in life_ids)]
            table = self._source.table(group, names)
            return [table.column(name).to_pylist() for name in names]
