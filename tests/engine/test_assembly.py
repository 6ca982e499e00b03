from __future__ import annotations

from itertools import count
from pathlib import Path

import apsw
import pytest

from crash.forgetful import Disk
from headrace.errors import CorruptData, Unavailable
from headrace.storage import database
from headrace.storage.database import NewerDatabase
from headrace.types import JSON
from support.engine_rig import Rig, array

NUMBERS = count()


def test_everything_is_there_again_after_a_restart(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s", JSON, array(1))
        rig.append("s", array(2, 3), key="k", stream_seq="9", producer=("p", 1, 0), close=True)
        before = rig.find("s")
        rig.reopen()
        after = rig.find("s")
        assert {n: getattr(after.head, n) for n in after.head.__slots__} == {
            n: getattr(before.head, n) for n in before.head.__slots__
        }
        assert after.id == before.id
        assert after.epochs == before.epochs
        assert after.tail_offset() == before.tail_offset()
        assert rig.read("s", key="k") == [b"2", b"3"]


def test_a_directory_has_one_engine_at_a_time(tmp_path: Path) -> None:
    with Rig(tmp_path), pytest.raises(Unavailable, match="another server"):
        Rig(tmp_path)
    Rig(tmp_path).close()


def test_a_directory_that_cannot_be_opened_is_let_go(tmp_path: Path) -> None:
    connection = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    connection.pragma("user_version", 10_000)
    connection.close()
    for _ in range(2):
        with pytest.raises(NewerDatabase):
            Rig(tmp_path)


def test_whichever_page_is_damaged_a_directory_opens_or_is_refused_by_its_name(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s", JSON, array(1))
        rig.publish("s")
    path, refused = tmp_path / "headrace.db", 0
    whole = path.read_bytes()
    for start in range(database.PAGE_BYTES, len(whole), database.PAGE_BYTES):
        path.write_bytes(whole[:start] + bytes(database.PAGE_BYTES) + whole[start + database.PAGE_BYTES :])
        try:
            Rig(tmp_path).close()
        except CorruptData as refusal:
            assert refusal.facts == {"object": str(path), "check": "database"}
            refused += 1
    assert refused
    path.write_bytes(whole)
    Rig(tmp_path).close()


def test_a_function_runs_inside_a_commit_and_its_answer_comes_back(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s")
        assert rig.run(rig.engine.apply(lambda batch: len(batch.streams.every(0, 10)))) == 1


def test_a_probe_proves_that_the_log_can_be_written(tmp_path: Path) -> None:
    disk = Disk(f"probed-{next(NUMBERS)}")
    with Rig(tmp_path, vfs=disk.name) as rig:
        rig.run(rig.engine.probe())
        disk.fail["write"] = apsw.FullError("full")
        with pytest.raises(Unavailable):
            rig.run(rig.engine.probe())
        disk.fail.clear()
        rig.run(rig.engine.probe())
    disk.unregister()
