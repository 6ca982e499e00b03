from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.holdings import Holdings, cache_usage, companion_cache_bytes, holdings, published_until
from headrace.errors import CorruptData
from headrace.types import JSON
from support.engine_rig import START_US, Rig, array
from support.work_rig import Worker, listed, searched


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def held(rig: Rig, name: str) -> Holdings:
    return holdings(rig.engine, rig.find(name))


def until(rig: Rig, name: str) -> int:
    return published_until(rig.engine.published, rig.find(name))


def objects(rig: Rig, kind: str) -> list[Path]:
    return sorted((Path(rig.config.storage.data_dir) / "objects" / kind).rglob("*.*"))


def test_an_empty_stream_holds_nothing(rig: Rig) -> None:
    rig.create("a")
    found = held(rig, "a")
    assert found.published_until == 0
    assert found.segments == 0
    assert found.segment_bytes == 0
    assert found.manifest_bytes == 0
    assert found.cached_bytes == 0
    assert found.published_us == 0
    assert found.pending[1:3] == found.log[1:3] == (0, 0)
    assert found.updated_us == START_US


def test_what_is_appended_is_pending_until_it_is_published(rig: Rig) -> None:
    rig.create("a", JSON)
    rig.append("a", array(1, 2, 3))
    rig.clock.us += 1_000_000
    rig.append("a", array("four"))
    found = held(rig, "a")
    assert found.pending[1:3] == found.log[1:3] == (4, len(b'1,2,3"four"'))
    assert found.published_until == 0
    assert found.updated_us == START_US + 1_000_000
    rig.clock.us += 1_000_000
    rig.publish("a")
    rig.append("a", array(5))
    found = held(rig, "a")
    assert found.pending[1:3] == found.log[1:3] == (1, 1)
    assert found.published_until == 4
    assert found.segments == 1
    assert found.published_us == START_US + 2_000_000
    assert found.segment_bytes == sum(path.stat().st_size for path in objects(rig, "segments"))


def test_the_manifest_of_a_local_store_has_the_size_of_its_file(rig: Rig) -> None:
    rig.create("a")
    rig.publish("a")
    [manifest] = objects(rig, "manifests")
    assert held(rig, "a").manifest_bytes == manifest.stat().st_size > 0


def test_a_recovered_stream_knows_the_size_of_its_manifest(rig: Rig, tmp_path: Path) -> None:
    rig.create("a", body=b"entry")
    rig.append("a", close=True)
    rig.publish("a")
    [manifest] = objects(rig, "manifests")
    with Rig(tmp_path / "fresh", storage={"object_store": str(manifest.parents[3])}) as fresh:
        assert held(fresh, "a").manifest_bytes == manifest.stat().st_size


def test_entries_that_are_not_retained_are_not_pending(rig: Rig) -> None:
    rig.create("a")
    for body in (b"one", b"two", b"three"):
        rig.append("a", body)
    rig.retain("a", size=5)
    assert held(rig, "a").pending[1:3] == held(rig, "a").log[1:3] == (1, 5)


def test_a_fork_is_published_as_far_as_all_it_reads_is(rig: Rig) -> None:
    rig.create("source")
    for body in (b"one", b"two", b"three"):
        rig.append("source", body)
    rig.fork("source", "fork", 2)
    rig.append("fork", b"own")
    rig.fork("fork", "grandchild", 3)
    assert [until(rig, name) for name in ("source", "fork", "grandchild")] == [0, 0, 0]
    rig.publish("source")
    assert [until(rig, name) for name in ("source", "fork", "grandchild")] == [3, 2, 2]
    rig.publish("grandchild")
    assert [until(rig, name) for name in ("source", "fork", "grandchild")] == [3, 3, 3]
    rig.append("grandchild", b"new")
    assert until(rig, "grandchild") == 3
    assert held(rig, "grandchild").pending[1:3] == (1, 3)


def test_a_fork_holds_only_what_was_appended_to_it(rig: Rig) -> None:
    rig.create("source", body=b"inherited")
    rig.publish("source")
    rig.fork("source", "fork", 1)
    rig.append("fork", b"own")
    found = held(rig, "fork")
    assert found.segments == 0
    assert found.segment_bytes == 0
    assert found.pending[1:3] == found.log[1:3] == (1, 3)
    rig.publish("fork")
    assert held(rig, "fork").segments == 1
    assert held(rig, "fork").segment_bytes + held(rig, "source").segment_bytes == sum(
        path.stat().st_size for path in objects(rig, "segments")
    )


def test_segments_of_a_remote_store_are_counted_while_they_are_cached(tmp_path: Path) -> None:
    with Rig(tmp_path, storage={"object_store": "memory://", "segment_cache_bytes": 3_000}) as rig:
        rig.create("a", body=b"entry")
        assert cache_usage(rig.engine) is None
        rig.publish("a")
        found, usage = held(rig, "a"), cache_usage(rig.engine)
        assert usage is not None
        assert found.cached_bytes == found.segment_bytes == usage.bytes > 0
        [info] = rig.engine.objects.list("manifests")
        assert found.manifest_bytes == info.bytes > 0
        for number in range(5):
            rig.create(f"other{number}", body=b"entry")
            rig.publish(f"other{number}")
        assert held(rig, "a").cached_bytes == 0
        assert held(rig, "other4").cached_bytes > 0


def test_companions_of_a_remote_store_are_counted_while_they_are_cached(tmp_path: Path) -> None:
    storage = {"object_store": "memory://", "seal_rows": 10}
    with Rig(tmp_path, storage=storage, pipeline={"min_rows": 0}) as rig:
        searched(rig, "a", 10)
        Worker(rig).work()
        stream, (companion,) = rig.find("a"), listed(rig, "a")
        assert companion_cache_bytes(rig.engine, stream) == 0
        files = rig.engine.caches.archive().files
        with pytest.raises(CorruptData), files.open("a", stream.incarnation, companion, ["columns", "panes"]):
            pass
        assert companion.panes is not None
        assert companion_cache_bytes(rig.engine, stream) == companion.columns.bytes == companion.panes.bytes


def test_a_local_store_needs_no_cache(rig: Rig) -> None:
    rig.create("a", body=b"entry")
    rig.publish("a")
    assert rig.read("a") == [b"entry"]
    usage = cache_usage(rig.engine)
    assert usage is not None
    assert held(rig, "a").cached_bytes == 0
    assert usage.bytes == 0
    assert usage.fetches == 0
