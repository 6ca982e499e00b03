"""Registries and plain lists, side by side: appends, changes of shape, forks and restarts, read in any version."""

from __future__ import annotations

import copy
import os
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from engine.registries import change, registry
from headrace.errors import BadRequest, LensUnsound, NotRepresentable
from headrace.types import JSON
from property.shapes import GIVEN_UP, ONE_WAY, TAKEN, TRAITS, Event, NoForm, Shape, Way, events, fits, schema
from server.registries import lens
from support.engine_rig import Rig, array, one_by_one

MOST_STREAMS = 3
NUMBERS = count()
NO_FORM = "has no form"


class Stored(NamedTuple):
    """An event as it was appended, its version, and its key."""

    event: Event
    version: int
    key: str | None


class Model:
    """A stream as plain lists; version n has the shape ``shapes[n - 1]``, and ``ways[n - 1]`` leads on from it."""

    def __init__(self, shape: Shape) -> None:
        self.shapes = [shape]
        self.ways: list[Way] = []
        self.stored: list[Stored] = []
        self.boundaries = [0]
        #: For each version, whether the routing key was required last; None where there was none.
        self.keyed: list[bool | None] = [None]

    @property
    def shape(self) -> Shape:
        return self.shapes[-1]

    def forked(self, position: int) -> Model:
        """What a fork at a position begins with."""
        fork = copy.deepcopy(self)
        version = max(n for n, start in enumerate(self.boundaries, 1) if start <= position)
        fork.stored = fork.stored[:position]
        fork.shapes, fork.boundaries = fork.shapes[:version], fork.boundaries[:version]
        fork.ways, fork.keyed = fork.ways[: version - 1], fork.keyed[:version]
        return fork

    def turned(self, stored: Stored, version: int) -> Event | str:
        """An event in a version."""
        event = stored.event
        for way in self.ways[stored.version - 1 : version - 1]:
            event = way.forward(event)
        try:
            for way in reversed(self.ways[version - 1 : stored.version - 1]):
                event = way.back(event)
        except NoForm:
            return NO_FORM
        return event if version >= stored.version or fits(self.shapes[version - 1], event) else NO_FORM

    def failing(self, batch: list[Event]) -> set[int]:
        """Which events of an append do not fit."""
        unfit = {index for index, event in enumerate(batch) if not fits(self.shape, event)}
        if unfit or not self.keyed[-1]:
            return unfit
        return {index for index, event in enumerate(batch) if "k" not in event}

    def add(self, batch: list[Event]) -> None:
        """Append events that fit."""
        keys = (None if self.keyed[-1] is None else event.get("k") for event in batch)
        self.stored += (Stored(event, len(self.shapes), key) for event, key in zip(batch, keys, strict=True))


