"""Entities in the order they came: found by id, and page by page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import InvalidCursor
from headrace.storage import database
from headrace.storage.entities import Entities, EntityRow, SourceRange, Sources


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[database.Connection]:
    opened = database.connect(tmp_path / "x.db", cache_bytes=1 << 20)
    database.migrate(opened)
    yield opened
    opened.close()


@pytest.fixture
def entities(connection: database.Connection) -> Entities:
    made = Entities(connection)
    made.save(1, "ann", 5, [("z", "t:z", 0), ("a", "t:a", 1)])
    made.save(2, "ann", 6, [("m", "u:m", 0)])
    made.save(1, "ben", 7, [("b", "t:b", 2)])
    made.save(1, "ann", 8, [("c", "t:c", 3), ("z", "other", 9)])
    return made


def ids(rows: list[EntityRow]) -> list[str]:
    return [row.entity_id for row in rows]


def test_an_entity_is_found_as_it_was_first_seen(entities: Entities) -> None:
    assert entities.find("z") == EntityRow("z", 1, "ann", "t:z", 0, 5)
    assert entities.find("x") is None and entities.existing(["a", "x", "m"]) == {"a", "m"}


def test_pages_go_on_after_an_entity_in_the_order_they_came(entities: Entities) -> None:
    assert ids(entities.page(1, "ann", "", 10)) == ["z", "a", "c"]
    assert ids(entities.page(1, "ann", "z", 1)) == ["a"]
    assert ids(entities.of_user("ann", "a", 10)) == ["m", "c"]
    assert ids(entities.of_stream(1, "", 3)) == ["z", "a", "c"] and ids(entities.of_stream(1, "c", 9)) == ["b"]
    with pytest.raises(InvalidCursor):
        entities.page(1, "ann", "gone", 10)


def test_entities_are_counted_and_dropped(entities: Entities) -> None:
    assert entities.count(1) == 4
    assert entities.count(1, "ann") == 3
    assert entities.count(2) == 1
    entities.drop(["z", "b"])
    assert entities.count(1) == 2
    assert entities.count(1, "ben") == 0


def test_ranges_of_a_source_come_in_the_order_they_were_stored(connection: database.Connection) -> None:
    sources = Sources(connection)
    ranges = [SourceRange(2, 0, 5, 10), SourceRange(1, 7, 1, 10), SourceRange(1, 0, 2, 9)]
    sources.save("ann", "s", ranges)
    sources.save("ben", "s", [SourceRange(1, 3, 1, 1)])
    assert sources.ranges("ann", "s") == [ranges[2], ranges[1], ranges[0]]
    assert sources.ranges("ann", "t") == []
