"""Companions in memory, made by the functions that make those in files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import TooManyGroups
from headrace.extract.postings import described, of_field, stored
from headrace.format.companion.memory import MemoryCompanion
from headrace.query.definition import Definition

#: With fewer events in a group, panes take more memory than the columns they are made from, and save no time.
_EVENTS_OF_GROUP = 4
#: So many groups are no matter, however few events they have.
_LEAST_GROUPS = 1_000


def in_memory(columns: pa.Table, definition: Definition, first_seq: int, through_version: int) -> MemoryCompanion:
    """The companion of a columns table; postings and panes are made when they are first asked for.

    Panes of groups that have few events are not held.
    """

    def panes(rollup: str, interval: int) -> Any:
        from headrace.reduce import rollup as reducing

        most = max(_LEAST_GROUPS, columns.num_rows // _EVENTS_OF_GROUP)
        search = definition.search
        try:
            return reducing.panes(columns, search.rollups[rollup], search, intervals=[interval], most_groups=most)
        except TooManyGroups:
            return None

    return MemoryCompanion(
        described(columns, definition, first_seq=first_seq, through_version=through_version),
        stored(columns),
        postings=lambda name: of_field(columns, name, definition),
        panes=panes,
    )