class Machine(RuleBasedStateMachine):
    """Every rule asks the engine and the lists the same thing."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.rig = rig
        self.models: dict[str, Model] = {}

    def teardown(self) -> None:
        for name, model in self.models.items():
            for version in (None, *range(1, len(model.shapes) + 1)):
                for key in (None, "x", "y"):
                    self._compare(name, version, key, 0, 1 << 20)
            self.rig.delete(name)
        self.rig.sweep()

    @initialize(traits=st.frozensets(st.sampled_from(TRAITS)), required=st.none() | st.booleans())
    def begin(self, traits: Shape, required: bool | None) -> None:
        name = f"s{next(NUMBERS)}"
        self.rig.create(name, JSON)
        change(self.rig, name, schema=schema(traits))
        self.models[name] = Model(traits)
        self._set_routing_key(name, required)

    def name(self, data: st.DataObject) -> str:
        # By its place: names differ from run to run.
        return list(self.models)[data.draw(st.integers(0, len(self.models) - 1))]

    @rule(data=st.data(), other=st.sampled_from([None, None, None, *TRAITS]))
    def append(self, data: st.DataObject, other: str | None) -> None:
        """Events that fit, and now and then some that are of another shape."""
        name = self.name(data)
        model = self.models[name]
        stranger = model.shape if other is None else model.shape ^ {other}
        batch = data.draw(st.lists(events(model.shape) | events(stranger), min_size=1, max_size=4))
        failing = model.failing(batch)
        if failing:
            with pytest.raises(BadRequest) as refused:
                self.rig.append(name, array(*batch))
            assert {failure["index"] for failure in refused.value.facts["failures"]} == failing
        else:
            self.rig.append(name, array(*batch))
            model.add(batch)

    @rule(data=st.data(), trait=st.sampled_from(TRAITS))
    def evolve(self, data: st.DataObject, trait: str) -> None:
        """Take a trait on, or give it up."""
        name = self.name(data)
        model = self.models[name]
        version, after = len(model.shapes), model.shape ^ {trait}
        way = (GIVEN_UP if trait in model.shape else TAKEN).get(trait)
        body = {"schema": schema(after), "lens": lens(name, version, *(way.ops if way else ()))}
        if trait in model.shape and trait in ONE_WAY:
            with pytest.raises(LensUnsound):
                change(self.rig, name, **body)
            return
        assert way is not None
        change(self.rig, name, **body)
        model.shapes.append(after)
        model.ways.append(way)
        model.boundaries.append(len(model.stored))
        model.keyed.append(model.keyed[-1])

    @rule(data=st.data(), trait=st.sampled_from(TRAITS))
    def evolve_by_the_wrong_lens(self, data: st.DataObject, trait: str) -> None:
        """The lens of another trait proves nothing."""
        name = self.name(data)
        model = self.models[name]
        wrong = TAKEN["renamed" if trait != "renamed" else "extra"].ops
        after = model.shape ^ {trait}
        before = registry(self.rig, name)
        with pytest.raises(LensUnsound):
            change(self.rig, name, schema=schema(after), lens=lens(name, len(model.shapes), *wrong))
        assert registry(self.rig, name) == before

    @rule(data=st.data(), required=st.none() | st.booleans())
    def set_routing_key(self, data: st.DataObject, required: bool | None) -> None:
        self._set_routing_key(self.name(data), required)

    def _set_routing_key(self, name: str, required: bool | None) -> None:
        setting = None if required is None else {"jsonPointer": "/k", "required": required}
        change(self.rig, name, routingKey=setting)
        self.models[name].keyed[-1] = required

    @rule(
        data=st.data(),
        key=st.sampled_from([None, None, "x", "y"]),
        budget=st.sampled_from([1, 60, 200, 1 << 20]),
    )
    def read(self, data: st.DataObject, key: str | None, budget: int) -> None:
        name = self.name(data)
        model = self.models[name]
        version = data.draw(st.none() | st.integers(1, len(model.shapes)))
        position = data.draw(st.integers(0, len(model.stored)))
        self._compare(name, version, key, position, budget)

    def _compare(self, name: str, version: int | None, key: str | None, position: int, budget: int) -> None:
        model = self.models[name]
        wanted = version or len(model.shapes)
        chosen = [s for s in model.stored[position:] if key is None or s.key == key]
        expected = [model.turned(stored, wanted) for stored in chosen]
        assert self._read(name, version, key, position, budget) == expected
        judge = jsonschema_rs.validator_for(schema(model.shapes[wanted - 1]))
        assert all(judge.is_valid(event) for event in expected if event != NO_FORM)

    def _read(self, name: str, version: int | None, key: str | None, position: int, budget: int) -> list[Any]:
        """Follow the pages to the tail; an event without a form is skipped by the offset that names it."""
        stream, found = self.rig.find(name), []
        head = stream.head
        offsets = {stream.offset_at(place): place for place in range(1, head.next_seq + 1)}
        while position < head.next_seq:
            try:
                parts, following = self.rig.engine.log.read(
                    stream, head, position, budget=budget, key=key, version=version
                )
                found += [msgspec.json.decode(entry) for part in parts for entry in one_by_one(stream, part)]
            except NotRepresentable as failure:
                following = offsets[failure.facts["offset"]]
                found.append(NO_FORM)
            assert following > position
            position = following
        return found

    @precondition(lambda self: len(self.models) < MOST_STREAMS)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """A fork anywhere, with events of its own that must fit what it inherits."""
        source, name = self.name(data), f"f{next(NUMBERS)}"
        position = data.draw(st.integers(0, len(self.models[source].stored)))
        fork = self.models[source].forked(position)
        own = data.draw(st.lists(events(fork.shape) | events(self.models[source].shape), max_size=2))
        place = self.rig.engine.log.fork(self.rig.find(source), position, 0)
        if fork.failing(own):
            with pytest.raises(BadRequest):
                self.rig.create(name, JSON, array(*own), fork=place)
            return
        self.rig.create(name, JSON, array(*own) if own else b"", fork=place)
        fork.add(own)
        self.models[name] = fork

    @precondition(lambda self: len(self.models) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = self.name(data)
        self.rig.delete(name)
        del self.models[name]

    @rule()
    def restart(self) -> None:
        self.rig.reopen()

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """The registry says what the lists say."""
        name = self.name(data)
        model, found = self.models[name], registry(self.rig, name)
        assert found.schema == name
        assert found.current_version == len(model.shapes)
        assert list(found.schemas.values()) == [schema(shape) for shape in model.shapes]
        assert [edge.offset for edge in found.boundaries] == model.boundaries
        assert [found.version_at(seq) for seq in range(len(model.stored))] == [s.version for s in model.stored]


@pytest.mark.timeout(1800)
def test_streams_with_registries_do_what_plain_lists_would_do(tmp_path: Path) -> None:
    deep = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
    size = settings(max_examples=500 if deep else 50, stateful_step_count=80 if deep else 40)
    with Rig(tmp_path) as rig:
        run_state_machine_as_test(lambda: Machine(rig), settings=size)  # type: ignore[arg-type]
