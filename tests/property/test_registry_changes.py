"""Laws of changes of every registry: a dry run tells the stages that are performed then, and performs none itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.registries import update
from headrace.engine.entities.types.proposals import (
    Propose,
    propose_activation,
    propose_deactivation,
    propose_registration,
    propose_update,
)
from headrace.engine.features.feature_stages import SaveFeatures
from headrace.engine.features.features import InvalidDescriptors
from headrace.engine.features.proposals import FeatureChange
from headrace.engine.registry.registry_change import PlannedChange, Stage
from headrace.errors import HeadraceError, NoSchemaForEntityType
from headrace.profiles import table
from headrace.profiles.definition import Profile
from headrace.schema.descriptor import registration as descriptors
from headrace.schema.descriptor.registration import Registration
from headrace.schema.entity.registration import ChangeRequest, TypeRegistration, read_change_request, read_registration
from headrace.schema.update import SchemaUpdate
from headrace.storage.entity_types import EVERYBODY
from headrace.storage.notes import Notes
from headrace.types import JSON
from schema.descriptor.strategies import pipelines, variations
from schema.entity.strategies import evolved, payloads
from server.registries import TEXT, WHOLE, lens, rename, shape
from support.engine_rig import Rig, array

_TABLES = ("registries", "feature_registry", "entity_changes", "schema_registry", "entity_type_aliases", "notes")
_MANY = 1_000
_NAMES = count()
_PROFILES = (
    {"kind": "generic"},
    {"kind": "evlog"},
    {"kind": "evlog", "redactKeys": ["secret"]},
    {"kind": "metrics"},
    {"kind": "state-protocol"},
)
_EVENT = {"user": "u", "amount": 1, "n": 2, "ok": True}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    # Proofs of odd schemas take long on a busy machine.
    with Rig(tmp_path_factory.mktemp("registries") / "data", server={"resolver_timeout_s": 60}) as opened:
        opened.engine.writer.on_noted = lambda: None
        yield opened


def told(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """What stages tell, as it is written down."""
    notes = [note for stage in stages if (note := stage.describe()) is not None]
    return [msgspec.json.decode(msgspec.json.encode({"what": note.what, **note.facts})) for note in notes]


def answered(stages: Sequence[Stage]) -> list[Any]:
    """What becomes of features and streams, as it is answered."""
    return [stage.document.plan for stage in stages if isinstance(stage, SaveFeatures)]


def stored(rig: Rig) -> dict[str, list[Any]]:
    """Everything that the registries have on disk."""
    return {name: list(rig.engine.streams._connection.execute(f"SELECT * FROM {name}")) for name in _TABLES}


def noted(rig: Rig) -> list[dict[str, Any]]:
    """What the commits since the last call have noted, without who did it and when."""

    def take(batch: Any) -> list[tuple[int, str]]:
        notes = Notes(batch.connection)
        taken = notes.first(_MANY)
        if taken:
            notes.remove(taken[-1][0])
        return taken

    documents = [msgspec.json.decode(text) for _, text in rig.run(rig.engine.apply(take))]
    return [{name: fact for name, fact in document.items() if name not in ("at", "who")} for document in documents]


def check(rig: Rig, plan: Callable[[], Awaitable[PlannedChange]]) -> list[str]:
    """Tell a change, then make it: both have the same stages, and only the second performs them; answers which."""
    noted(rig)
    changes, before = rig.engine.registry_changes, stored(rig)
    described = rig.run(changes.run(plan, "me", dry_run=True))
    assert not described.is_applied
    assert stored(rig) == before
    applied = rig.run(changes.run(plan, "me"))
    assert applied.is_applied == described.planned.has_effect
    assert [type(stage) for stage in applied.stages] == [type(stage) for stage in described.stages]
    assert told(applied.stages) == told(described.stages)
    assert answered(applied.stages) == answered(described.stages)
    assert noted(rig) == (told(described.stages) if applied.is_applied else [])
    assert applied.is_applied or stored(rig) == before
    return [type(stage).__name__ for stage in applied.stages if applied.is_applied]


def append(rig: Rig, name: str, event: dict[str, Any]) -> None:
    """Let the ends of streams move, where an event fits."""
    with suppress(HeadraceError):
        rig.append(name, array(event))


# -- schemas and profiles


@st.composite
def updates(draw: st.DrawFn, name: str, version: int) -> SchemaUpdate:
    """A change of the registry of a stream, which can often be made."""
    members = draw(st.dictionaries(st.sampled_from("abc"), st.sampled_from((WHOLE, TEXT)), min_size=1))
    optional = draw(st.lists(st.sampled_from("abc"), unique=True))
    body: dict[str, Any] = {"schema": shape(*optional, **members)}
    if draw(st.integers(0, 3)) == 0:
        body["lens"] = lens(name, version, *draw(st.sampled_from(([], [rename("a", "b")]))))
    if draw(st.integers(0, 3)) == 0:
        body["routingKey"] = {"jsonPointer": draw(st.sampled_from(("/a", "/b"))), "required": False}
    return update(**body)


def test_changes_of_schemas_and_profiles_are_made_as_they_are_told(rig: Rig) -> None:
    performed = Counter[str]()

    @settings(max_examples=40)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        name = f"stream/{next(_NAMES)}"
        stream, engine = rig.create(name, JSON), rig.engine
        for _ in range(data.draw(st.integers(1, 5))):
            if data.draw(st.integers(0, 2)):
                asked = data.draw(updates(name, engine.schemas.registry(stream).current_version))
                performed.update(check(rig, partial(engine.schemas.prepare, stream, asked)))
            else:
                profile = table.read({"profile": data.draw(st.sampled_from(_PROFILES))})
                assert isinstance(profile, Profile)
                performed.update(check(rig, partial(engine.profiles.prepare, stream, profile)))
            if data.draw(st.booleans()):
                append(rig, name, {"a": 1})

    holds()
    assert set(performed) == {"SaveSchema", "SaveProfile"}, performed


# -- features


def test_changes_of_features_are_made_as_they_are_told(rig: Rig) -> None:
    performed = Counter[str]()

    @settings(max_examples=40)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        pipeline = data.draw(pipelines())
        for _ in range(data.draw(st.integers(1, 4))):
            terms = {"force": data.draw(st.booleans()), "backfill": data.draw(st.sampled_from((None, True, False)))}
            registration = descriptors.read_registration({"descriptors": pipeline, **terms})
            if isinstance(registration, Registration):
                asked = FeatureChange.of(registration)
                with suppress(InvalidDescriptors):
                    performed.update(check(rig, partial(rig.engine.features.prepare, asked)))
            if data.draw(st.booleans()):
                append(rig, "events/Txn", _EVENT)
            pipeline = data.draw(variations(pipeline))
        everything = FeatureChange(nodes={}, owners={}, apps=None, force=True, cascade=True)
        performed.update(check(rig, partial(rig.engine.features.prepare, everything)))

    holds()
    assert set(performed) == {"SaveFeatures", "CreateStream", "EvolveStream", "DeleteStream"}, performed


# -- entity types


def test_changes_of_entity_types_are_made_as_they_are_told(rig: Rig) -> None:
    performed = Counter[str]()

    @settings(max_examples=30)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        entity_type, versions, payload = f"thing_{next(_NAMES)}", count(1), data.draw(payloads())
        for _ in range(data.draw(st.integers(1, 4))):
            owner = data.draw(st.sampled_from((EVERYBODY, EVERYBODY, "somebody")))
            make = data.draw(makes(rig, payload, entity_type, f"{next(versions)}.0.0", owner))
            with suppress(NoSchemaForEntityType):
                performed.update(check(rig, partial(rig.engine.types.prepare, entity_type, owner, make)))
            payload = data.draw(evolved(payload))

    holds()
    assert set(performed) == {"CreateTypeStream", "SaveTypeChanges", "ReplaceHook"}, performed


@st.composite
def makes(draw: st.DrawFn, rig: Rig, payload: dict[str, Any], entity_type: str, version: str, owner: str) -> Propose:
    """A change of a type: a version that is registered, an update, or another version that becomes active."""
    rows = rig.engine.types.versions(entity_type, owner) if rig.engine.types.sees(entity_type, owner) else []
    rows = [row for row in rows if row.user_id == owner]
    kind = draw(st.sampled_from(("register", "update", "activate", "deactivate") if rows else ("register",)))
    if kind == "activate":
        return partial(propose_activation, row=draw(st.sampled_from(rows)))
    if kind == "deactivate":
        return partial(propose_deactivation, row=draw(st.sampled_from(rows)))
    if kind == "update":
        added = {"field_name": f"more_{version[0]}", "field_type": "string"}
        request = read_change_request({"fields_to_add": [added], "activate": draw(st.booleans())})
        assert isinstance(request, ChangeRequest)
        return partial(propose_update, request=request)
    scope, activate = "user" if owner else "global", draw(st.booleans())
    names = {"entity_type": entity_type, "schema_version": version}
    registration = read_registration({**payload, **names, "scope": scope, "activate": activate})
    assert isinstance(registration, TypeRegistration), registration
    return partial(propose_registration, registration=registration)
