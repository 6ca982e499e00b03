"""A first schema on a stream that has events: what proves it, what may come between, and what reads then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.registries import change, evolve, read, registry, update, versions
from engine.search.searches import Searched
from headrace.engine.log.stream import Stream
from headrace.engine.verification import first_schema, verifier
from headrace.engine.verification.first_schema import VerificationRunning
from headrace.errors import BadRequest, Conflict, EventsDoNotFit
from headrace.pipeline.kernels import verify
from headrace.pipeline.kernels.units import result
from headrace.reduce.features.events import EventShapes
from headrace.reduce.work_units import Result
from headrace.schema.descriptor.nodes import Event, EventField
from headrace.schema.registry import Registry
from headrace.types import JSON
from server.registries import TEXT, WHOLE, rename, shape
from support.engine_rig import Hold, Rig, array
from support.machines import Machines
from support.work_rig import Worker, opened

NUMBERS = shape(n=WHOLE)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened(tmp_path / "data", min_rows=1_000_000) as rig:
        yield rig


def numbered(rig: Rig, name: str, *values: Any) -> None:
    rig.create(name, JSON)
    rig.append(name, array(*({"n": value} for value in values)))


async def _install(rig: Rig, name: str, body: Any, late: list[Any]) -> Registry:
    """Install a first schema; after each proof the next of ``late`` is appended."""

    async def prove(stream: Stream, proposal: Registry) -> Any:
        proof = await rig.engine.first_schemas.prove(stream, proposal)
        if late:
            settled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            rig.submit(name, array(*late.pop(0)), settled.set_result)
            assert (await settled).error is None
        return proof

    wanted = msgspec.structs.replace(update(**body), first_on_data=True)
    _, installed = await rig.engine.schemas.apply(rig.find(name), wanted, prove=prove)
    return installed


def install(rig: Rig, name: str, schema: Any = NUMBERS, *, late: list[Any] | None = None, **body: Any) -> Registry:
    return rig.run(_install(rig, name, {"schema": schema, **body}, [] if late is None else late))


def test_without_the_option_a_first_schema_needs_an_empty_stream(rig: Rig) -> None:
    numbered(rig, "a", 1)
    with pytest.raises(BadRequest, match="first_on_data=true"):
        change(rig, "a", schema=NUMBERS)
    assert install(rig, "a").boundaries[0].offset == 0


def test_stored_events_keep_their_version_and_read_as_the_first(rig: Rig) -> None:
    numbered(rig, "a", 1, 2)
    install(rig, "a")
    rig.append("a", array({"n": 3}))
    assert versions(rig, "a") == [(0, 2, 0), (2, 1, 1)]
    evolve(rig, "a", shape(m=WHOLE), rename("n", "m"))
    assert read(rig, "a") == [{"m": 1}, {"m": 2}, {"m": 3}]
    assert read(rig, "a", 1) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_refusal_names_offsets_and_counts_and_changes_nothing(rig: Rig) -> None:
    numbered(rig, "a", *range(200), *(["text"] * 150))
    with pytest.raises(EventsDoNotFit) as refusal:
        install(rig, "a")
    facts = refusal.value.facts
    assert facts["failing"] == {"lens": 0, "schema": 150, "key": 0}
    assert facts["events"] == 350
    assert [failure["seq"] for failure in facts["failures"]] == list(range(200, 300))
    assert facts["failures"][0]["offset"] == rig.find("a").offset_at(201)
    assert facts["failures"][0]["pointer"] == "/n"
    assert refusal.value.message.startswith("150 of 350 stored events do not fit the schema")
    assert registry(rig, "a").current_version == 0
    rig.append("a", array({"n": "text"}))


def test_empty_stream_needs_no_proof(rig: Rig) -> None:
    rig.create("a", JSON)
    assert install(rig, "a").current_version == 1
    assert install(rig, "a").current_version == 1, "the same request again changes nothing"


def test_more_events_than_a_commit_checks_are_checked_before_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_schema, "MAX_TAIL_EVENTS", 5)
    numbered(rig, "a", 1)
    late = [[{"n": 1}] * 8, [{"n": 1}] * 6, [{"n": 1}] * 3]
    assert install(rig, "a", late=late).current_version == 1
    assert not late
    numbered(rig, "b", 1)
    with pytest.raises(EventsDoNotFit) as refusal:
        install(rig, "b", late=[[{"n": 1}] * 8, [{"n": 1}] * 6 + [{"n": "x"}]])
    assert [failure["seq"] for failure in refusal.value.facts["failures"]] == [15]


def test_stream_that_always_grows_too_fast_is_left_as_it_is(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_schema, "MAX_TAIL_EVENTS", 1)
    numbered(rig, "a", 1)
    with pytest.raises(Conflict, match="keeps changing"):
        install(rig, "a", late=[[{"n": 1}] * 2] * 30)
    assert registry(rig, "a").current_version == 0


def test_events_that_were_sealed_after_the_proof_are_read_from_their_segment(rig: Rig) -> None:
    numbered(rig, "a", 1)
    with pytest.raises(EventsDoNotFit):
        install(rig, "a", shape(n={"const": 2}))
    rig.run(rig.engine.first_schemas.prove(rig.find("a"), _proposal(rig, "a")))
    rig.append("a", array(*({"n": 1} for _ in range(20))))
    rig.publish("a")
    assert install(rig, "a").current_version == 1
    assert rig.read("a") == [b'{"n":1}'] * 21


def _proposal(rig: Rig, name: str) -> Registry:
    _, proposal = rig.run(rig.engine.schemas.propose(rig.find(name), update(schema=NUMBERS)))
    assert proposal is not None
    return proposal


@pytest.mark.parametrize("event", [{"n": 2}, {"n": "x"}])
def test_append_in_the_same_commit_is_checked(rig: Rig, event: Any) -> None:
    numbered(rig, "a", 1)
    hold = Hold()

    async def race() -> Any:
        proof = await rig.engine.first_schemas.prove(rig.find("a"), _unproven)
        hold.submit(rig.engine.writer)
        await asyncio.to_thread(hold.entered.wait, 30)
        settled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        rig.submit("a", array(event), settled.set_result)

        async def proven(stream: Stream, proposal: Registry) -> Any:
            return proof

        wanted = msgspec.structs.replace(update(schema=NUMBERS), first_on_data=True)
        applying = asyncio.create_task(rig.engine.schemas.apply(rig.find("a"), wanted, prove=proven))
        await asyncio.sleep(0.05)
        hold.go_on.set()
        assert (await settled).error is None
        return await applying

    _unproven = _proposal(rig, "a")
    if event == {"n": 2}:
        rig.run(race())
        assert versions(rig, "a") == [(0, 1, 0), (1, 1, 0)]
        assert read(rig, "a", 1) == [{"n": 1}, {"n": 2}]
    else:
        with pytest.raises(EventsDoNotFit):
            rig.run(race())
        assert registry(rig, "a").current_version == 0


def test_requests_for_one_schema_share_a_verification(rig: Rig) -> None:
    numbered(rig, "a", *range(30))

    async def both() -> list[Any]:
        body = {"schema": NUMBERS}
        return list(await asyncio.gather(_install(rig, "a", body, []), _install(rig, "a", body, [])))

    assert [installed.current_version for installed in rig.run(both())] == [1, 1]
    assert len(rig.engine.schemas.history(rig.find("a"))) == 1


def test_long_verification_is_followed_by_the_next_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_schema, "WAIT_S", 0.0)
    monkeypatch.setattr(verifier, "WORKERS_FIRST_S", 60.0)
    with opened(tmp_path / "data") as rig:
        numbered(rig, "a", *range(10))
        rig.publish("a")
        rig.append("a", array({"n": 10}))
        ids = set()
        for _ in range(2):
            with pytest.raises(VerificationRunning) as running:
                install(rig, "a")
            ids.add(running.value.row.id)
        (id,) = ids
        worker = Worker(rig)
        grant = worker.granted(jobs=["verify"])
        store = (Path(rig.config.storage.data_dir) / "objects").resolve().as_uri()
        results = [result(verify.perform, msgspec.json.encode(unit), store) for unit in grant.units]
        worker.commit(grant, [msgspec.convert(msgspec.to_builtins(one), Result) for one in results])

        async def ended() -> None:
            async with asyncio.timeout(20):
                while rig.engine.verifier.find(rig.find("a"), id).state == "running":
                    await asyncio.sleep(0.005)

        rig.run(ended())
        assert install(rig, "a").current_version == 1


def test_restart_forgets_proofs_and_nothing_else(rig: Rig) -> None:
    numbered(rig, "a", 1)
    rig.run(rig.engine.first_schemas.prove(rig.find("a"), _proposal(rig, "a")))
    rig.reopen()
    assert registry(rig, "a").current_version == 0
    install(rig, "a")
    rig.reopen()
    assert registry(rig, "a").current_version == 1
    assert read(rig, "a") == [{"n": 1}]


@pytest.mark.parametrize("published", [False, True])
def test_events_of_a_parent_count_as_stored(rig: Rig, published: bool) -> None:
    numbered(rig, "parent", 1, 2, "three")
    if published:
        rig.publish("parent")
    rig.fork("parent", "fits", 2)
    rig.fork("parent", "unfit", 3)
    rig.append("fits", array({"n": 4}))
    with pytest.raises(EventsDoNotFit) as refusal:
        install(rig, "unfit")
    assert [failure["seq"] for failure in refusal.value.facts["failures"]] == [2]
    install(rig, "fits")
    evolve(rig, "fits", shape(m=WHOLE), rename("n", "m"))
    assert rig.read("parent") == [b'{"n":1}', b'{"n":2}', b'{"n":"three"}']
    rig.fork("fits", "child", 1)
    assert registry(rig, "child").current_version == 1
    rig.append("child", array({"n": 9}))
    stream = rig.find("child")
    parts = rig.ask(lambda: rig.engine.log.read(stream, stream.head, 0, budget=1 << 20, version=1)).parts
    assert b",".join(bytes(part) for part in parts).startswith(b'{"n":1}')


def test_events_that_retention_removed_are_not_asked(rig: Rig) -> None:
    numbered(rig, "a", "old")
    rig.clock.us += 1_000_000
    rig.append("a", array(*({"n": number} for number in range(20))))
    rig.retain("a", age_us=500_000)
    assert rig.find("a").head.first_seq == 1
    install(rig, "a")
    assert registry(rig, "a").current_version == 1


def test_another_directory_has_the_schema_and_reads_alike(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    with machines.open("a") as rig:
        numbered(rig, "s", 1, 2)
        install(rig, "s")
        rig.append("s", array({"n": 3}))
        evolve(rig, "s", shape(m=WHOLE), rename("n", "m"))
        rig.publish("s")
    with machines.open("b") as rig:
        assert registry(rig, "s").current_version == 2
        stream = rig.find("s")
        for version, name in ((1, "n"), (2, "m")):
            parts = rig.ask(
                lambda version=version: rig.engine.log.read(stream, stream.head, 0, budget=1 << 20, version=version)
            ).parts
            joined = b",".join(bytes(part) for part in parts)
            assert msgspec.json.decode(b"[" + joined + b"]") == [{name: number} for number in (1, 2, 3)]
        with pytest.raises(BadRequest):
            rig.append("s", array({"n": 3}))


SEARCH = {
    "primaryTimestampField": "at",
    "fields": {
        "at": {"kind": "date", "column": True, "bindings": [{"version": 1, "jsonPointer": "/at"}]},
        "n": {"kind": "integer", "exact": True, "column": True, "bindings": [{"version": 1, "jsonPointer": "/n"}]},
    },
}


def test_stored_events_are_found_by_their_fields(rig: Rig) -> None:
    rig.create("found", JSON)
    rig.append("found", array(*({"n": number, "at": 1000 + number, "host": "h"} for number in range(12))))
    rig.publish("found")
    rig.append("found", array({"n": 12, "at": 1012, "host": "h"}))
    install(rig, "found", shape(n=WHOLE, at=WHOLE, host=TEXT), search=SEARCH)
    stream = Searched.of(rig, "found")
    expected = list(range(5, 13))
    assert sorted(stream.ask("n:>=5", size=50).seqs) == expected
    stream.index(0, 12)
    assert sorted(stream.ask("n:>=5", size=50).seqs) == expected
    evolve(rig, "found", shape(m=WHOLE, at=WHOLE, host=TEXT), rename("n", "m"))
    stream.append({"m": 13, "at": 1013, "host": "h"})
    assert sorted(stream.ask("n:>=5", size=50).seqs) == [*expected, 13]
    rig.reopen()
    rig.publish("found")
    assert sorted(stream.ask("n:>=5", size=50).seqs) == [*expected, 13]


def test_companions_of_stored_events_are_renewed_where_the_field_lies_elsewhere(rig: Rig) -> None:
    rig.create("moved", JSON)
    rig.append("moved", array(*({"n": number, "k": 100 + number, "at": number} for number in range(10))))
    rig.publish("moved")
    install(rig, "moved", shape(n=WHOLE, k=WHOLE, at=WHOLE), search=SEARCH)
    stream = Searched.of(rig, "moved")
    stream.index(0, 10)
    assert stream.ask("n:>=8").seqs
    elsewhere = msgspec.json.decode(msgspec.json.encode(SEARCH).replace(b'"/n"', b'"/k"'))
    change(rig, "moved", search=elsewhere)
    assert sorted(stream.ask("n:>=108").seqs) == [8, 9]


def test_features_take_stored_events_as_those_of_the_first_version() -> None:
    lens = {
        **{"apiVersion": "durable.lens/v1", "schema": "s", "from": 1, "to": 2},
        "ops": [{"op": "rename", "from": "/n", "to": "/m"}],
    }
    evolved = Registry.empty("s").advanced(NUMBERS, None, 0).advanced(shape(m=WHOLE), lens, 5)
    shapes = EventShapes(evolved, Event("S", {"m": EventField("i64")}))
    assert shapes.events(b'{"n":1}', 0) == shapes.events(b'{"n":1}', 1) == [{"m": 1}]
    assert not shapes.is_newest(0)
    assert EventShapes(Registry.empty("s").advanced(NUMBERS, None, 0), Event("S", {})).is_newest(0)
