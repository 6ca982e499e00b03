"""A migration that is cut off leaves the old schema or the new one, and the next start completes it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from crash.forgetful import Disk
from headrace.storage import database
from headrace.storage.database import Connection
from support.old_database import without_checksums

pytestmark = pytest.mark.crash

NUMBERS = count()
NEWEST = len(database.migrations())
# Moments before the first file is made have nothing to leave behind.
KILLS = 12


def _open(directory: Path, vfs: str | None = None) -> Connection:
    directory.mkdir(exist_ok=True)
    return database.connect(directory / "headrace.db", cache_bytes=1 << 20, vfs=vfs)


def _schema(connection: Connection) -> list[tuple[str, str]]:
    rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")
    return [(str(name), str(sql)) for name, sql in rows]


def _schemas(directory: Path) -> list[list[tuple[str, str]]]:
    """The schema of every version."""
    connection = _open(directory)
    found = [_schema(connection)]
    for number, text in enumerate(database.migrations(), start=1):
        with connection:
            connection.execute(text)
            connection.pragma("user_version", number)
        found.append(_schema(connection))
    connection.close()
    return found


def _found(directory: Path) -> tuple[int, list[tuple[str, str]]]:
    connection = _open(directory)
    version, schema = int(connection.pragma("user_version")), _schema(connection)
    assert database.migrate(connection) == NEWEST
    connection.execute("INSERT INTO meta VALUES ('written', 1)")
    connection.close()
    return version, schema


@pytest.mark.parametrize("start", range(NEWEST))
def test_a_power_failure_at_any_moment_of_a_migration_leaves_a_whole_version(tmp_path: Path, start: int) -> None:
    schemas, disk = _schemas(tmp_path / "whole"), Disk(f"migrated-{next(NUMBERS)}")
    connection = _open(tmp_path / "live", disk.name)
    for number, text in enumerate(database.migrations()[:start], start=1):
        with connection:
            connection.execute(text)
            connection.pragma("user_version", number)
    begun = len(disk.events)
    database.migrate(connection)
    versions = set()
    for moment in range(begun, len(disk.events) + 1):
        place = tmp_path / str(moment)
        disk.after_power_failure(moment, place, random.Random(moment))
        version, schema = _found(place)
        assert schema == schemas[version]
        versions.add(version)
    assert versions == set(range(start, NEWEST + 1))
    connection.close()
    disk.unregister()


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from crash.forgetful import Disk
from headrace.storage import database

class Deadly(Disk):
    def record(self, event):
        super().record(event)
        if len(self.events) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

disk = Deadly("deadly")
connection = database.connect(Path(sys.argv[1]) / "headrace.db", cache_bytes=1 << 20, vfs="deadly")
database.migrate(connection)
os._exit(0)
"""


def test_a_process_killed_while_it_migrates_leaves_a_whole_version(tmp_path: Path) -> None:
    schemas = _schemas(tmp_path / "whole")
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    killed = 0
    for event in random.Random(0).sample(range(1, 60), KILLS):
        place = tmp_path / str(event)
        place.mkdir()
        command = [sys.executable, "-c", KILLED_AT, str(place), str(event)]
        code = subprocess.run(command, env=environ, check=False).returncode
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
        version, schema = _found(place)
        assert schema == schemas[version]
        assert code != 0 or version == NEWEST
    assert killed > KILLS // 2


REBUILT = KILLED_AT.replace("connect(", "open_migrated(").replace("database.migrate(connection)\n", "")


def test_a_process_killed_while_it_adds_checksums_leaves_every_row(tmp_path: Path) -> None:
    """The old database is there, or the new one; the next start completes it."""
    whole = tmp_path / "whole"
    connection = _open(whole)
    database.migrate(connection)
    rows = [(f"name {number}", number) for number in range(2_000)]
    connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
    connection.close()
    without_checksums(whole / "headrace.db")
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    codes = set[int]()
    for event in (1, 3, 5, 8, 12, 17, 30, 1_000):
        place = tmp_path / str(event)
        shutil.copytree(whole, place)
        command = [sys.executable, "-c", REBUILT, str(place), str(event)]
        codes.add(subprocess.run(command, env=environ, check=False).returncode)
        again = database.open_migrated(place / "headrace.db", cache_bytes=1 << 20)
        found = again.execute("SELECT name, value FROM meta WHERE name LIKE 'name %' ORDER BY value").fetchall()
        assert found == rows
        assert again.pragma("integrity_check") == "ok"
        assert again.pragma("user_version") == NEWEST
        again.close()
        assert (place / "headrace.db").read_bytes()[20] == 8
        assert not list(place.glob("*.partial*"))
    assert codes == {0, -signal.SIGKILL}
