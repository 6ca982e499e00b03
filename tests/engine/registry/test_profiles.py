"""Profiles in the running system: what a commit changes, what races with it, and what survives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.log.append import Append
from headrace.engine.registry.registry_change import CommitChange
from headrace.engine.system_streams import METRICS, REGISTRY, System
from headrace.errors import BadRequest
from headrace.profiles import table
from headrace.profiles.definition import Profile
from headrace.storage.streams import StreamRow
from headrace.types import JSON
from support.engine_rig import Rig

EVLOG = {"kind": "evlog", "redactKeys": ["ssn"]}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "data") as made:
        yield made


def profile(**document: Any) -> Profile:
    found = table.read({"profile": document})
    assert isinstance(found, Profile)
    return found


def install(rig: Rig, name: str, **document: Any) -> None:
    rig.run(rig.engine.profiles.apply(rig.find(name), profile(**document)))


def events(rig: Rig, name: str) -> list[Any]:
    return [json.loads(entry) for entry in rig.read(name)]


def test_a_profile_and_its_schema_come_in_one_commit(rig: Rig) -> None:
    stream = rig.create("logs", JSON)
    commits = rig.engine.writer.commits
    install(rig, "logs", **EVLOG)
    assert rig.engine.writer.commits == commits + 1
    assert stream.head.registry is not None
    assert stream.head.registry.version == 1
    assert stream.head.registry.revision == 1
    assert table.load(stream.profile).document == {"kind": "evlog", "redactKeys": ["ssn"]}


def test_settings_make_no_new_revision_of_the_registry(rig: Rig) -> None:
    rig.create("logs", JSON)
    install(rig, "logs", kind="evlog")
    install(rig, "logs", **EVLOG)
    install(rig, "logs", kind="generic")
    registry = rig.find("logs").head.registry
    assert registry is not None
    assert registry.revision == 1
    assert registry.hook is None


def test_a_profile_without_a_schema_leaves_no_registry_behind(rig: Rig) -> None:
    stream = rig.create("states", JSON)
    install(rig, "states", kind="state-protocol")
    assert stream.head.registry is not None
    assert stream.head.registry.revision == 0
    install(rig, "states", kind="generic")
    assert stream.head.registry is None


def test_an_append_that_was_queued_before_a_profile_is_normalised(rig: Rig) -> None:
    """Admitted before the profile came and committed after it, it is looked at again."""
    stream = rig.create("states", JSON)
    install(rig, "states", kind="metrics")
    interval = b'{"metric":"m","unit":"u","windowStart":0,"windowEnd":1,"count":1,"sum":1}'
    settled: list[Append] = []

    async def race() -> None:
        planned = await rig.engine.profiles.prepare(stream, profile(kind="generic"))
        CommitChange(planned, "me", lambda _: None).submit(rig.engine.writer)
        rig.append_to(stream, interval, settled.append)
        while not settled:
            await asyncio.sleep(0)

    rig.run(race())
    # The generic stream kept the schema of the profile, and takes what it is given, which does not fit.
    assert isinstance(settled[0].error, BadRequest)


def test_what_cannot_be_installed_changes_nothing(rig: Rig) -> None:
    rig.create("logs", JSON)
    rig.append("logs", b'{"a":1}')
    with pytest.raises(BadRequest, match="before appending data"):
        install(rig, "logs", kind="evlog")
    assert rig.find("logs").profile == "generic"
    assert rig.find("logs").head.registry is None


def test_a_profile_survives_being_opened_again(rig: Rig) -> None:
    rig.create("logs", JSON)
    install(rig, "logs", **EVLOG)
    rig.reopen()
    rig.append("logs", b'{"ssn":"1","requestId":"r"}')
    assert events(rig, "logs")[0]["context"] == {"ssn": "[REDACTED]"}
    assert rig.find("logs").profile == profile(**EVLOG).text


def test_a_profile_is_published_and_comes_back_from_the_store(tmp_path: Path) -> None:
    storage = {"object_store": str(tmp_path / "objects")}
    with Rig(tmp_path / "one", storage=storage) as rig:
        rig.create("logs", JSON)
        install(rig, "logs", **EVLOG)
        rig.append("logs", b'{"message":"kept","requestId":"r"}')
        rig.publish("logs")
    with Rig(tmp_path / "two", storage=storage) as other:
        assert other.find("logs").profile == profile(**EVLOG).text
        other.append("logs", b'{"ssn":"1"}')
        kept, fresh = events(other, "logs")
        assert kept["message"] == "kept"
        assert fresh["context"] == {"ssn": "[REDACTED]"}


# -- the streams of the server


def test_nothing_is_noted_while_nobody_listens(rig: Rig) -> None:
    rig.create("plain")
    assert rig.engine.log.catalog.find(REGISTRY) is None
    assert rig.run(rig.engine.apply(lambda batch: batch.connection.execute("SELECT count(*) FROM notes").get)) == 0


def test_notes_move_into_the_stream_once(rig: Rig) -> None:
    async def live() -> None:
        system = System.open(writer=rig.engine.writer, log=rig.engine.log, connect=rig.engine.connect)
        try:
            rig.engine.log.create(_row("one"), lambda _: None)
            rig.engine.log.create(_row("two"), lambda _: None)
            await rig.engine.apply(lambda batch: None)
            await system.record()
            await system.record()
        finally:
            await system.close()

    rig.run(live())
    assert [(note["what"], note["stream"]) for note in events(rig, REGISTRY)] == [
        ("stream_created", "one"),
        ("stream_created", "two"),
    ]


def test_metrics_are_stored_lean(rig: Rig) -> None:
    record = {"metric": "m", "unit": "count", "windowStart": 0, "windowEnd": 10, "count": 1, "sum": 1}

    async def live() -> None:
        system = System.open(writer=rig.engine.writer, log=rig.engine.log, connect=rig.engine.connect, notes=False)
        try:
            await system.measured([record])
            await system.measured([])
        finally:
            await system.close()

    rig.run(live())
    (stored,) = events(rig, METRICS)
    assert stored["seriesKey"] == "summary|delta|m|count|||"
    registry = rig.find(METRICS).head.registry
    assert registry is not None
    assert registry.registry.search is None and registry.registry.routing_key is None
    assert rig.engine.counters.appends == 0


def _row(name: str) -> StreamRow:
    return StreamRow(name=name, content_type=JSON, created_us=0, epochs="[]")
