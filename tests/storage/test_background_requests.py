"""The rows of erasures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.storage import database
from headrace.storage.background_requests import ErasureRow, Erasures


@pytest.fixture
def erasures(tmp_path: Path) -> Iterator[Erasures]:
    connection = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    database.migrate(connection)
    yield Erasures(connection)
    connection.close()


def row(id: str, stream: int = 1, begun_us: int = 5, user: str = "ann") -> ErasureRow:
    return ErasureRow(id, f"ent_{id}", user, stream, 10, "running", "log", begun_us, None, "{}", "{}", "{}")


def test_what_is_written_down_is_found_until_it_has_ended(erasures: Erasures) -> None:
    erasures.add(row("a"), ["ent_a", "ent_x"])
    erasures.add(msgspec.structs.replace(row("b", stream=2, begun_us=7), before_seq=20), ["ent_x"])
    assert [one.id for one in erasures.running()] == ["a", "b"]
    assert [one.id for one in erasures.running(2)] == ["b"]
    assert erasures.since("ent_a") == 10
    assert erasures.since("ent_x") == 20
    assert erasures.since("ent_y") == 0
    erasures.update("a", step="objects")
    found = erasures.get("a")
    assert found is not None and found.step == "objects"
    erasures.end("a", 9, '{"log_rows":1}')
    assert not erasures.is_running(1) and erasures.is_running(2)
    assert erasures.since("ent_a") == 0
    assert erasures.since("ent_x") == 20
    assert erasures.has_ended(1, 9) and not erasures.has_ended(1, 10) and not erasures.has_ended(2, 0)


def test_pages_are_of_one_user_and_begin_with_the_newest(erasures: Erasures) -> None:
    for number, id in enumerate("abcd"):
        erasures.add(row(id, begun_us=number, user="ben" if id == "b" else "ann"), [])
    assert [one.id for one in erasures.page("ann", "", 2)] == ["d", "c"]
    assert [one.id for one in erasures.page("ann", "c", 2)] == ["a"]
