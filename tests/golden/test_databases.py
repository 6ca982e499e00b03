"""Databases between the versions that commits had: what a migration leaves that was killed between two steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from golden.test_objects import CACHE_BYTES, HERE, extract
from headrace.storage import database

#: The version that a killed migration left, and the commit whose database it began with.
BETWEEN = {9: "726199e", 11: "b4a91f8", 12: "b4a91f8", 13: "b4a91f8", 14: "b4a91f8"}


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows of every table, once a database has the newest version."""
    connection = database.open_migrated(path, cache_bytes=CACHE_BYTES)
    tables = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    contents = {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in tables}
    connection.close()
    return contents


@pytest.mark.parametrize("version", BETWEEN)
def test_a_migration_goes_on_where_it_was_killed(version: int, tmp_path: Path) -> None:
    killed = extract(HERE / "directories" / f"{BETWEEN[version]}.tar.xz", tmp_path) / "data" / "headrace.db"
    whole = shutil.copytree(killed.parent, tmp_path / "whole") / killed.name
    connection = apsw.Connection(str(killed))
    begun = int(connection.pragma("user_version"))
    assert begun < version
    for number, text in enumerate(database.migrations()[begun:version], start=begun + 1):
        with connection:
            connection.execute(text)
            connection.pragma("user_version", number)
    connection.close()
    migrated = rows(killed)
    assert migrated == rows(whole)
    assert len(migrated["streams"]) >= 4
