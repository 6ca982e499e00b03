"""What the object store knows of companions: recovery, verification, backups."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from engine.registries import change
from headrace.config import StorageConfig
from headrace.engine.derive.leases import LeaseLost
from headrace.engine.history.verify import verify
from headrace.engine.products import JOURNALS
from headrace.storage.backup import back_up, restore
from headrace.storage.database import Connection, connect, migrations
from headrace.storage.derived import Companions
from headrace.types import SystemClock
from support.engine_rig import Rig, array
from support.machines import Machines
from support.stored_objects import manifest
from support.work_rig import Worker, covered, forget, listed, opened, publish, searched, spans, stored

TENS = {"storage": {"seal_rows": 10}, "pipeline": {"min_rows": 0, "unit_bytes": 1, "fan_out": 3}}


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_an_empty_directory_has_the_companions_that_were_published(machines: Machines) -> None:
    with machines.open("a", **TENS) as rig:
        searched(rig, "s", 40)
        rig.fork("s", "f", 15)
        Worker(rig).work()
        rig.publish("s")
        rig.publish("f")
        before = {name: listed(rig, name) for name in "sf"}
        assert [spans(before[name]) for name in "sf"] == [[(0, 30), (30, 40)], [(0, 10), (10, 15)]]
    with machines.open("b", **TENS) as rig:
        assert {name: listed(rig, name) for name in "sf"} == before
        assert covered(rig, "s") == [(0, 30), (30, 40)]
        worker = Worker(rig)
        assert worker.lease() is None
        publish(rig, "s", 10)
        assert worker.work() == 1


def test_companions_that_no_manifest_lists_yet_are_made_again(machines: Machines) -> None:
    with machines.open("a", **TENS) as rig:
        searched(rig, "s", 30)
        worker = Worker(rig)
        worker.commit(worker.granted(limit=2))
        rig.publish("s")
        worker.work()
        assert covered(rig, "s") == [(0, 30)]
    with machines.open("b", **TENS) as rig:
        assert covered(rig, "s") == [(0, 10), (10, 20)], "as of the last manifest, with all its objects"
        assert {one.name for one in listed(rig, "s")} <= stored(rig)
        Worker(rig).work()
        assert covered(rig, "s") == [(0, 30)]
        orphans = rig.engine.sealer.publisher.orphans(1 << 62)
        found = [key for key in orphans if key.startswith("companions/")]
        assert {key.rpartition("/")[2].partition(".")[0] for key in found} == stored(rig) - _known(rig)


def _known(rig: Rig) -> set[str]:
    """Companions that count, and those that did until now."""
    retired = Companions(rig.engine._reader).retired(rig.find("s").id)
    return {one.name for one in (*listed(rig, "s"), *retired)}


def test_leases_of_a_lost_server_are_lost(machines: Machines) -> None:
    with machines.open("a", **TENS) as rig:
        searched(rig, "s", 10)
        grant = Worker(rig).granted()
        results = Worker(rig).made(grant)
    with machines.open("b", **TENS) as rig:
        worker = Worker(rig)
        found = worker.granted()
        assert found.lease.token > grant.lease.token
        with pytest.raises(LeaseLost):
            worker.commit(grant, results)
        worker.commit(found)


def test_a_restored_directory_goes_on_with_what_the_store_lists(machines: Machines) -> None:
    with machines.open("a", **TENS) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        worker.work()
        machines.back_up("a", "backup")
        publish(rig, "s", 10)
        worker.work()
        rig.publish("s")
        newest = listed(rig, "s")
        forget(rig)
    machines.restore("backup", "b")
    with machines.open("b", **TENS) as rig:
        assert listed(rig, "s") == newest
        assert {one.name for one in newest} <= stored(rig)
        assert Worker(rig).lease() is None


def test_a_manifest_lists_what_counts_and_a_commit_makes_it_untrue(tmp_path: Path) -> None:
    with opened(tmp_path, fan_out=3) as rig:
        searched(rig, "s", 20)
        stream, now_us = rig.find("s").id, rig.clock.us
        assert rig.engine.published.marked(now_us, now_us, 10) == []
        worker = Worker(rig)
        worker.work()
        assert rig.engine.published.marked(now_us, now_us, 10) == [stream]
        rig.publish("s")
        assert list(manifest(rig, "s").companions) == listed(rig, "s")
        assert rig.engine.published.marked(now_us, now_us, 10) == []
        change(rig, "s", search=None)
        assert worker.lease() is None
        rig.publish("s")
        assert manifest(rig, "s").companions == ()


def test_a_companion_that_comes_while_a_manifest_is_written_is_in_the_next(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted()
        results = worker.made(grant)
        stream = rig.find("s")

        async def meanwhile() -> None:
            sealer, work = rig.engine.sealer, rig.engine.work
            publication = await sealer._thread.run(lambda: sealer.publisher.publish(stream.id, sealer.pace))
            assert publication is not None
            await work.commit(grant.lease.id, grant.lease.token, results)
            await sealer._commit(stream, publication)

        rig.run(meanwhile())
        assert manifest(rig, "s").companions == ()
        assert rig.engine.published.marked(rig.clock.us, rig.clock.us, 10) == [stream.id]
        rig.publish("s")
        assert len(manifest(rig, "s").companions) == 2


def test_every_object_of_a_companion_is_verified(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        searched(rig, "s", 30)
        Worker(rig).work()
        rig.publish("s")
        forget(rig)
        objects = rig.engine.objects
        (report,) = verify(objects, JOURNALS)
        assert report.segments == 3
        assert report.companions == 3
        assert report.damage == []
        assert report.orphans == []
        keys = sorted(info.key for info in objects.list("companions"))
        objects.delete(keys[:1])
        objects.put(keys[1], objects.get(keys[1])[:-1])
        objects.put(keys[2], objects.get(keys[2])[:-1] + b"?")
        stray = keys[3].replace(".columns", "x.columns")
        objects.put(stray, b"")
        foreign = f"companions/{'0' * 32}/9/{keys[3].rpartition('/')[2]}"
        objects.put(foreign, b"")
        ours, strays = verify(objects, JOURNALS)
        assert sorted((one.object, one.check) for one in ours.damage) == [
            (keys[0], "present"),
            (keys[1], "size"),
            (keys[2], "checksum"),
        ]
        assert ours.orphans == [stray]
        assert strays.orphans == [foreign]


def test_a_backup_with_its_store_has_the_companions(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as rig:
        searched(rig, "s", 20)
        Worker(rig).work()
        rig.publish("s")
        before = listed(rig, "s")
        back_up(tmp_path / "a", "", tmp_path / "backup", SystemClock(), lambda done, total: None)
    restore(tmp_path / "backup", StorageConfig(data_dir=str(tmp_path / "b")), lambda done, total: None)
    with opened(tmp_path / "b") as rig:
        assert listed(rig, "s") == before
        assert {one.name for one in before} == stored(rig)
        assert not [report for report in verify(rig.engine.objects, JOURNALS) if report.damage]


def test_a_deleted_stream_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        searched(rig, "s", 20)
        rig.fork("s", "f", 20)
        Worker(rig).work()
        assert len(stored(rig)) == 4
        rig.delete("f")
        rig.clear()
        assert len(stored(rig)) == 2, "a fork that published nothing had companions"
        rig.delete("s")
        rig.clear()
        assert [
            info.key for kind in ("companions", "segments", "manifests") for info in rig.engine.objects.list(kind)
        ] == []
        rig.sweep()
        for table in ("companions", "due", "failures"):
            assert rig.engine._reader.execute(f"SELECT count(*) FROM {table}").get == 0


def restore_streams(database: Connection, version: int) -> None:
    """Let the table of streams be what it was in a version of the database."""
    with closing(sqlite3.connect(":memory:")) as old:
        old.executescript("".join(migrations()[:version]))
        made = "SELECT sql FROM sqlite_master WHERE tbl_name = 'streams' AND sql IS NOT NULL ORDER BY type DESC"
        statements = [sql for (sql,) in old.execute(made)]
        columns = ", ".join(row[1] for row in old.execute("PRAGMA table_info(streams)"))
    database.execute("CREATE TABLE kept AS SELECT * FROM streams")
    database.execute("DROP TABLE streams")
    for statement in statements:
        database.execute(statement)
    database.execute(f"INSERT INTO streams ({columns}) SELECT {columns} FROM kept")
    database.execute("DROP TABLE kept")


def test_a_directory_from_before_companions_is_looked_at(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        searched(rig, "s", 10)
        rig.append("s", array({"user": "tail"}))

        rig.run(rig.engine.close())
        with closing(connect(tmp_path / "headrace.db", cache_bytes=1 << 20)) as database, database:
            later = "".join(migrations()[4:])
            for index in re.findall(r"CREATE INDEX (\w+)", later):
                database.execute(f"DROP INDEX IF EXISTS {index}")
            for table in {*re.findall(r"CREATE TABLE (\w+)", later)} - {"streams"}:
                database.execute(f"DROP TABLE {table}")
            for table, column in re.findall(r"ALTER TABLE (\w+) ADD COLUMN (\w+)", later):
                if table != "streams":
                    database.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
            restore_streams(database, 4)
            database.execute("DELETE FROM meta WHERE name LIKE 'work%' OR name = 'last_stream'")
            database.execute("PRAGMA user_version = 4")
        rig.engine = rig.run(rig._open())
        assert Worker(rig).work() == 1
