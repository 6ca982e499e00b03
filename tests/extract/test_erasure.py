"""What is being erased is hidden from the commit on that begins it, also where a server stops before it has gone on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.config import StorageConfig
from headrace.engine.assembly import Engine
from headrace.engine.entities.erasure import commits
from headrace.engine.entities.erasure.erasures import is_over
from headrace.engine.history.takeover import recover_directory
from headrace.engine.log.lifecycle import run_change
from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.products import JOURNALS
from headrace.errors import EntityNotFound, NotFound
from headrace.schema.entity import request
from headrace.schema.entity.observation import decode
from support.engine_rig import Hold
from support.entity_rig import USER, Entities, contact

SECRET = "xyzzy-canary-4711"


class Held(Entities):
    """An engine that removes nothing of what is being erased."""

    async def _open(self) -> Engine:
        engine: Engine = await super()._open()
        engine.erasure._loop.stopping.set()
        return engine


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Held]:
    with Held(tmp_path / "data") as rig:
        rig.register_type(contact())
        yield rig


def filled(rig: Held) -> str:
    """An entity with observations in a segment and in the log."""
    gone = rig.said("gone@x.io", name=SECRET)
    rig.said("kept@x.io", name="kept")
    rig.seal_type()
    rig.said("gone@x.io", phone=SECRET)
    return gone


def kinds(rig: Held) -> list[str]:
    bodies = rig.read("entities/contact")
    assert not [body for body in bodies if SECRET.encode() in bytes(body)]
    return [decode(body).kind for body in bodies]


def begin_only(rig: Held, entity_id: str) -> None:
    """The commit that begins an erasure, and nothing else."""

    async def begin() -> None:
        stream, planned = await rig.engine.erasure._plan(entity_id, USER)
        await run_change(rig.engine.writer, commits.BeginErasure, "erasure_1", stream, USER, planned)

    rig.run(begin())


def test_a_server_that_stopped_right_after_the_commit_hides_it_when_it_comes_back(rig: Held) -> None:
    begin_only(rig, filled(rig))
    rig.reopen()
    assert kinds(rig) == ["erased", "observation", "erased"]
    row = rig.engine.erasure.find("erasure_1", USER)
    assert not is_over(row) and '"log_rows":1' in row.report


@pytest.mark.parametrize("ahead", [False, True], ids=["when it opens", "before"])
def test_a_server_that_takes_over_from_the_store_hides_it(rig: Held, tmp_path: Path, ahead: bool) -> None:
    gone = filled(rig)
    rig.seal_type()
    assert rig.work() and rig.states_of()
    rig.seal_type()  # so that the manifest lists them
    rig.run(rig.engine.erasure.begin(gone, USER))
    rig.run(rig.engine.sealer.publish_journals())
    shutil.copytree(tmp_path / "data" / "objects", tmp_path / "store")
    if ahead:
        recover_directory(
            StorageConfig(data_dir=str(tmp_path / "copy"), object_store=str(tmp_path / "store")),
            rig.clock,
            journals=JOURNALS,
        )
    with Held(tmp_path / "copy", storage={"object_store": str(tmp_path / "store")}) as copy:
        assert kinds(copy) == ["erased", "observation", "erased"] and copy.states_of() == []
        with pytest.raises(EntityNotFound):
            copy.shown(gone)


@pytest.mark.parametrize("key", [False, True], ids=["all", "of the entity"])
def test_an_answer_that_was_found_before_and_nobody_has_fetched_is_not_given(rig: Held, key: bool) -> None:
    gone = filled(rig)
    rig.reopen()
    stream = rig.find("entities/contact")

    def read() -> list[bytes]:
        asked = gone if key else None
        found = rig.engine.log.read(stream, stream.head, 0, budget=1 << 20, key=asked)
        return [bytes(part) for part in found.parts]

    with pytest.raises(NeedsFetch) as cold:
        read()
    cold.value.work()  # who asked has gone away meanwhile
    rig.run(rig.engine.erasure.begin(gone, USER))
    with pytest.raises(NeedsFetch) as cold:
        read()
    cold.value.work()
    assert SECRET not in str(read())


def test_an_erasure_that_its_caller_did_not_wait_for_begins_all_the_same(rig: Held) -> None:
    gone, hold = filled(rig), Hold()

    async def leave() -> None:
        rig.engine.writer.submit(hold)
        assert await asyncio.to_thread(hold.entered.wait, 30)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await rig.engine.erasure.begin(gone, USER)
        hold.go_on.set()
        await asyncio.gather(*rig.engine.erasure._tasks)

    rig.run(leave())
    assert kinds(rig) == ["erased", "observation", "erased"] and rig.engine.erasure._loop._awake.is_set()


def test_readers_of_other_streams_are_not_concerned(rig: Held) -> None:
    gone = filled(rig)
    assert rig.engine._masks == {}
    rig.run(rig.engine.erasure.begin(gone, USER))
    assert list(rig.engine._masks) == [rig.find("entities/contact").incarnation]


def test_what_was_stored_between_the_plan_and_the_commit_is_forgotten_too(rig: Held) -> None:
    gone = filled(rig)

    async def begin() -> None:
        stream, planned = await rig.engine.erasure._plan(gone, USER)
        again = {"entity_type": "contact", "email": "gone@x.io", "name": SECRET}
        for number in (1, 2):
            entity = {**again, "_meta": {"idempotency_key": f"item {SECRET} {number}"}}
            terms = {"idempotency_key": f"key {SECRET} {number}", "source_id": f"source {SECRET}"}
            await rig._store(request.read_store_request(msgspec.json.encode({"entities": [entity], **terms}), USER))
        await run_change(rig.engine.writer, commits.BeginErasure, "erasure_1", stream, USER, planned)

    rig.run(begin())
    for table, column in (("idempotency", "key"), ("sources", "source_id"), ("entities", "canonical_name")):
        found = [str(row[0]) for row in rig.engine._reader.execute(f"SELECT {column} FROM {table}")]
        assert not [text for text in found if SECRET in text or "gone" in text], table


def test_a_source_goes_with_the_last_entity_that_it_brought(rig: Held) -> None:
    both = [{"entity_type": "contact", "email": f"{name}@x.io"} for name in ("one", "two")]
    one, two = (told["entity_id"] for told in rig.store(*both, source_id=SECRET))
    rig.run(rig.engine.erasure.begin(one, USER))
    sourcing = rig.engine.source_reader
    found = sourcing.read(USER, SECRET, sourcing.find_parts(USER, SECRET))
    assert [entity["email"] for entity in found.entities] == ["two@x.io"] and not found.complete
    rig.run(rig.engine.erasure.begin(two, USER))
    with pytest.raises(NotFound):
        sourcing.find_parts(USER, SECRET)


def test_an_erasure_does_not_keep_the_names_that_callers_gave_to_sources(rig: Held) -> None:
    gone = rig.store({"entity_type": "contact", "email": "gone@x.io"}, source_id=SECRET)[0]["entity_id"]
    assert rig.run(rig.engine.erasure.plan(gone, USER)).sources == [SECRET]
    begun = rig.run(rig.engine.erasure.begin(gone, USER))
    assert SECRET not in begun.plan


def test_a_request_that_comes_again_meanwhile_is_stored_and_not_replayed(rig: Held) -> None:
    entity = {"entity_type": "contact", "email": "gone@x.io", "name": "n"}
    first = rig.store(entity, idempotency_key="k")
    rig.seal_type()
    rig.run(rig.engine.erasure.begin(first[0]["entity_id"], USER))
    again = rig.store({**entity, "name": "new"}, idempotency_key="k")  # another request: it would collide
    assert again[0]["action"] == "created"
    assert rig.snapshot(again[0]["entity_id"]) == {"email": "gone@x.io", "name": "new"}
    assert kinds(rig) == ["erased", "observation"]


def test_observations_keep_a_digest_of_the_idempotency_key(rig: Held) -> None:
    both = [{"entity_type": "contact", "email": f"{name}@x.io"} for name in ("one", "two")]
    rig.store(*both, idempotency_key=SECRET)
    one, two = (decode(body).idempotency_key for body in rig.read("entities/contact"))
    assert one == two and one is not None and one.startswith("sha256:") and SECRET not in one
    rig.store(both[0] | {"name": "n"}, idempotency_key=SECRET, user="ann")
    assert decode(rig.read("entities/contact")[-1]).idempotency_key != one
