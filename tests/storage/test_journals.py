from __future__ import annotations

from pathlib import Path

import pytest

from headrace.storage import database
from headrace.storage.journals import EntityChangeRow, EntityChanges, FeatureRegistry, FeatureRegistryRow


@pytest.fixture
def connection(tmp_path: Path) -> database.Connection:
    connection = database.connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    database.migrate(connection)
    return connection


@pytest.fixture
def registry(connection: database.Connection) -> FeatureRegistry:
    return FeatureRegistry(connection)


def row(version: int) -> FeatureRegistryRow:
    return FeatureRegistryRow(version, 10 * version, "ada", "default", "{}")


def test_the_newest_version_counts_and_all_are_kept(registry: FeatureRegistry) -> None:
    assert registry.newest() is None
    for version in (1, 2, 3):
        registry.save(row(version))
    assert registry.newest() == row(3)
    assert registry.get(2) == row(2)
    assert registry.get(9) is None
    assert list(registry.all()) == [row(1), row(2), row(3)]
    assert registry.page(1, 10) == [row(2), row(3)]
    assert registry.page(0, 1) == [row(1)]


def test_versions_wait_until_the_store_has_them(registry: FeatureRegistry) -> None:
    registry.save(row(1), published=True)
    for version in (2, 3, 4):
        registry.save(row(version))
    assert registry.unpublished(0, 2) == [row(2), row(3)]
    registry.note_published(3)
    assert registry.unpublished(0, 9) == [row(4)]


def test_the_oldest_versions_are_dropped(registry: FeatureRegistry) -> None:
    for version in (1, 2, 3):
        registry.save(row(version))
    assert registry.drop_before(3) == [1, 2]
    assert registry.drop_before(3) == []
    assert registry.page(0, 9) == [row(3)]


def test_what_follows_another_history_is_dropped(registry: FeatureRegistry) -> None:
    for version in (1, 2, 3):
        registry.save(row(version))
    registry.drop_from(2)
    assert registry.newest() == row(1)


def test_changes_are_paged_by_who_may_see_them(connection: database.Connection) -> None:
    changes = EntityChanges(connection)
    rows = [EntityChangeRow(n, "contact", user, n, "w", "{}") for n, user in ((1, ""), (2, "u"), (3, "v"), (4, ""))]
    for change in rows:
        changes.save(change)
    changes.save(EntityChangeRow(5, "task", "", 5, "w", "{}"))
    assert changes.newest() == 5
    assert changes.newest_of("contact") == 4
    assert changes.newest_of("nobody") == 0
    assert [change.number for change in changes.page_of("contact", "u", 0, 10)] == [1, 2, 4]
    assert [change.number for change in changes.page_of("contact", "u", 1, 1)] == [2]
    changes.note_published(3)
    assert [change.number for change in changes.unpublished(0, 10)] == [4, 5]
    changes.note_published(5)
    assert not changes.unpublished(0, 1)
    changes.drop_from(4)
    assert [change.number for change in changes.all()] == [1, 2, 3]
