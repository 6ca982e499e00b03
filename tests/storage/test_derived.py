from __future__ import annotations

from pathlib import Path

import pytest

from headrace.format.companion.layout import Companion, PartFile
from headrace.format.object_names import range_name
from headrace.storage import database
from headrace.storage.derived import Companions, companion_object_keys
from headrace.storage.streams import DELETED, StreamRow, Streams
from headrace.storage.work import LeaseRow, UnitRow, Work


@pytest.fixture
def connection(tmp_path: Path) -> database.Connection:
    connection = database.connect(tmp_path / "log.db", cache_bytes=1 << 20)
    database.migrate(connection)
    for name, incarnation in (("s", "42"), ("t", "43")):
        row = StreamRow(name=name, content_type="x/y", created_us=5, epochs="[[42,0]]", incarnation=incarnation)
        Streams(connection).insert(row)
    return connection


@pytest.fixture
def companions(connection: database.Connection) -> Companions:
    return Companions(connection)


def companion(first: int, unique: str = "a", count: int = 10) -> Companion:
    return Companion(
        name=range_name(first, count, unique), first_seq=first, count=count, level=0, through_version=1,
        fields={"ü": "1"}, rollups={}, keys=True, columns=PartFile(1, "x"), postings=None, panes=PartFile(2, "y"),
        times=(-5, 5), segments=1, words={"ü": (1, 2)},
    )  # fmt: skip


def test_companions_come_back_as_they_were_in_the_order_of_entries(companions: Companions) -> None:
    given = [companion(10), companion(0), companion(0, "b")]
    for one in given:
        companions.add(1, one)
    companions.add(2, companion(5))
    assert companions.listed(1) == [given[1], given[2], given[0]]
    companions.add(1, given[0])
    assert len(companions.listed(1)) == 3


def test_those_that_count_no_more_are_kept_until_they_are_removed(companions: Companions) -> None:
    for first in (0, 10, 20):
        companions.add(1, companion(first))
    companions.retire(1, [companion(10).name])
    assert [one.first_seq for one in companions.listed(1)] == [0, 20]
    assert companions.retired(1) == [companion(10)]
    assert companions.has(1, companion(10).name)
    companions.remove(1, [companion(10).name])
    assert not companions.has(1, companion(10).name)
    companions.retire_all(1)
    assert companions.listed(1) == []
    companions.drop(1)
    assert companions.retired(1) == []


def test_the_stamp_changes_with_every_change(companions: Companions) -> None:
    seen = [companions.stamp(1)]
    companions.add(1, companion(0))
    seen.append(companions.stamp(1))
    companions.add(1, companion(10))
    seen.append(companions.stamp(1))
    companions.retire(1, [companion(0).name])
    companions.add(1, companion(0, "b"))
    seen.append(companions.stamp(1))
    companions.remove(1, [companion(0).name])
    seen.append(companions.stamp(1))
    companions.add(2, companion(0))
    assert companions.stamp(1) == seen[-1]
    assert len(set(seen)) == len(seen)


def test_an_orphan_is_what_a_living_stream_does_not_list_while_nobody_works_on_it(
    connection: database.Connection, companions: Companions
) -> None:
    companions.add(1, companion(0))
    assert not companions.is_orphan("42", companion(0).name)
    assert companions.is_orphan("42", companion(10).name)
    assert companions.is_orphan("43", companion(0).name)
    assert not companions.is_orphan("44", companion(0).name)
    work = Work(connection)
    work.grant(LeaseRow("l", 1, "w", 0, 10), [UnitRow("u", "l", 2, "index", 0, 10, "{}")])
    assert not companions.is_orphan("43", companion(0).name)
    work.end_unit("u", "gone", None)
    assert companions.is_orphan("43", companion(0).name)
    Streams(connection).update(2, state=DELETED)
    assert not companions.is_orphan("43", companion(0).name)


def test_a_companion_has_an_object_for_each_of_its_parts() -> None:
    keys = list(companion_object_keys("s", "42", [companion(0)]))
    assert [key.rpartition("/")[2] for key in keys] == [
        f"{companion(0).name}.columns.parquet",
        f"{companion(0).name}.panes.parquet",
    ]


def test_what_is_purged_with_a_stream(connection: database.Connection, companions: Companions) -> None:
    streams, work = Streams(connection), Work(connection)
    for stream in (1, 2):
        streams.update(stream, revision=1)
        companions.add(stream, companion(0))
        work.mark(stream, 5)
    streams.remove(1)
    streams.purge(100)
    assert companions.listed(1) == []
    assert [row.stream for row in work.due(10)] == [2]
    streams.empty(2)
    assert companions.listed(2) == [] and work.due(10) == []
