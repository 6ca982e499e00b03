from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from headrace.errors import CorruptData, Unavailable
from headrace.storage import database
from headrace.storage.database import Connection, NewerDatabase
from support.readonly_database import make_read_only


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    connection = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    yield connection
    connection.close()


def test_a_commit_is_synced_before_it_returns(connection: Connection) -> None:
    full = 2
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == full


def test_sqlite_is_newer_than_the_bug_that_lost_commits_when_the_wal_was_reset() -> None:
    assert tuple(map(int, apsw.sqlite_lib_version().split("."))) >= (3, 51, 3)


def test_a_reader_cannot_write_and_does_not_make_a_database(connection: Connection, tmp_path: Path) -> None:
    database.migrate(connection)
    reader = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20, readonly=True)
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("INSERT INTO meta VALUES ('x', 1)")
    reader.close()
    with pytest.raises(Unavailable, match=r"missing.db cannot be used"):
        database.connect(tmp_path / "missing.db", cache_bytes=1 << 20, readonly=True)


@pytest.mark.parametrize("kept", [0, 100])
def test_a_damaged_file_is_named_with_what_to_do_next(connection: Connection, tmp_path: Path, kept: int) -> None:
    database.migrate(connection)
    connection.close()
    path = tmp_path / "headrace.db"
    path.write_bytes(path.read_bytes()[:kept] + b"nonsense" * 1024)
    with pytest.raises(CorruptData, match=f"{path} is damaged.*a backup") as refusal:
        database.connect(path, cache_bytes=1 << 20)
    assert refusal.value.facts == {"object": str(path), "check": "database"}


def test_what_is_no_file_is_named_with_what_to_do_next(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=f"{tmp_path} cannot be used.*see that it is a file"):
        database.connect(tmp_path, cache_bytes=1 << 20)


def test_a_log_that_cannot_be_written_to_is_refused_before_anything_is_written(
    connection: Connection, tmp_path: Path
) -> None:
    database.migrate(connection)
    connection.close()
    make_read_only(tmp_path / "headrace.db")
    again = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    with pytest.raises(Unavailable, match=r"headrace.db cannot be used: it is read-only; let this user write"):
        database.migrate(again)
    again.close()


def test_migrations_run_once(connection: Connection) -> None:
    newest = database.migrate(connection)
    assert newest == len(database.migrations()) == connection.pragma("user_version")
    connection.execute("INSERT INTO meta VALUES ('kept', 1)")
    assert database.migrate(connection) == newest
    assert connection.execute("SELECT value FROM meta WHERE name = 'kept'").get == 1


def test_a_database_of_a_newer_version_is_refused_and_left_alone(connection: Connection, tmp_path: Path) -> None:
    newest = database.migrate(connection)
    connection.pragma("user_version", newest + 1)
    connection.pragma("wal_checkpoint", "TRUNCATE")
    before = (tmp_path / "headrace.db").read_bytes()
    with pytest.raises(NewerDatabase, match="install a newer one") as refusal:
        database.migrate(connection)
    assert refusal.value.facts == {"found": newest + 1, "known": newest}
    assert (tmp_path / "headrace.db").read_bytes() == before


def test_a_migration_that_fails_leaves_the_version_before_it(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = database.migrations()
    broken = [*steps, "CREATE TABLE half (x); CREATE TABLE meta (twice)"]
    monkeypatch.setattr(database, "migrations", lambda: broken)
    with pytest.raises(apsw.SQLError, match="already exists"):
        database.migrate(connection)
    assert connection.pragma("user_version") == len(steps)
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").get == 0


def test_a_database_does_not_outgrow_its_limit(tmp_path: Path) -> None:
    small = database.connect(tmp_path / "small.db", cache_bytes=1 << 20, max_bytes=1024 * 1024)
    database.migrate(small)
    with pytest.raises(apsw.FullError) as reason:
        small.execute("INSERT INTO meta VALUES ('large', zeroblob(1100000))")
    refusal = database.unavailable(reason.value)
    assert isinstance(refusal, Unavailable)
    assert refusal.facts["reason"] == "disk_full"
    small.close()


def test_any_other_failure_to_write_is_unavailable_too() -> None:
    assert database.unavailable(apsw.IOError("broken")).facts["reason"] == "storage"
