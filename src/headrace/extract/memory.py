"""Companions in memory, made by the functions that make those in files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.extract.postings import described, of_field, stored
from headrace.format.companion.memory import MemoryCompanion
from headrace.query.definition import Definition


def in_memory(columns: pa.Table, definition: Definition, first_seq: int, through_version: int) -> MemoryCompanion:
    """The companion of a columns table; postings and panes are made when they are first asked for."""

    def panes(rollup: str, interval: int) -> Any:
        from headrace.reduce import rollup as reducing

        return reducing.panes(columns, definition.search.rollups[rollup], definition.search, intervals=[interval])

    return MemoryCompanion(
        described(columns, definition, first_seq=first_seq, through_version=through_version),
        stored(columns),
        postings=lambda name: of_field(columns, name, definition),
        panes=panes,
    )
