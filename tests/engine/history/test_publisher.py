from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.history.sealer import GRACE_S
from headrace.errors import CorruptData, Fenced, Gone, NotFound
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.object_names import companion_key
from headrace.storage.objects import StoreUnavailable
from headrace.types import OCTETS
from storage.test_companion_files import made
from support.disturbed_store import Call, Fault, disturb
from support.engine_rig import Rig
from support.machines import take_over
from support.stored_objects import generations, keys, manifest, open_files, placed, rows, spans

HOUR_US = 3600 * 1_000_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.objects._PAUSE_S", 0.0)


@pytest.mark.parametrize("far", [False, True], ids=["directory", "service"])
@pytest.mark.parametrize("verb", ["upload", "create"])
@pytest.mark.parametrize("fault", ["refuse", "lose", "halve"])
def test_what_could_not_be_published_is_published_the_next_time(rig: Rig, far: bool, verb: str, fault: Fault) -> None:
    rig.create("s", OCTETS, b"a")
    rig.publish("s")
    rig.append("s", b"b")
    store = disturb(rig.engine.objects, far=far)
    store.plan = lambda call: fault if call.verb == verb else ("refuse" if call.verb == "get" else None)
    with pytest.raises(StoreUnavailable):
        rig.publish("s")
    assert spans(rig, "s") == [(0, 1)]
    assert rows(rig) == 1
    assert list((Path(rig.config.storage.data_dir) / "sealing").iterdir()) == []
    store.plan = lambda _: None
    assert rig.read("s") == [b"a", b"b"]
    rig.publish("s")
    assert spans(rig, "s") == [(0, 2)]
    assert rig.read("s") == [b"ab"]
    rig.reopen()
    assert rig.read("s") == [b"ab"]


@pytest.mark.parametrize("far", [False, True], ids=["directory", "service"])
@pytest.mark.parametrize("fault", ["refuse", "lose", "halve"])
def test_an_upload_is_repeated_while_the_store_takes_others(tmp_path: Path, far: bool, fault: Fault) -> None:
    with Rig(tmp_path, storage={"seal_rows": 2}) as rig:
        rig.create("s", OCTETS)
        for _ in range(6):
            rig.append("s", b"a")
        store, keys = disturb(rig.engine.objects, far=far), list[str]()

        def fail_often(call: Call) -> Fault | None:
            if call.verb == "upload":
                keys.append(call.key)
            return fault if call.verb == "upload" and len(set(keys)) == 2 and keys.count(call.key) < 3 else None

        store.plan = fail_often
        rig.publish("s")
        assert [keys.count(key) for key in dict.fromkeys(keys)] == [1, 3, 1]
        assert spans(rig, "s") == [(0, 2), (2, 4), (4, 6)]
        assert b"".join(rig.read("s")) == b"a" * 6


