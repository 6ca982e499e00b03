from __future__ import annotations

from pathlib import Path

import pytest

from headrace.storage import database
from headrace.storage.dedupe import Dedupe, FirstEvent


@pytest.fixture
def dedupe(tmp_path: Path) -> Dedupe:
    connection = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    database.migrate(connection)
    return Dedupe(connection)


def test_keys_are_found_one_or_many_at_a_time(dedupe: Dedupe) -> None:
    dedupe.save([(1, '"a"', 0, 10), (1, '"b\\u0000"', 1, 11), (2, '"a"', 5, 12)])
    assert dedupe.find(1, ['"a"']) == {'"a"': FirstEvent(0, 10)}
    assert dedupe.find(1, ['"c"']) == {}
    assert dedupe.find(1, ['"a"', '"b\\u0000"', "7"]) == {'"a"': FirstEvent(0, 10), '"b\\u0000"': FirstEvent(1, 11)}
    assert dedupe.find(2, ['"a"', '"b"']) == {'"a"': FirstEvent(5, 12)}


def test_a_key_is_remembered_as_it_came_last(dedupe: Dedupe) -> None:
    dedupe.save([(1, "7", 0, 10)])
    dedupe.save([(1, "7", 9, 20)])
    assert dedupe.find(1, ["7"]) == {"7": FirstEvent(9, 20)}
    assert dedupe.count(1) == 1


def test_the_oldest_are_forgotten_by_number_or_time_a_few_at_a_time(dedupe: Dedupe) -> None:
    dedupe.save([(1, str(seq), seq, 100 + seq) for seq in range(10)])
    assert dedupe.forget(1, 3, 0, 2) == 2
    assert dedupe.forget(1, 3, 0, 5) == 1
    assert dedupe.forget(1, 0, 104, 5) == 2
    assert dedupe.forget(2, 100, 1_000, 5) == 0
    assert sorted(dedupe.find(1, [str(seq) for seq in range(10)])) == ["5", "6", "7", "8", "9"]
