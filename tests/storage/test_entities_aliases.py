"""Aliases and moved observations: who is told of under whom, now and by what was known at a moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage import database
from headrace.storage.entities import Aliases, AliasRow, Relations, SplitRow


@pytest.fixture
def aliases(tmp_path: Path) -> Iterator[Aliases]:
    connection = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    database.migrate(connection)
    yield Aliases(connection)
    connection.close()


def alias(entity_id: str, into_id: str, at_us: int = 1) -> AliasRow:
    return AliasRow(entity_id, into_id, "ann", 7, at_us, at_us)


def moved(observation_id: str, entity_id: str, into_id: str) -> SplitRow:
    return SplitRow(observation_id, entity_id, into_id, "ann", 7, 1, 1)


def test_merges_lead_up_to_the_last_one_and_down_to_all(aliases: Aliases) -> None:
    for row in (alias("a", "b", 1), alias("b", "c", 2), alias("x", "c", 3)):
        aliases.add(row)
    assert aliases.root("a") == aliases.root("b") == aliases.root("c") == "c"
    assert aliases.with_merged("c") == ["c", "a", "b", "x"]
    assert aliases.with_merged("b") == ["b", "a"]
    assert aliases.root("nobody") == "nobody" and aliases.with_merged("nobody") == ["nobody"]
    assert aliases.alias("a") == alias("a", "b", 1) and aliases.alias("c") is None


def test_what_was_merged_later_does_not_count_before(aliases: Aliases) -> None:
    aliases.add(alias("a", "b", 1))
    aliases.add(alias("b", "c", 5))
    assert aliases.root("a", 4) == "b"
    assert aliases.root("a", 5) == "c"
    assert aliases.root("a", 0) == "a"
    assert aliases.with_merged("c", 4) == ["c"]


def test_relations_say_what_concerns_an_entity(aliases: Aliases) -> None:
    aliases.add(alias("a", "b"))
    aliases.move([moved("o", "p", "q")])
    assert aliases.relations("a") == Relations(True, False, False)
    assert aliases.relations("b") == Relations(False, True, False)
    assert aliases.relations("p") == aliases.relations("q") == Relations(False, False, True)
    assert not any(aliases.relations("z"))
    aliases.remove("a")
    assert not any(aliases.relations("a")) and not any(aliases.relations("b"))


def test_an_observation_is_about_the_last_entity_that_it_was_moved_to(aliases: Aliases) -> None:
    aliases.move([moved("o", "a", "b"), moved("p", "a", "b")])
    aliases.move([moved("o", "a", "c")])
    assert {(row.observation_id, row.into_id) for row in aliases.moved(["a"])} == {("o", "c"), ("p", "b")}
    assert [row.observation_id for row in aliases.moved(["b"])] == ["p"]
    aliases.move_back([("o", "a")])
    assert aliases.moved(["c"]) == []
