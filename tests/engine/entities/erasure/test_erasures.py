"""Entities that are erased: nothing that the server keeps anywhere holds their data any more."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from headrace.config import StorageConfig
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.entities.erasure import erasures
from headrace.engine.entities.erasure.erasures import is_over
from headrace.engine.entities.read.snapshots import EntityQuery
from headrace.engine.entities.types.journal import load
from headrace.engine.entities.write.relations import Moved, split_target
from headrace.engine.history.takeover import recover_directory
from headrace.engine.history.verify import verify
from headrace.engine.products import JOURNALS
from headrace.errors import Conflict, EntityNotFound, NotFound
from headrace.pipeline.kernels import erase as erase_kernel
from headrace.pipeline.kernels.units import result
from headrace.reduce.work_units import Result
from headrace.schema.entity.observation import decode
from headrace.server.routes.work import store_url
from headrace.storage import database
from headrace.storage.background_requests import ErasureRow
from headrace.storage.journals import EntityChanges
from support.entity_rig import USER, Entities, contact
from support.s3 import S3

MARKER = "xyzzy-canary-4711"
TOLD = {"name": f"{MARKER} name", "odd": f"{MARKER} fragment"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasures, "GRACE_S", 0.0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Entities]:
    with Entities(tmp_path / "data") as rig:
        rig.register_type(contact())
        yield rig


async def ended(rig: Entities, id: str, user: str = USER) -> ErasureRow:
    async with asyncio.timeout(30):
        while not is_over(found := rig.engine.erasure.find(id, user)):
            await asyncio.sleep(0.01)
    return found


async def erase(rig: Entities, entity_id: str, user: str = USER) -> ErasureRow:
    return await ended(rig, (await rig.engine.erasure.begin(entity_id, user)).id, user)


def holding(directory: Path, *texts: str | bytes) -> list[str]:
    """The files below a directory that hold one of some texts, as they stand or in the columns of a Parquet file."""
    sought = [text.encode() if isinstance(text, str) else text for text in texts or (MARKER,)]
    found: list[str] = []
    for path in sorted(directory.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        if path.suffix == ".parquet":
            data += repr(pq.read_table(path).to_pylist()).encode()
        if any(text in data for text in sought):
            found.append(str(path.relative_to(directory)))
    return found


def noise() -> list[str]:
    """Values that take some pages of the database, however they are packed."""
    return [sha256(str(number).encode()).hexdigest() for number in range(1_000)]


def settle(directory: Path) -> None:
    """Let the database itself hold everything, pages that are unused by now included."""
    assert database.truncate(directory / "data" / "headrace.db")


def pieces(rig: Entities) -> list[bytes]:
    """Pieces of large rows of the log as they are stored, by which they are known again."""
    rows = rig.engine._reader.execute("SELECT body FROM wal WHERE length(body) > 10000")
    return [bytes(row[0])[at : at + 32] for row in rows for at in range(20, len(row[0]) - 32, 4096)]


def filled(rig: Entities, *, parts: int = 3, **more: Any) -> tuple[str, list[str]]:
    """One entity that is to go among others, in segments, states and the log; answers its id and theirs."""
    others: list[str] = []
    gone = ""
    for part in range(parts):
        gone = rig.said("gone@x.io", phone=f"{MARKER} {part}", **TOLD, **more)
        others += [rig.said(f"{part}-{number}@x.io", name=f"n{number}", odd=number) for number in range(5)]
        if part < parts - 1:
            rig.seal_type()
            rig.work()
    return gone, others


def told(rig: Entities, ids: list[str]) -> list[Any]:
    return [rig.shown(one).snapshot for one in ids]


def test_nothing_holds_the_data_of_an_entity_that_was_erased(rig: Entities, tmp_path: Path) -> None:
    gone, others = filled(rig)
    before, bodies = told(rig, others), rig.read("entities/contact")
    settle(tmp_path)
    assert {path.split("/")[1] for path in holding(tmp_path)} >= {"headrace.db", "objects", "cache"}
    found = rig.run(erase(rig, gone))
    assert found.state == "done" and holding(tmp_path) == []
    with pytest.raises(EntityNotFound):
        rig.shown(gone)
    assert told(rig, others) == before
    after = rig.read("entities/contact")
    assert [len(one) for one in after] == [len(one) for one in bodies]
    changed = [one for one, other in zip(after, bodies, strict=True) if one != other]
    assert [decode(one).kind for one in changed] == ["erased"] * 3
    rig.reopen()
    assert holding(tmp_path) == [] and told(rig, others) == before
    rig.seal_type()
    assert rig.work() and rig.states_of() and told(rig, others) == before
    assert holding(tmp_path) == []
    reports = list(verify(rig.engine.objects, JOURNALS))
    assert reports and not [damage for report in reports for damage in report.damage]


def test_pages_that_are_unused_are_overwritten(rig: Entities, tmp_path: Path) -> None:
    gone, _ = filled(rig, parts=1, tags=noise())
    marks = pieces(rig)
    settle(tmp_path)
    rig.seal_type()  # the rows of the log go, and their pages are unused
    settle(tmp_path)
    assert marks and "data/headrace.db" in holding(tmp_path, *marks)
    rig.run(erase(rig, gone))
    assert holding(tmp_path, MARKER, *marks) == []


def test_a_plan_tells_what_would_go_and_changes_nothing(rig: Entities) -> None:
    gone, _ = filled(rig)
    plan = rig.run(rig.engine.erasure.plan(gone, USER))
    assert plan.ids == [gone]
    assert plan.observations == 3
    assert plan.log_rows == 1
    assert sum(held.observations for held in plan.segments) == 2
    assert all(held.bytes > 0 for held in (*plan.segments, *plan.states)) and plan.states
    assert len(plan.sources) == 3
    assert rig.snapshot(gone)["name"] == TOLD["name"]


def test_what_comes_after_an_erasure_is_another_entity(rig: Entities) -> None:
    gone, _ = filled(rig)

    async def scenario() -> str:
        return (await rig.engine.erasure.begin(gone, USER)).id

    rig.engine.erasure._loop.stopping.set()  # nothing is removed yet
    id = rig.run(scenario())
    with pytest.raises(EntityNotFound):
        rig.shown(gone)
    assert rig.said("gone@x.io", score=7) == gone
    assert rig.snapshot(gone) == {"email": "gone@x.io", "score": 7}
    assert rig.shown(gone).snapshot.observation_count == 1  # type: ignore[union-attr]
    rig.reopen()
    assert rig.run(ended(rig, id)).state == "done"
    assert rig.snapshot(gone) == {"email": "gone@x.io", "score": 7}
    again = rig.store({"entity_type": "contact", "email": "gone@x.io", "phone": f"{MARKER} 1", **TOLD})
    assert again[0]["action"] == "updated" and rig.snapshot(gone)["phone"] == f"{MARKER} 1"


def test_an_observation_that_was_erased_can_be_stored_again(rig: Entities) -> None:
    entity = {"entity_type": "contact", "email": "gone@x.io", **TOLD}
    first = rig.store(entity, idempotency_key="k1")
    assert rig.store(entity, idempotency_key="k1") == first
    rig.run(erase(rig, first[0]["entity_id"]))
    again = rig.store(entity, idempotency_key="k1")
    assert again == first and again[0]["action"] == "created"
    assert rig.snapshot(again[0]["entity_id"])["name"] == TOLD["name"]


def test_what_was_merged_goes_too_and_what_it_was_merged_into_stays(rig: Entities, tmp_path: Path) -> None:
    gone, _ = filled(rig)
    other, root = rig.said("other@x.io", phone=MARKER), rig.said("root@x.io", name="root")
    rig.run(rig.engine.entity_relations.merge(USER, other, gone))
    rig.run(rig.engine.entity_relations.merge(USER, gone, root))
    assert MARKER in str(rig.snapshot(root))
    assert rig.run(rig.engine.erasure.plan(gone, USER)).ids == [gone, other]
    rig.run(erase(rig, gone))
    assert holding(tmp_path) == [] and rig.snapshot(root) == {"email": "root@x.io", "name": "root"}
    with pytest.raises(EntityNotFound):
        rig.shown(other)


def test_the_entities_of_others_are_not_there(rig: Entities) -> None:
    gone, _ = filled(rig, parts=1)
    with pytest.raises(EntityNotFound):
        rig.run(rig.engine.erasure.begin(gone, "someone"))
    found = rig.run(erase(rig, gone))
    with pytest.raises(NotFound):
        rig.engine.erasure.find(found.id, "someone")


def test_a_source_says_that_something_of_it_is_missing(rig: Entities) -> None:
    stored = rig.store(
        {"entity_type": "contact", "email": "gone@x.io", **TOLD}, {"entity_type": "contact", "email": "kept@x.io"}
    )
    alone = rig.store({"entity_type": "contact", "email": "gone@x.io", "score": 1})
    sources = rig.engine._reader.execute("SELECT source_id FROM sources ORDER BY first_seq").fetchall()
    rig.run(erase(rig, stored[0]["entity_id"]))
    assert alone[0]["entity_id"] == stored[0]["entity_id"]
    sourcing = rig.engine.source_reader
    source = sourcing.read(USER, sources[0][0], sourcing.find_parts(USER, sources[0][0]))
    assert not source.complete and [one["email"] for one in source.entities] == ["kept@x.io"]
    with pytest.raises(NotFound):
        sourcing.find_parts(USER, sources[1][0])


def test_the_name_of_a_source_goes_with_its_last_observation(rig: Entities, tmp_path: Path) -> None:
    alone, shared = f"crm of {MARKER}", "crm-a"
    rows = [{"entity_type": "contact", "email": email} for email in ("gone@x.io", "kept@x.io")]
    [gone] = rig.store(rows[0], source=alone)
    rig.store(*rows, source=shared)
    rig.seal_type()
    sources = rig.engine.source_reader
    assert sources.require(USER, alone) == alone
    rig.run(erase(rig, gone["entity_id"]))
    with pytest.raises(NotFound):
        sources.require(USER, alone)
    assert sources.require(USER, shared) == shared
    assert [entity["email"] for entity in sources.read(USER, shared, sources.find_parts(USER, shared)).entities] == [
        "kept@x.io"
    ]
    rig.reopen()
    with pytest.raises(NotFound):
        rig.engine.source_reader.require(USER, alone)
    assert holding(tmp_path / "data") == []


def test_a_recovery_from_the_store_alone_does_not_bring_it_back(rig: Entities, tmp_path: Path) -> None:
    gone, others = filled(rig)
    before = told(rig, others)
    rig.run(erase(rig, gone))
    rig.seal_type()
    shutil.copytree(tmp_path / "data" / "objects", tmp_path / "store")
    copied = StorageConfig(data_dir=str(tmp_path / "copy"), object_store=str(tmp_path / "store"))
    recover_directory(copied, rig.clock, journals=JOURNALS)
    with Entities(tmp_path / "copy", storage={"object_store": str(tmp_path / "store")}) as copy:
        assert told(copy, others) == before and holding(tmp_path) == []
        with pytest.raises(EntityNotFound):
            copy.shown(gone)


@pytest.mark.parametrize("again", [False, True], ids=["gone for good", "observed again"])
def test_what_was_moved_from_it_does_not_bring_it_back_in_a_recovery(
    rig: Entities, tmp_path: Path, again: bool
) -> None:
    gone = rig.said("gone@x.io", name=MARKER)
    moved = rig.store({"entity_type": "contact", "email": "gone@x.io", "phone": "moved"})[0]["observation_id"]
    view = rig.engine.snapshots.view(EntityQuery(gone, USER))
    rig.run(rig.engine.entity_relations.split(USER, gone, split_target(view, "another"), [Moved(moved, gone, gone)]))
    into = split_target(view, "another").entity_id
    before = told(rig, [into])
    rig.run(erase(rig, gone))
    if again:
        assert rig.said("gone@x.io", name="newer") == gone
    rig.seal_type()
    shutil.copytree(tmp_path / "data" / "objects", tmp_path / "store")
    copied = StorageConfig(data_dir=str(tmp_path / "copy"), object_store=str(tmp_path / "store"))
    recover_directory(copied, rig.clock, journals=JOURNALS)
    with Entities(tmp_path / "copy", storage={"object_store": str(tmp_path / "store")}) as copy:
        assert told(copy, [into]) == before
        assert set(copy.rows()) == ({into, gone} if again else {into})
        if again:
            assert copy.snapshot(gone) == rig.snapshot(gone) == {"email": "gone@x.io", "name": "newer"}
        else:
            with pytest.raises(EntityNotFound):
                copy.shown(gone)


def test_an_entity_that_a_fork_holds_is_not_erased_before_the_fork_is_gone(rig: Entities, tmp_path: Path) -> None:
    gone, others = filled(rig)
    before = told(rig, [gone, *others])
    rig.fork("entities/contact", "copy", rig.find("entities/contact").head.next_seq)
    for refused in (rig.engine.erasure.plan(gone, USER), rig.engine.erasure.begin(gone, USER)):
        with pytest.raises(Conflict) as caught:
            rig.run(refused)
        assert caught.value.facts["forks"] == ["copy"]
    assert told(rig, [gone, *others]) == before
    rig.delete("copy")
    assert rig.run(erase(rig, gone)).state == "done" and holding(tmp_path) == []


def test_observations_that_were_moved_go_with_the_entity_that_they_are_about(rig: Entities, tmp_path: Path) -> None:
    kept = rig.said("kept@x.io", name="kept")
    moved = rig.store({"entity_type": "contact", "email": "kept@x.io", "phone": MARKER})[0]["observation_id"]
    into = rig.said("into@x.io", name="into")
    rig.seal_type()
    view = rig.engine.snapshots.view
    row = view(EntityQuery(into, USER)).group.row
    rig.run(rig.engine.entity_relations.split(USER, kept, row, [Moved(moved, kept, kept)]))
    assert rig.snapshot(into)["phone"] == MARKER
    rig.run(erase(rig, into))
    assert holding(tmp_path) == [] and rig.snapshot(kept) == {"email": "kept@x.io", "name": "kept"}


def test_workers_rewrite_segments_where_there_is_much_of_them(rig: Entities, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(erasures, "OFFER_BYTES", 0)
    gone, others = filled(rig)
    before = told(rig, others)

    async def offered() -> tuple[str, Grant]:
        id = (await rig.engine.erasure.begin(gone, USER)).id
        async with asyncio.timeout(10):
            while rig.engine.erasure.find(id, USER).step != "offered":
                await asyncio.sleep(0.01)
        granted = await rig.engine.work.lease("tests", 10)
        assert granted is not None
        return id, granted

    id, granted = rig.run(offered())
    assert granted.units and all(unit.job == "erase" for unit in granted.units)  # nothing else is made meanwhile
    store = store_url(rig.engine.objects, rig.config.storage.object_store)
    made = [result(erase_kernel.perform, msgspec.json.encode(unit), store) for unit in granted.units]
    results = [msgspec.convert(msgspec.to_builtins(one), Result) for one in made]

    async def committed() -> ErasureRow:
        settled = await rig.engine.work.commit(granted.lease.id, granted.lease.token, results)
        assert [one.outcome for one in settled.settled] == ["committed"] * len(results)
        return await ended(rig, id)

    found = rig.run(committed())
    report = msgspec.json.decode(found.report, type=erasures.ErasureReport)
    assert sorted(report.rewritten.values()) == sorted(one.segment.name for one in results if one.segment is not None)
    assert holding(tmp_path) == [] and told(rig, others) == before


def test_what_was_made_of_data_that_is_erased_does_not_count(rig: Entities, tmp_path: Path) -> None:
    gone, _ = filled(rig)
    rig.seal_type()
    granted = rig.run(rig.engine.work.lease("tests", 10, ("snapshots", "index")))
    assert granted is not None and granted.units
    made = rig.performed(granted)
    rig.run(erase(rig, gone))
    settled = rig.run(rig.engine.work.commit(granted.lease.id, granted.lease.token, made)).settled
    assert {one.outcome for one in settled} <= {"dropped", "failed", "gone"}
    rig.clock.us += 120_000_000
    rig.clear()
    assert holding(tmp_path) == []


def test_a_store_elsewhere_and_what_was_fetched_from_it_hold_nothing_either(bucket: S3, tmp_path: Path) -> None:
    with Entities(tmp_path / "data", storage={"object_store": bucket.url}) as rig:
        rig.register_type(contact())
        gone, others = filled(rig)
        before = told(rig, others)
        assert rig.snapshot(gone)["name"] == TOLD["name"]
        rig.ready()
        assert {path.split("/")[2] for path in holding(tmp_path) if "cache" in path} >= {"states"}
        rig.run(erase(rig, gone))
        assert told(rig, others) == before
        rig.ready()
        assert holding(tmp_path) == []
        for info in [*rig.engine.objects.list("segments"), *rig.engine.objects.list("states")]:
            path = tmp_path / "fetched.parquet"
            path.write_bytes(rig.engine.objects.get(info.key))
            assert holding(tmp_path) == [], info.key


def test_a_recovery_goes_on_with_an_erasure_that_was_not_over(rig: Entities, tmp_path: Path) -> None:
    gone, others = filled(rig)
    rig.seal_type()
    before = told(rig, others)
    rig.engine.erasure._loop.stopping.set()  # nothing is removed yet
    id = rig.run(rig.engine.erasure.begin(gone, USER)).id
    rig.run(rig.engine.sealer.publish_journals())
    shutil.copytree(tmp_path / "data" / "objects", tmp_path / "store")
    assert any("segments" in path for path in holding(tmp_path / "store"))
    with Entities(tmp_path / "copy", storage={"object_store": str(tmp_path / "store")}) as copy:
        with pytest.raises(EntityNotFound):
            copy.shown(gone)
        assert copy.run(ended(copy, id)).state == "done"
        assert holding(tmp_path / "store") == holding(tmp_path / "copy") == []
        assert told(copy, others) == before
        with pytest.raises(EntityNotFound):
            copy.shown(gone)


def test_types_change_as_ever_after_an_erasure(rig: Entities) -> None:
    gone, others = filled(rig)
    rig.run(erase(rig, gone))
    rig.register_type(contact("2.0.0", {}))
    assert rig.snapshot(others[0])["name"] == "n0"
    history = [load(row).action for row in EntityChanges(rig.engine._reader).all()]
    assert history == ["register", "erase", "erased", "register"]
