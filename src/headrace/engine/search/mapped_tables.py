"""Tables of companions in local files that no directory lists: memory-mapped, and gone with the last reader."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.format.companion.memory import Tables
from headrace.storage.files import make_directories

_ALIGNED = 64


def spilled(tables: Tables, directory: Path) -> tuple[Tables, Any]:
    """The same tables, mapped from a file, and all that is mapped; raises OSError where it cannot be written.

    The file is unlinked at once, so that neither a crash nor an erasure leaves it behind.
    """
    make_directories(directory)
    descriptor, name = tempfile.mkstemp(dir=directory)
    os.close(descriptor)
    try:
        ends = _written(name, [tables.columns, *tables.postings.values(), *tables.panes.values()])
        with pa.memory_map(name) as mapped:
            whole = mapped.read_buffer(ends[-1])
    finally:
        Path(name).unlink()
    parts = iter([_read(whole.slice(start, end - start)) for start, end in zip([0, *ends], ends, strict=False)])
    mapped_tables = Tables(
        next(parts), {name: next(parts) for name in tables.postings}, {name: next(parts) for name in tables.panes}
    )
    return mapped_tables, whole


def _written(name: str, tables: list[Any]) -> list[int]:
    """Where each table ends in the file."""
    ends = []
    with pa.OSFile(name, "wb") as file:
        for table in tables:
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table.combine_chunks())
            file.write(b"\0" * (-file.tell() % _ALIGNED))
            ends.append(file.tell())
    return ends


def _read(part: Any) -> Any:
    return pa.ipc.open_stream(part).read_all()
