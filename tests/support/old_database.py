"""Databases as servers wrote them before pages had checksums."""

from __future__ import annotations

from pathlib import Path

import apsw

from headrace.storage import database
from headrace.storage.page_checksums import checksum_vfs


def without_checksums(path: Path) -> None:
    """Replace a log that nobody has open by one of the last version without page checksums, with the same rows."""
    version = database.CHECKSUMS_SINCE - 1
    old = path.with_name("old.db")
    connection = apsw.Connection(str(old), vfs=checksum_vfs())
    connection.pragma("page_size", database.PAGE_BYTES)
    connection.pragma("journal_mode", "wal")
    for text in database.migrations()[:version]:
        connection.execute(text)
    connection.execute("ATTACH ? AS new", (str(path),))
    with connection:
        tables = connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'").fetchall()
        for (table,) in tables:
            if not str(table).startswith("sqlite_"):
                # Columns that newer versions have added are left out.
                columns = ", ".join(f'"{row[1]}"' for row in connection.execute(f"PRAGMA main.table_info({table})"))
                connection.execute(f"DELETE FROM main.{table}")
                connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}")
        connection.pragma("user_version", version)
    connection.close()
    old.replace(path)
