"""Publishing under faults and kills: every acknowledged entry is read once and in order, whatever happened."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crash.test_kill import Load
from headrace.storage.objects import StoreUnavailable
from property.lines import TEXTS, Line, World, check_offsets, check_pages, check_seeks
from support.disturbed_store import Call, Fault, disturb
from support.engine_rig import Rig
from support.stored_objects import rows

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

SMALL = {"seal_bytes": 60, "seal_rows": 5}
ROUNDS = 6


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.storage.objects._PAUSE_S", 0.0)
        yield


class Scene:
    """A world whose log and whose store lie side by side, so that both can be copied as a kill leaves them."""

    def __init__(self, directory: Path, kind: Any, *, far: bool) -> None:
        self.directory = directory
        self.far = far
        self.rig = _open(directory)
        self.store = disturb(self.rig.engine.objects, far=far)
        self.world = World(self.rig, kind)

    def reopen(self) -> None:
        self.rig.reopen()
        plan = self.store.plan
        self.store = disturb(self.rig.engine.objects, far=self.far)
        self.store.plan = plan

    def publish(self, line: Line) -> bool:
        """Whether the store took it."""
        try:
            self.rig.publish(line.name)
        except StoreUnavailable:
            return False
        return True

    def close(self) -> None:
        self.store.plan = lambda _: None
        self.rig.close()


def _open(directory: Path, node: str = "node") -> Rig:
    return Rig(directory / node, storage={**SMALL, "object_store": str(directory / "store")})


@contextmanager
def _killed(scene: Scene, directory: Path) -> Iterator[World]:
    """The world as it is found after a kill: the same model before an engine on a copy of the files."""
    shutil.copytree(scene.directory, directory)
    with _open(directory) as rig:
        rig.clock.us = scene.rig.clock.us
        found = World(rig, scene.world.kind)
        found.lines = [_copied(line) for line in scene.world.lines]
        yield found
    shutil.rmtree(directory)


@contextmanager
def _recovered(scene: Scene, directory: Path) -> Iterator[Rig]:
    """A node made of a copy of the store alone."""
    shutil.copytree(scene.directory / "store", directory / "store")
    with _open(directory, "fresh") as rig:
        yield rig
    shutil.rmtree(directory)


def _is_published(scene: Scene, fresh: Rig) -> None:
    """Whatever is known to be published is there, and nothing else; a manifest may be newer than what is known."""
    for line in scene.world.lines:
        known = scene.rig.find(line.name)
        if not scene.rig.engine.published.totals(known.id).generation:
            continue
        head = fresh.find(line.name).head
        assert head.next_seq >= known.head.published_seq
        assert head.first_seq <= line.first
        found = fresh.read(line.name, head.first_seq)
        expected = line.chosen(head.first_seq, head.next_seq, None)
        assert scene.world.joined(found) == scene.world.joined(expected)


def _copied(line: Line) -> Line:
    copy = Line(line.name, list(line.cells), line.first, line.source)
    copy.fork_point = line.fork_point
    return copy


def _holds(world: World, data: st.DataObject) -> None:
    check_pages(world, data)
    check_seeks(world)
    check_offsets(world)


def _goes_on(world: World, data: st.DataObject) -> None:
    """Appends and publications go on as if nothing had happened."""
    for line in world.lines:
        world.append(line, [("x", None)], 1)
        world.rig.publish(line.name)
    _holds(world, data)
    assert rows(world.rig) == 0


@pytest.mark.parametrize("far", [False, True], ids=["directory", "service"])
@settings(max_examples=15)
@given(data=st.data())
def test_a_kill_at_any_step_of_a_publication_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, far: bool, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("killed")
    scene = Scene(directory / "live", data.draw(st.sampled_from(["bytes", "json", "routed"])), far=far)
    world, kills = scene.world, count()
    world.create()
    _live(scene, data, 6)
    moments = data.draw(st.sets(st.integers(0, 12), max_size=4))

    def kill(_: Call) -> None:
        if (number := next(kills)) in moments:
            shutil.copytree(scene.directory, directory / f"kill-{number}")

    scene.store.before = scene.store.after = kill
    line = data.draw(st.sampled_from(world.lines))
    scene.publish(line)
    scene.store.before = scene.store.after = lambda _: None
    scene.close()
    for copied in directory.glob("kill-*"):
        with _open(copied) as rig:
            rig.clock.us = world.rig.clock.us
            found = World(rig, world.kind)
            found.lines = [_copied(line) for line in world.lines]
            _holds(found, data)
            _goes_on(found, data)
    shutil.rmtree(directory)


def _live(scene: Scene, data: st.DataObject, most: int) -> None:
    """Some things that happen to the streams of a scene; what the store refuses is left for later."""
    world = scene.world
    for step in data.draw(
        st.lists(st.sampled_from(["append"] * 3 + ["publish"] * 2 + ["fork", "bytes", "reopen"]), max_size=most)
    ):
        line = data.draw(st.sampled_from(world.lines))
        if step == "append":
            world.append(line, data.draw(TEXTS), data.draw(st.integers(0, 3)))
        elif step == "publish":
            scene.publish(line)
        elif step == "fork" and line.cells[line.first :]:
            with suppress(StoreUnavailable):
                world.fork(line, data.draw(st.integers(line.first, len(line.cells) - 1)), data.draw(st.integers(0, 3)))
        elif step == "bytes":
            limit = data.draw(st.integers(0, 60))
            world.retain(line, line.first_within(limit), size=limit)
        elif step == "reopen":
            scene.reopen()


FAULTS: st.SearchStrategy[list[Fault | None]] = st.lists(
    st.sampled_from([None, None, None, "refuse", "lose", "halve"]), max_size=40
)


@pytest.mark.parametrize("far", [False, True], ids=["directory", "service"])
@settings(max_examples=20)
@given(data=st.data())
def test_a_store_that_fails_at_random_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, far: bool, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("faulty")
    scene = Scene(directory / "live", data.draw(st.sampled_from(["bytes", "json", "routed"])), far=far)
    scene.world.create()
    faults = data.draw(FAULTS)
    scene.store.plan = _plan(faults)
    _live(scene, data, 14)
    scene.store.plan = lambda _: None
    _holds(scene.world, data)
    with _killed(scene, directory / "copy") as world:
        _holds(world, data)
    with _recovered(scene, directory / "fresh") as fresh:
        _is_published(scene, fresh)
    _goes_on(scene.world, data)
    scene.rig.clock.us += 3600 * 1_000_000
    scene.rig.clear()
    scene.reopen()
    _holds(scene.world, data)
    scene.close()
    shutil.rmtree(directory)


def _plan(faults: list[Fault | None]) -> Callable[[Call], Fault | None]:
    """One fault after another, for writes; starting and reading are another matter."""
    return lambda call: faults.pop() if faults and call.verb in ("upload", "create", "delete", "head") else None


class SlowLoad(Load):
    """The same clients, for as long as it takes to publish something."""

    async def round(self) -> None:
        self.chance.uniform = self._longer  # type: ignore[method-assign]
        await super().round()

    def _longer(self, _: float, __: float) -> float:
        return 0.9 + self.chance.random()


def test_what_was_acknowledged_survives_kills_while_it_is_published(start_server: Callable[..., Any]) -> None:
    server = start_server(storage__seal_age_s="0.2", storage__seal_bytes="3000", storage__seal_rows="100")
    load = SlowLoad(server, seed=0)
    for _ in range(ROUNDS):
        asyncio.run(load.round())
        server.start()
        asyncio.run(load.check())
    assert load.acknowledged > 20 * ROUNDS
    published = list((server.data_dir / "objects" / "segments").rglob("*.parquet"))
    assert len(published) > ROUNDS
    print(f"{load.acknowledged} acknowledged, {load.unknown} cut off, {len(published)} segments")