def test_a_store_that_takes_nothing_is_asked_once(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    store, uploads = disturb(rig.engine.objects), list[str]()

    def refuse(call: Call) -> Fault | None:
        if call.verb != "upload":
            return None
        uploads.append(call.key)
        return "refuse"

    store.plan = refuse
    with pytest.raises(StoreUnavailable):
        rig.publish("s")
    assert len(uploads) == 1


def test_a_lost_answer_to_the_manifest_is_no_failure(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    store, faults = disturb(rig.engine.objects), ["lose"]
    store.plan = lambda call: faults.pop() if call.verb == "create" and faults else None  # type: ignore[return-value]
    rig.publish("s")
    assert generations(rig, "s") == [1]
    assert manifest(rig, "s").published_seq == 1


def test_a_generation_that_was_never_made_known_is_skipped(rig: Rig) -> None:
    stream = rig.create("s", OCTETS, b"a")
    rig.publish("s")
    rig.engine.objects.put(object_names.manifest_key("s", stream.incarnation, 2), b"written, and never committed")
    rig.append("s", b"b")
    rig.publish("s")
    assert generations(rig, "s") == [3, 2, 1]
    assert manifest(rig, "s").published_seq == 2
    rig.append("s", b"c")
    rig.publish("s")
    assert generations(rig, "s") == [4, 3, 2, 1]
    rig.clock.us += HOUR_US
    rig.clear()
    assert generations(rig, "s") == [4]


def test_manifests_that_a_lost_node_left_behind_are_found_once_they_are_old(rig: Rig, tmp_path: Path) -> None:
    rig.create("s", OCTETS, b"a")
    for _ in range(3):
        rig.publish("s")
    store = str(tmp_path / "objects")
    with Rig(tmp_path / "fresh", storage={"object_store": store}) as fresh:
        publisher = fresh.engine.sealer.publisher
        assert publisher.orphans(0) == []
        old = [object_names.manifest_key("s", fresh.find("s").incarnation, number) for number in (1, 2)]
        assert publisher.orphans(1 << 60) == old


def test_segments_are_in_the_store_before_the_manifest_and_rows_stay_until_it_is_there(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    store, seen = disturb(rig.engine.objects), []

    def before(call: Call) -> None:
        seen.append((call.verb, call.key.partition("/")[0], rows(rig)))

    store.before = before
    rig.publish("s")
    checked = ("head", "nodes", 1)
    assert seen == [("upload", "segments", 1), checked, ("create", "manifests", 1), checked]


def test_who_is_replaced_while_the_manifest_is_created_keeps_the_rows(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.publish("s")
    rig.append("s", b"b")
    store = disturb(rig.engine.objects)

    def replace(call: Call) -> None:
        if call.verb == "create" and call.key.startswith(object_names.MANIFESTS):
            take_over(rig.engine.objects)

    store.before = replace
    with pytest.raises(Fenced):
        rig.publish("s")
    assert spans(rig, "s") == [(0, 1)]
    assert rows(rig) == 1


def test_a_service_is_asked_for_nothing_that_was_just_sent_there(rig: Rig) -> None:
    store = disturb(rig.engine.objects, far=True)
    rig.create("s", OCTETS, b"a")
    for body in (b"b", b"c"):
        rig.append("s", body)
        rig.publish("s")
    assert rig.read("s") == [b"abc"]
    assert {call.verb for call in store.calls} == {"upload", "head", "create"}


def test_a_damaged_segment_is_named_and_nothing_is_lost(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.publish("s")
    rig.append("s", b"b")
    [one] = placed(rig, "s")
    rig.engine.objects.put(one.key, b"damaged")
    with pytest.raises(CorruptData, match=one.key):
        rig.read("s")
    rig.publish("s")
    assert spans(rig, "s") == [(0, 1), (1, 2)]
    assert rig.read("s", 1) == [b"b"]


def test_what_a_crash_left_behind_is_found_once_it_is_old(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.append("s", b"b")
    store = disturb(rig.engine.objects)
    store.plan = lambda call: "refuse" if call.verb in ("create", "get") else None
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            rig.publish("s")
    store.plan = lambda _: None
    rig.publish("s")
    [one] = placed(rig, "s")
    assert len(keys(rig.engine.objects, "segments")) == 3
    publisher = rig.engine.sealer.publisher
    assert publisher.orphans(0) == []
    orphans = publisher.orphans(1 << 60)
    assert sorted([*orphans, one.key]) == keys(rig.engine.objects, "segments")


def test_segments_of_streams_that_are_not_known_here_are_no_orphans(rig: Rig) -> None:
    rig.engine.objects.put(object_names.segment_key("other", "77", object_names.segment_name(0, 1, "x")), b"theirs")
    rig.create("s", OCTETS, b"a")
    rig.publish("s")
    assert rig.engine.sealer.publisher.orphans(1 << 60) == []


GRACE_US = int(GRACE_S * 1e6)


def _objects(rig: Rig, name: str) -> list[str]:
    """The objects of all lives of a stream."""
    place = object_names.name_hash(name)
    return keys(rig.engine.objects, f"manifests/{place}") + keys(rig.engine.objects, f"segments/{place}")


def test_what_was_replaced_goes_after_a_while(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.publish("s")
    before = _objects(rig, "s")
    rig.append("s", b"b")
    rig.publish("s")
    rig.clock.us += GRACE_US - 1
    rig.clear()
    assert set(before) < set(_objects(rig, "s"))
    rig.clock.us += 1
    rig.clear()
    [one] = placed(rig, "s")
    assert _objects(rig, "s") == [object_names.manifest_key("s", rig.find("s").incarnation, 2), one.key]
    assert rows(rig, "leftovers") == 0
    assert rig.read("s") == [b"ab"]


def test_segments_that_retention_let_go_are_removed(tmp_path: Path) -> None:
    with Rig(tmp_path / "cut", storage={"seal_bytes": 4}) as rig:
        rig.create("s", OCTETS)
        for body in (b"aaaa", b"bbbb", b"cccc"):
            rig.append("s", body)
        rig.publish("s")
        rig.retain("s", size=4)
        rig.publish("s")
        rig.clock.us += GRACE_US
        rig.clear()
        assert len(keys(rig.engine.objects, "segments")) == 1
        assert rig.read("s", 2) == [b"cccc"]


def test_a_deleted_stream_leaves_nothing_behind(rig: Rig) -> None:
    for name in ("s", "other"):
        rig.create(name, OCTETS, b"a")
        rig.publish(name)
        rig.append(name, b"b")
        rig.publish(name)
    others = _objects(rig, "other")
    rig.delete("s")
    rig.clear()
    assert _objects(rig, "s") == []
    assert _objects(rig, "other") == others
    assert rows(rig, "graves") == 0
    assert len(rig.engine.published.leftovers(1 << 60, 10)) == 2  # those of the other one


def test_removed_files_are_not_kept_open(rig: Rig, tmp_path: Path) -> None:
    rig.create("s", OCTETS, b"a")
    rig.publish("s")
    assert rig.read("s") == [b"a"]
    stream = rig.find("s")
    place = rig.engine.objects.local_path(companion_key("s", stream.incarnation, "0-0-0", "columns"))
    assert place is not None
    companion = made(place.parent, stream="s", incarnation=stream.incarnation)
    files = rig.engine.caches.archive().files
    with files.open("s", stream.incarnation, companion, list(companion.parts)) as found:
        assert found.rows_with_prefix("f", "").tolist() == [0]
    del found
    assert len(open_files(tmp_path / "objects")) == 3
    rig.delete("s")
    rig.clear()
    assert not open_files(tmp_path / "objects")


def test_an_expired_stream_leaves_nothing_behind(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a", ttl_s=1)
    rig.publish("s")
    rig.clock.us += 2_000_000
    rig.sweep()
    rig.clear()
    assert _objects(rig, "s") == []


def test_a_stream_counts_as_deleted_from_the_first_moment_on(rig: Rig) -> None:
    stream = rig.create("s", OCTETS, b"a")
    rig.publish("s")
    rig.delete("s")
    seen: list[str] = []

    def before(call: Call) -> None:
        if call.verb == "delete":
            key = object_names.manifest_key("s", stream.incarnation, generations(rig, "s")[0])
            seen.append(manifests.decode((tmp / key).read_bytes(), key).state)

    tmp = Path(rig.config.storage.data_dir) / "objects"
    disturb(rig.engine.objects).before = before
    rig.clear()
    assert len(seen) == 3 and set(seen) == {"deleted"}


@pytest.mark.parametrize("step", range(6))
def test_a_burial_that_failed_is_finished_the_next_time(rig: Rig, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.objects._PAUSE_S", 0.0)
    rig.create("s", OCTETS, b"a")
    rig.publish("s")
    rig.delete("s")
    store, left = disturb(rig.engine.objects), [None] * step

    def fail_from_step_on(_: Call) -> str | None:
        return left.pop() if left else "halve"

    store.plan = fail_from_step_on  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable):
        rig.clear()
    store.plan = lambda _: None
    rig.reopen()
    rig.clear()
    assert _objects(rig, "s") == []
    assert rows(rig, "graves") == 0


def test_a_name_created_anew_does_not_see_what_its_predecessor_left(rig: Rig) -> None:
    first = rig.create("s", OCTETS, b"old")
    rig.publish("s")
    rig.delete("s")
    second = rig.create("s", OCTETS)
    assert second.incarnation != first.incarnation
    assert rig.read("s") == []
    rig.append("s", b"new")
    rig.publish("s")
    assert {object_names.parse_segment_key(key)[0][1] for key in keys(rig.engine.objects, "segments")} == {  # type: ignore[index]
        first.incarnation,
        second.incarnation,
    }
    rig.clear()
    [one] = placed(rig, "s")
    assert _objects(rig, "s") == [object_names.manifest_key("s", second.incarnation, 1), one.key]
    assert rig.read("s") == [b"new"]
    rig.reopen()
    assert rig.read("s") == [b"new"]


def test_what_a_living_fork_reads_outlives_its_source(rig: Rig) -> None:
    rig.create("s", OCTETS, b"a")
    rig.append("s", b"b")
    rig.publish("s")
    rig.fork("s", "fork", 2)
    rig.fork("fork", "leaf", 1)
    rig.delete("s")
    rig.delete("fork")
    for name in ("s", "fork"):
        rig.publish(name)
    rig.clock.us += GRACE_US
    rig.clear()
    rig.reopen()
    assert rig.read("leaf") == [b"a"]
    with pytest.raises(Gone):
        rig.find("s")
    rig.delete("leaf")
    rig.sweep()
    rig.clear()
    with pytest.raises(NotFound):
        rig.find("s")
    assert keys(rig.engine.objects, "segments") == keys(rig.engine.objects, "manifests") == []


def test_a_stream_that_was_never_made_known_leaves_nothing_behind_either(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.objects._PAUSE_S", 0.0)
    rig.create("s", OCTETS, b"a")
    store = disturb(rig.engine.objects)
    store.plan = lambda call: "lose" if call.verb == "create" else ("refuse" if call.verb == "get" else None)
    with pytest.raises(StoreUnavailable):
        rig.publish("s")
    store.plan = lambda _: None
    assert manifest(rig, "s").state == "live"  # it is there, although nobody was told
    rig.delete("s")
    rig.clear()
    assert _objects(rig, "s") == []
