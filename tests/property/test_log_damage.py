"""Whatever bit of a write-ahead log flips: every acknowledged commit but the last is there, or the log is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptData
from headrace.format.sqlite_wal import FRAME_HEADER_BYTES, HEADER_BYTES, find_damage
from headrace.storage import database, log_damage
from headrace.storage.database import PAGE_BYTES
from headrace.storage.log_damage import accept_log_damage, refuse_log_damage

COMMITS = 25
FRAME = FRAME_HEADER_BYTES + PAGE_BYTES


class Killed:
    """The files that a process left that was killed after some commits, and where each commit ends."""

    def __init__(self, directory: Path, *, reused: bool) -> None:
        path, chance = directory / "log.db", Random(7)
        connection = database.connect(path, cache_bytes=1 << 20)
        connection.pragma("wal_autocheckpoint", 0)
        connection.execute("CREATE TABLE commits (number INTEGER PRIMARY KEY, body BLOB)")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if reused:  # longer than what comes after it, so that frames of this use of the file are left behind
            for number in range(60):
                connection.execute("INSERT INTO commits VALUES (?, ?)", (-number - 1, chance.randbytes(9_000)))
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            connection.execute("DELETE FROM commits")
        wal, self.ends = path.with_name("log.db-wal"), []
        for number in range(COMMITS):
            body = chance.randbytes(chance.choice([10, 10, 10, 20_000]))
            connection.execute("INSERT INTO commits VALUES (?, ?)", (number, body))
            self.ends.append(_used(wal.read_bytes()))
        self.files = {name: (directory / name).read_bytes() for name in ("log.db", "log.db-wal")}
        connection.close()

    @property
    def log(self) -> bytes:
        return self.files["log.db-wal"]

    def write(self, directory: Path, log: bytes) -> Path:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / "log.db").write_bytes(self.files["log.db"])
        (directory / "log.db-wal").write_bytes(log)
        return directory / "log.db"


def _used(log: bytes) -> int:
    """Where the frames of this use of a file end."""
    end = HEADER_BYTES
    while log[end + 8 : end + 16] == log[16:24]:
        end += FRAME
    return end


@pytest.fixture(scope="module", params=[False, True], ids=["new", "reused"])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(tmp_path_factory.mktemp("live"), reused=request.param)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("left")


@pytest.fixture(scope="module", autouse=True)
def _never_written_meanwhile() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_damage, "_PAUSE_S", 0)
        yield


def _commits(path: Path) -> list[int]:
    connection = database.connect(path, cache_bytes=1 << 20)
    rows = connection.execute("SELECT number FROM commits WHERE number >= 0 ORDER BY number").fetchall()
    connection.close()
    return [int(number) for (number,) in rows]


def _flipped(log: bytes, position: int, bit: int) -> bytes:
    content = bytearray(log)
    content[position] ^= 1 << bit
    return bytes(content)


@given(data=st.data())
def test_a_flipped_bit_loses_nothing_that_was_acknowledged_without_a_word(
    killed: Killed, place: Path, data: st.DataObject
) -> None:
    frame = data.draw(st.integers(0, (killed.ends[-1] - HEADER_BYTES) // FRAME - 1), label="frame")
    within = data.draw(st.one_of(st.integers(0, FRAME_HEADER_BYTES - 1), st.integers(0, FRAME - 1)), label="byte")
    position = HEADER_BYTES + frame * FRAME + within
    log = _flipped(killed.log, position, data.draw(st.integers(0, 7), label="bit"))
    path = killed.write(place, log)
    try:
        refuse_log_damage(path)
    except CorruptData as refusal:
        assert refusal.facts["start"] <= position < refusal.facts["end"]
        accept_log_damage(path)
        before = sum(end <= position for end in killed.ends)
        assert _commits(path) == list(range(before))
        assert path.with_name("log.db-wal.damaged-1").read_bytes() == log
    else:
        assert position >= killed.ends[-2]
        assert _commits(path) == list(range(COMMITS - 1))


@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_header_is_refused(killed: Killed, bit: int) -> None:
    for position in range(HEADER_BYTES):
        damage = find_damage(_flipped(killed.log, position, bit), PAGE_BYTES)
        assert damage is not None
        assert (damage.intact_bytes, damage.start, damage.end) == (0, 0, killed.ends[-1]), position


@given(data=st.data())
def test_a_last_commit_that_was_cut_short_is_no_damage(killed: Killed, place: Path, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, COMMITS - 1), label="commit")
    start, end = killed.ends[number - 1], killed.ends[number]
    cut = data.draw(st.integers(start, end), label="cut")
    rest = data.draw(st.sampled_from([b"", bytes(end - cut), bytes(3 * FRAME)]), label="rest")
    log = killed.log[:cut] + rest
    assert find_damage(log, PAGE_BYTES) is None
    found = _commits(killed.write(place, log))
    assert found == list(range(number + (log[:end] == killed.log[:end])))


@given(data=st.data())
def test_frames_of_the_last_commit_reach_the_disk_in_any_order(killed: Killed, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, COMMITS - 1), label="commit")
    start, end = killed.ends[number - 1], killed.ends[number]
    log = bytearray(killed.log[:end])
    for at in range(start, end, FRAME):
        if data.draw(st.booleans(), label="missing"):
            log[at : at + FRAME] = bytes(FRAME)
    assert find_damage(bytes(log), PAGE_BYTES) is None


def test_a_log_whose_later_commits_are_in_the_database_is_not_cut(killed: Killed, place: Path) -> None:
    path = killed.write(place, killed.log)
    connection = database.connect(path, cache_bytes=1 << 20)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    files = path.read_bytes(), path.with_name("log.db-wal").read_bytes()
    connection.close()
    path.write_bytes(files[0])
    path.with_name("log.db-wal").write_bytes(_flipped(files[1], killed.ends[10] + 100, 1))
    with pytest.raises(CorruptData, match="cannot go back; put a backup in its place"):
        accept_log_damage(path)
