"""Bits that flip in the database file: what is served and sealed is what was written, or there is an error."""

from __future__ import annotations

from pathlib import Path
from random import Random

import apsw
import pytest

from headrace.errors import CorruptData, HeadraceError
from headrace.storage import database
from headrace.types import JSON
from support.engine_rig import Rig, array
from support.old_database import without_checksums

STREAMS, ENTRIES, FLIPS = 5, 40, 12


def _fill(directory: Path) -> dict[str, list[bytes]]:
    with Rig(directory) as rig:
        for stream in range(STREAMS):
            rig.create(f"s{stream}", JSON)
            for entry in range(ENTRIES):
                rig.append(f"s{stream}", array({"name": f"entry {entry} of {stream}"}), key=f"k{entry}")
        return _contents(rig)


def _contents(rig: Rig) -> dict[str, list[bytes]]:
    return {stream.name: rig.read(stream.name) for stream in rig.engine.log.page(prefix="", after="", limit=100)}


def _flip(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def test_a_flipped_bit_is_never_served_as_data(tmp_path: Path) -> None:
    contents, path, refused = _fill(tmp_path), tmp_path / "headrace.db", 0
    whole, chance = path.read_bytes(), Random(5)
    rows = [whole.index(b"entry %d of 2" % entry) for entry in (3, 20, 39)]
    header = [16, 17, 18, 19, 20, 24, 28, 40, 60, 63]
    for position in (*rows, *header, *chance.sample(range(len(whole)), FLIPS)):
        _flip(path, position, chance.randrange(8))
        try:
            with Rig(tmp_path) as rig:
                assert _contents(rig) == contents, position
        except (HeadraceError, apsw.IOError):
            refused += 1
        path.with_name("headrace.db-wal").unlink(missing_ok=True)
        path.write_bytes(whole)
    assert refused > len(rows) + len(header) - 1
    with Rig(tmp_path) as rig:
        assert _contents(rig) == contents


def test_a_header_that_says_there_are_no_checksums_is_refused(tmp_path: Path) -> None:
    _fill(tmp_path)
    for bit in range(8):
        _flip(tmp_path / "headrace.db", 20, bit)
        with pytest.raises(CorruptData, match=r"headrace.db is damaged"):
            Rig(tmp_path)
        _flip(tmp_path / "headrace.db", 20, bit)


def test_a_damaged_row_is_not_sealed(tmp_path: Path) -> None:
    _fill(tmp_path)
    path = tmp_path / "headrace.db"
    _flip(path, path.read_bytes().rindex(b"entry 20 of 2"), 0)
    with Rig(tmp_path) as rig:
        with pytest.raises(apsw.IOError):
            rig.publish("s2")
        assert list(rig.engine.objects.list("manifests")) == []


def test_a_directory_from_before_there_were_checksums_gets_them_and_keeps_its_rows(tmp_path: Path) -> None:
    contents, path = _fill(tmp_path), tmp_path / "headrace.db"
    without_checksums(path)
    assert path.read_bytes()[20] == 0
    with Rig(tmp_path) as rig:
        assert _contents(rig) == contents
        rig.append("s1", array("more"))
    assert path.read_bytes()[20] == 8
    assert not list(tmp_path.glob("*.partial*"))
    connection = database.connect(path, cache_bytes=1 << 20)
    assert connection.pragma("user_version") >= database.CHECKSUMS_SINCE  # which the versions before it refuse
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    _flip(path, path.read_bytes().index(b"entry 20 of 2"), 0)
    with Rig(tmp_path) as rig, pytest.raises(apsw.IOError):
        rig.read("s2")


def test_an_empty_database_in_a_directory_that_was_used_is_refused(tmp_path: Path) -> None:
    _fill(tmp_path)
    path = tmp_path / "headrace.db"
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(CorruptData, match=r"headrace.db is empty.*a copy from a backup") as refusal:
        Rig(tmp_path)
    assert refusal.value.facts == {"object": str(path), "check": "database"}
    for other in sorted(tmp_path.rglob("*"), reverse=True):
        if other.name not in ("lock", "headrace.db"):
            other.rmdir() if other.is_dir() else other.unlink()
    with pytest.raises(CorruptData, match=r"headrace.db is empty, and the directory was used"):
        Rig(tmp_path)
    path.write_bytes(whole)
    Rig(tmp_path).close()


def test_a_log_without_its_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "headrace.db-wal").write_bytes(b"what was committed")
    with pytest.raises(CorruptData, match=r"headrace.db is missing"):
        Rig(tmp_path)


def test_a_first_start_that_was_killed_leaves_no_used_directory(tmp_path: Path) -> None:
    for name in ("headrace.db", "keys.db", "lock", "headrace.db-journal"):
        (tmp_path / name).write_bytes(b"")
    with Rig(tmp_path) as rig:
        rig.create("s", JSON, array(1))
