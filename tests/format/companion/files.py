"""Companions in files, from events to an open reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from format.companion.events import DEFINITION, FIELDS, FIRST_SEQ, Event, columns_of
from headrace.extract.postings import describe_companion, postings, stored_columns
from headrace.format.companion.file_reader import FileCompanion
from headrace.format.companion.layout import LIMITS, Companion, Limits
from headrace.format.companion.writer import write
from headrace.format.decoded_columns import LruCache

HASHES = {name: DEFINITION.field_hash(name, 1) for name in FIELDS}
ROLLUPS = {name: DEFINITION.rollup_hash(name, 1) for name in DEFINITION.search.rollups}
PANES = pa.schema([("rollup", pa.string()), ("interval", pa.int64()), ("pane", pa.int64()), ("count", pa.int64())])


def written(
    events: list[Event],
    directory: Path,
    limits: Limits = LIMITS,
    *,
    first_seq: int = FIRST_SEQ,
    panes: Any = None,
    hidden: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> Companion:
    """Write the companion of these events; ``hidden`` columns belong to no field."""
    table = columns_of(events, first_seq)
    for name, column in hidden.items():
        table = table.append_column(name, column)
    facts = {"through_version": 1, "stream": "events", "incarnation": "1", **more}
    info = describe_companion(table, DEFINITION, first_seq=first_seq, **facts)
    tables = {"columns": stored_columns(table), "postings": postings(table, DEFINITION), "panes": panes}
    return write(directory, info, unique="a", limits=limits, **tables)


def opened(directory: Path, listed: Companion, kept_bytes: int = 1 << 20) -> FileCompanion:
    """Open it as it lies in a directory."""
    return FileCompanion.opened(directory, listed, LruCache(kept_bytes))


def made(events: list[Event], directory: Path, limits: Limits = LIMITS, **more: Any) -> FileCompanion:
    """Write a companion and open it."""
    return opened(directory, written(events, directory, limits, **more))
