"""A first schema on stored events: installed exactly where every event fits, by an oracle that knows JSON Schema."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.registries import evolve, registry, update
from headrace.engine.log.stream import Stream
from headrace.errors import BadRequest, EventsDoNotFit
from headrace.schema.registry import Registry
from headrace.types import JSON
from support.engine_rig import Rig, array, one_by_one

NAMES = count()
NUMBER = st.integers(0, 5) | st.just("text")
KEY = st.sampled_from(["x", "y"])
EVENT = st.fixed_dictionaries({"n": st.integers(0, 3)}, optional={"k": KEY, "m": NUMBER})
ODD = st.just({}) | st.fixed_dictionaries({"n": NUMBER}, optional={"k": KEY | st.just(7)}) | st.just([1])
SCHEMA = st.builds(
    lambda required, closed, most: {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": most}, "m": {"type": "integer"}, "k": True},
        "required": required,
        **({"additionalProperties": False} if closed else {}),
    },
    st.sampled_from([["n"], ["n", "k"], []]),
    st.booleans(),
    st.sampled_from([3, 5]),
)


class Appended(NamedTuple):
    """Events of one request, and the key that it named; with ``by_event`` each its own, one request for each."""

    events: list[Any]
    key: str | None = None
    by_event: bool = False


APPEND = st.builds(Appended, st.lists(EVENT, min_size=1, max_size=4), st.none() | KEY, st.booleans())
ODD_APPEND = st.builds(Appended, st.lists(ODD, min_size=1, max_size=2), st.none())


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("first") / "data", storage={"seal_rows": 3}) as rig:
        yield rig


class Case:
    """A stream without a schema, and a list of what it holds."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.name = rig, f"s{next(NAMES)}"
        self.stored: list[tuple[Any, str | None]] = []
        rig.create(self.name, JSON)

    async def append(self, appended: Appended) -> None:
        """Append, on the event loop."""
        requests = [([event], _key_of(event)) for event in appended.events]
        for events, key in requests if appended.by_event else [(appended.events, appended.key)]:
            settled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            facts = {} if key is None else {"key": key}
            self.rig.submit(self.name, array(*events), settled.set_result, **facts)
            assert (await settled).error is None
            self.stored += [(event, key) for event in events]

    def misfits(self, schema: Any, key: Any) -> list[int]:
        """The oracle: the events that do not fit."""
        valid = jsonschema_rs.validator_for(schema).is_valid
        return [
            seq
            for seq, (event, stored_key) in enumerate(self.stored)
            if not (valid(event) and (key is None or _fits_key(event, stored_key, key["required"])))
        ]

    async def install(self, schema: Any, key: Any, late: list[Appended]) -> None:
        """Install a first schema; between the proof and the commit events are appended."""
        proofs, waiting = self.rig.engine.first_schemas, list(late)

        async def prove(stream: Stream, proposal: Registry) -> Any:
            proof = await proofs.prove(stream, proposal)
            if waiting:
                await self.append(waiting.pop(0))
            return proof

        body = {"schema": schema} if key is None else {"schema": schema, "routingKey": key}
        wanted = msgspec.structs.replace(update(**body), first_on_data=True)
        await self.rig.engine.schemas.apply(self.rig.find(self.name), wanted, prove=prove)


def read(rig: Rig, name: str, version: int | None = None, key: str | None = None) -> list[Any]:
    """Every event, in one version."""
    stream = rig.find(name)
    events, position = [], 0
    while position < stream.head.next_seq:
        question = partial(rig.engine.log.read, stream, stream.head, position, budget=1 << 30, version=version, key=key)
        parts, position = rig.ask(question)
        events += [msgspec.json.decode(entry) for part in parts for entry in one_by_one(stream, part)]
    return events


def _key_of(event: Any) -> str | None:
    key = event.get("k") if isinstance(event, dict) else None
    return key if isinstance(key, str) else None


def _fits_key(event: Any, stored_key: str | None, required: bool) -> bool:
    if isinstance(event, dict) and "k" in event:
        return isinstance(event["k"], str) and event["k"] == stored_key
    return stored_key is None and not required


def test_first_schema_is_installed_exactly_where_every_event_fits(rig: Rig) -> None:
    seen = Counter[str]()

    @settings(max_examples=120)
    @given(
        st.lists(APPEND | APPEND | ODD_APPEND, min_size=1, max_size=5),
        st.integers(0, 5),
        st.lists(APPEND | ODD_APPEND, max_size=1),
        SCHEMA,
        st.none() | st.none() | st.builds(lambda required: {"jsonPointer": "/k", "required": required}, st.booleans()),
    )
    def holds(appends: list[Appended], published: int, late: list[Appended], schema: Any, key: Any) -> None:
        seen[_check_case(rig, appends, published, late, schema, key)] += 1

    holds()
    assert seen["installed"] >= 12
    assert seen["refused before"] >= 20
    assert seen["refused in the commit"] >= 3


def _check_case(rig: Rig, appends: list[Appended], published: int, late: list[Appended], schema: Any, key: Any) -> str:
    case = Case(rig)
    for number, appended in enumerate(appends):
        rig.run(case.append(appended))
        if number + 1 == published:
            rig.publish(case.name)
    refusal: EventsDoNotFit | None = None
    before = case.misfits(schema, key)
    try:
        rig.run(case.install(schema, key, late))
    except EventsDoNotFit as raised:
        refusal = raised
    expected = case.misfits(schema, key)
    if refusal is not None:
        assert expected
        named = before or expected
        assert [failure["seq"] for failure in refusal.facts["failures"]] == named
        assert sum(refusal.facts["failing"].values()) == len(named)
        assert registry(rig, case.name).current_version == 0
        assert read(rig, case.name) == [event for event, _ in case.stored]
        return "refused before" if before else "refused in the commit"
    assert not expected
    _check_installed(rig, case, schema, key)
    return "installed"


def _check_installed(rig: Rig, case: Case, schema: Any, key: Any) -> None:
    events = [event for event, _ in case.stored]
    assert read(rig, case.name, 1) == events
    with pytest.raises(BadRequest):
        rig.append(case.name, array({"n": "none"}))
    if key is not None:
        for name in ("x", "y"):
            assert read(rig, case.name, key=name) == [event for event in events if event.get("k") == name]
    fork = f"{case.name}-fork"
    rig.fork(case.name, fork, len(events) // 2)
    newer = {**schema, "properties": {**schema["properties"], "added": {"const": 1}}}
    added = {"op": "add", "path": "/added", "schema": {"const": 1}, "default": 1, "overwrite": True}
    evolve(rig, case.name, newer, added)
    assert read(rig, case.name) == [{**event, "added": 1} for event in events]
    assert read(rig, case.name, 1) == events
    assert read(rig, fork, 1) == events[: len(events) // 2]
    rig.publish(case.name)
    assert read(rig, case.name) == [{**event, "added": 1} for event in events]
