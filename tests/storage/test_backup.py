"""A backup is one moment of a directory, whole or not there; what is restored from it is the same."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headrace.config import StorageConfig
from headrace.engine.history.verify import verify
from headrace.engine.products import JOURNALS
from headrace.errors import Conflict, CorruptData, NotFound, Unavailable
from headrace.storage import database
from headrace.storage.backup import Backup, back_up, restore
from headrace.storage.database import Connection, WriteAheadLog
from headrace.storage.keys import KeyStore
from headrace.storage.lock import DirectoryLock
from headrace.storage.log_damage import RESTORED
from headrace.storage.node import EPOCH_BLOCK, Node
from headrace.storage.objects import Objects
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal
from headrace.types import JSON, SystemClock
from support.engine_rig import Rig, array

CLOCK = SystemClock()


def saved(data_dir: Path, target: Path, object_store: str = "s3://elsewhere") -> Backup:
    return back_up(data_dir, object_store, target, CLOCK, lambda done, total: None)


def restored(source: Path, data_dir: Path) -> Backup:
    return restore(source, StorageConfig(data_dir=str(data_dir)), lambda done, total: None)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Connection]:
    """A log that is in use, in the directory ``data``."""
    (tmp_path / "data").mkdir()
    connection = database.connect(tmp_path / "data" / "headrace.db", cache_bytes=1 << 20)
    database.migrate(connection)
    yield connection
    connection.close()


def append(log: Connection, first: int, count: int) -> None:
    """One commit of several rows, each of more than a page."""
    with log:
        Wal(log).insert(
            [
                (1, seq, 1, seq, 0, None, None, None, seq, Random(seq).randbytes(16_000), None)
                for seq in range(first, first + count)
            ]
        )


def seqs(path: Path) -> list[int]:
    connection = database.connect(path, cache_bytes=1 << 20)
    try:
        assert connection.pragma("integrity_check") == "ok"
        return [entries.seq for entries in Wal(connection).scan(1, 0, 1 << 40)]
    finally:
        connection.close()


def test_a_backup_has_whole_commits_while_the_log_grows(tmp_path: Path, log: Connection) -> None:
    append(log, 0, 500)
    started, stop = threading.Event(), threading.Event()

    def grow() -> None:
        path = tmp_path / "data" / "headrace.db"
        writer = database.connect(path, cache_bytes=1 << 20, log=WriteAheadLog(path, 100))
        first = 500
        while not stop.is_set():
            append(writer, first, 10)
            first += 10
            started.set()
        writer.close()

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        started.wait(10)
        for number in range(3):
            saved(tmp_path / "data", tmp_path / f"backup-{number}")
    finally:
        stop.set()
        growing.join()
    sizes = []
    for number in range(3):
        found = seqs(tmp_path / f"backup-{number}" / "headrace.db")
        assert found == list(range(len(found)))
        assert len(found) % 10 == 0
        sizes.append(len(found))
    assert sizes == sorted(sizes) and sizes[0] > 500


def test_progress_reaches_its_end(tmp_path: Path, log: Connection) -> None:
    append(log, 0, 2_000)
    told: list[tuple[int, int]] = []
    taken = back_up(tmp_path / "data", "s3://x", tmp_path / "b", CLOCK, lambda *at: told.append(at))
    assert len(told) > 1
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] == taken.files["headrace.db"].bytes


def test_a_restored_directory_holds_what_the_backup_held_and_says_so(tmp_path: Path, log: Connection) -> None:
    append(log, 0, 20)
    with log:
        Streams(log).set_meta("epoch_end", EPOCH_BLOCK)
    keys = KeyStore(tmp_path / "data" / "keys.db")
    key, token = keys.create(user_id="ada", scopes=["read"])
    taken = saved(tmp_path / "data", tmp_path / "backup")
    append(log, 20, 5)
    keys.revoke(key.id)
    keys.close()
    assert sorted(taken.files) == ["headrace.db", "keys.db"]
    assert restored(tmp_path / "backup", tmp_path / "new") == taken
    assert seqs(tmp_path / "new" / "headrace.db") == list(range(20))
    copied = KeyStore(tmp_path / "new" / "keys.db")
    assert copied.verify(token) is not None
    copied.close()
    connection = database.connect(tmp_path / "new" / "headrace.db", cache_bytes=1 << 20)
    assert [Streams(connection).meta(name) for name in (RESTORED, "epoch_end", "spare_epoch")] == [1, 0, -1]
    connection.close()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["headrace.db", "keys.db", "lock"]


def test_only_the_owner_can_read_a_backup(tmp_path: Path, log: Connection) -> None:
    KeyStore(tmp_path / "data" / "keys.db").close()
    saved(tmp_path / "data", tmp_path / "backup")
    restored(tmp_path / "backup", tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o700
    for path in (tmp_path / "backup" / "keys.db", tmp_path / "new" / "keys.db", tmp_path / "new" / "headrace.db"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_is_written_through_a_symbolic_link(tmp_path: Path, log: Connection) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (tmp_path / "backup.partial").symlink_to(elsewhere)
    saved(tmp_path / "data", tmp_path / "backup")
    assert list(elsewhere.iterdir()) == []
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755
    assert (tmp_path / "backup" / "headrace.db").exists() and not (tmp_path / "backup").is_symlink()
    for leads_to in (elsewhere, tmp_path / "nowhere"):
        (tmp_path / "link").symlink_to(leads_to)
        with pytest.raises(Conflict, match="is a symbolic link"):
            saved(tmp_path / "data", tmp_path / "link")
        (tmp_path / "link").unlink()
    assert not (tmp_path / "nowhere").exists()


def test_nothing_is_ever_written_over(tmp_path: Path, log: Connection) -> None:
    saved(tmp_path / "data", tmp_path / "backup")
    with pytest.raises(Conflict, match=r"is not empty: it holds backup\.json"):
        saved(tmp_path / "data", tmp_path / "backup")
    with pytest.raises(Conflict, match="is not empty"):
        restored(tmp_path / "backup", tmp_path / "data")
    (tmp_path / "new").mkdir()
    lock = DirectoryLock(tmp_path / "new")
    with pytest.raises(Unavailable):
        restored(tmp_path / "backup", tmp_path / "new")
    lock.release()
    restored(tmp_path / "backup", tmp_path / "new")


def test_a_backup_that_was_cut_short_is_none(tmp_path: Path, log: Connection) -> None:
    append(log, 0, 2_000)

    def cut(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(tmp_path / "data", "s3://x", tmp_path / "backup", CLOCK, cut)
    assert not (tmp_path / "backup").exists()
    saved(tmp_path / "data", tmp_path / "backup")
    assert len(seqs(tmp_path / "backup" / "headrace.db")) == 2_000
    assert not (tmp_path / "backup.partial").exists()


def test_what_is_no_backup_is_not_restored(tmp_path: Path, log: Connection) -> None:
    with pytest.raises(NotFound, match=r"has no backup\.json"):
        restored(tmp_path / "data", tmp_path / "new")
    with pytest.raises(NotFound, match="holds no log"):
        saved(tmp_path / "nowhere", tmp_path / "backup")
    saved(tmp_path / "data", tmp_path / "backup")
    (tmp_path / "backup" / "backup.json").write_text('{"headrace": "backup", "version": 2}')
    with pytest.raises(CorruptData):
        restored(tmp_path / "backup", tmp_path / "new")


def test_a_damaged_backup_is_not_restored_and_leaves_no_log_behind(tmp_path: Path, log: Connection) -> None:
    append(log, 0, 20)
    saved(tmp_path / "data", tmp_path / "backup")
    path = tmp_path / "backup" / "headrace.db"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptData, match=r"headrace\.db is not what was backed up"):
        restored(tmp_path / "backup", tmp_path / "new")
    assert not (tmp_path / "new" / "headrace.db").exists()


def test_a_store_in_the_directory_is_part_of_the_backup(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.create("s", JSON, array(1, 2))
        rig.publish("s")
        rig.append("s", array(3))
        rig.publish("s")  # the first segment was small, and is an orphan now
        rig.append("s", array(4))
        taken = saved(tmp_path / "data", tmp_path / "backup", object_store="")
    assert taken.objects == 2 + 3
    assert taken.problems == ()
    restored(tmp_path / "backup", tmp_path / "new")
    used = {info.key for info in Objects.open(str(tmp_path / "data" / "objects")).list("epochs")}
    with Rig(tmp_path / "new") as rig:
        assert rig.read("s") == [b"1", b"2", b"3", b"4"]
        # Whatever the first directory reserved after the backup, this one does not use.
        assert Node(rig.engine.objects, CLOCK).reserve_epochs().start >= 64 * EPOCH_BLOCK
        assert {info.key for info in rig.engine.objects.list("epochs")} >= used


def test_objects_that_are_replaced_while_they_are_copied_are_no_problem(tmp_path: Path) -> None:
    with Rig(tmp_path / "data", storage={"seal_rows": 4}) as rig:
        rig.create("s", JSON, array(0, 1, 2, 3))
        rig.append("s", array(4))
        rig.publish("s")
        happened: list[int] = []

        def go_on(done: int, total: int) -> None:
            if not happened and (tmp_path / "backup.partial" / "objects" / "segments").exists():
                happened.append(done)
                rig.append("s", array(5))
                rig.publish("s")
                rig.clock.us += 3_600_000_000
                rig.clear()

        taken = back_up(tmp_path / "data", "", tmp_path / "backup", CLOCK, go_on)
    assert happened
    assert taken.problems == ()
    restored(tmp_path / "backup", tmp_path / "new")
    (report,) = verify(Objects.open(str(tmp_path / "new" / "objects")), JOURNALS)
    assert report.damage == []
    assert report.entries == 6


def test_a_damaged_object_is_a_problem_of_the_backup_and_no_reason_to_have_none(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        for name in ("s", "t"):
            rig.create(name, JSON, array(1))
            rig.publish(name)
        (segment,) = rig.engine.published.following(rig.find("s").id, 0, 1)
        rig.engine.objects.delete([segment.key])
        taken = saved(tmp_path / "data", tmp_path / "backup", object_store="")
    assert taken.problems == (f"the object {segment.key} is missing",)
    restored(tmp_path / "backup", tmp_path / "new")
    with Rig(tmp_path / "new") as rig:
        assert rig.read("t") == [b"1"]


def test_objects_that_others_may_read_are_private_in_a_backup_and_stay_what_they_are(tmp_path: Path) -> None:
    with Rig(tmp_path / "data", storage={"object_mode": "0755"}) as rig:
        rig.create("s")
        rig.append("s", array(2))
        rig.publish("s")
        saved(tmp_path / "data", tmp_path / "backup", "")
    storage = StorageConfig(data_dir=str(tmp_path / "new"), object_mode="0750")
    restore(tmp_path / "backup", storage, lambda done, total: None)
    modes = {"data": (0o755, 0o644), "backup": (0o700, 0o600), "new": (0o750, 0o640)}
    for name, (directories, files) in modes.items():
        root = tmp_path / name / "objects"
        assert len(list(root.rglob("*.parquet"))) == 1
        for path in (root, *root.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (directories if path.is_dir() else files)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o710
