"""Laws of changes of entity types: the table of versions, what updates carry over, overlays, and stable files."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.entity import registration
from headrace.schema.entity.nodes import SOURCE_KINDS, Schema
from headrace.schema.entity.registration import export
from headrace.schema.entity.update import UpdatedSchema, apply_update, overlay_schema
from headrace.schema.entity.versions import Bump, bump_of, differences, parse_version
from schema.entity.samples import payload, schema
from schema.entity.strategies import Document, evolved, payloads, schemas, shuffled, updates
from schema.entity.updating import request

#: The options that say the same whatever fields there are.
FREE = (
    "aliases",
    "query_synonyms",
    "constraint_violation_policy",
    "duplicate_detection_threshold",
    "agent_instructions",
)


def identity(document: Document) -> Any:
    rules = document.get("canonical_name_fields", [])
    flat = all(isinstance(rule, str) for rule in rules)
    ordered = [rules] if rules and flat else [rule["composite"] if isinstance(rule, dict) else [rule] for rule in rules]
    kept = {name: document["fields"][name].get("preserveCase", False) for rule in ordered for name in rule}
    return ordered, document.get("canonical_name_strict", False), kept


def policy(config: Document, name: str) -> Any:
    return {"tie_breaker": "observed_at", **config["merge_policies"].get(name, {"strategy": "last_write"})}


def meaning(members: Document) -> Any:
    """A registration in one spelling."""
    document, config = members["schema_definition"], members["reducer_config"]
    rest = {name: value for name, value in document.items() if name != "canonical_name_fields"}
    return json.dumps(
        [
            {**rest, "aliases": sorted(document.get("aliases", []))},
            identity(document)[0],
            {name: policy(config, name) for name in document["fields"]},
            config.get("observation_source_priority") or list(SOURCE_KINDS),
            config.get("source_priorities", {}),
            members["metadata"],
        ],
        sort_keys=True,
    )


def table(old: Document, new: Document) -> Bump:
    """The bump by the table, from the documents themselves; only for what the table of the reference names."""
    was, now = old["schema_definition"], new["schema_definition"]
    found = Bump.NONE
    if identity(was) != identity(now):
        found = Bump.MAJOR
    for name in {**was["fields"], **now["fields"]}:
        before, after = was["fields"].get(name), now["fields"].get(name)
        if after is None or (before is None and after.get("required")):
            return Bump.MAJOR
        if before is None:
            found = max(found, Bump.MINOR)
            continue
        gone = [one for one in before.get("converters", []) if one not in after.get("converters", [])]
        if before["type"] != after["type"] or gone or (after.get("required") and not before.get("required")):
            return Bump.MAJOR
        if before.get("converters") != after.get("converters"):
            found = max(found, Bump.MINOR)
        if policy(old["reducer_config"], name) != policy(new["reducer_config"], name):
            found = max(found, Bump.MINOR)
        if before.get("description") != after.get("description"):
            found = max(found, Bump.PATCH)
    return max(found, Bump.PATCH) if old["metadata"] != new["metadata"] else found


def test_every_change_moves_the_version_at_least_as_the_table_says() -> None:
    seen = Counter[Bump]()

    @settings(max_examples=150)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        old = data.draw(payloads())
        new = data.draw(evolved(old))
        bump = bump_of(differences(schema(**old), schema(**new)))
        assert bump >= table(old, new)
        assert (bump is Bump.NONE) == (meaning(old) == meaning(new))
        assert differences(schema(**old), schema(**old)) == []
        seen[table(old, new)] += 1

    holds()
    assert seen[Bump.MAJOR] >= 10, seen
    assert seen[Bump.MINOR] + seen[Bump.PATCH] + seen[Bump.NONE] >= 5, seen


def test_a_change_of_one_table_row_moves_the_version_exactly_so() -> None:
    @settings(max_examples=60)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        old = data.draw(payloads())
        fields = old["schema_definition"]["fields"]
        required = data.draw(st.booleans())
        added = {**fields, "fresh": {"type": "string", **({"required": True} if required else {})}}
        new = {**old, "schema_definition": {**old["schema_definition"], "fields": added}}
        there, back = differences(schema(**old), schema(**new)), differences(schema(**new), schema(**old))
        assert [difference.bump for difference in there] == [Bump.MAJOR if required else Bump.MINOR]
        assert [difference.change.what for difference in back] == ["field_removed"]
        assert bump_of(back) is Bump.MAJOR

    holds()


def valid(made: Schema) -> bool:
    """Whether a schema could have been registered as it is."""
    members = {
        name: made.dump()[name] for name in ("schema_version", "schema_definition", "reducer_config", "metadata")
    }
    found = registration.read_registration(payload(**members))
    assert isinstance(found, registration.TypeRegistration), found
    return (found.schema.schema_definition, found.schema.reducer_config) == (
        made.schema_definition,
        made.reducer_config,
    )


def test_an_update_loses_nothing_that_it_does_not_speak_of() -> None:
    seen = Counter[str]()

    @settings(max_examples=150)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        base = data.draw(schemas())
        asked = data.draw(updates(base))
        taken = data.draw(st.lists(st.sampled_from(["1.0.1", "1.1.0", "1.2.0", "2.0.0"]), unique=True))
        made = apply_update(base, request(asked), taken)
        assert isinstance(made, UpdatedSchema), made
        assert valid(made.schema)
        _carried(base, made.schema, asked)
        removed = [name for name in asked.get("fields_to_remove", []) if name in base.schema_definition.fields]
        assert not removed or made.bump is Bump.MAJOR
        old, new = parse_version(base.schema_version), parse_version(made.schema.schema_version)
        assert old is not None
        assert new is not None
        if made.bump is Bump.NONE:
            assert made.schema == base
            assert made.differences == []
        else:
            assert new > old
            assert made.schema.schema_version not in taken
        again = apply_update(made.schema, request(asked), taken)
        assert isinstance(again, UpdatedSchema)
        assert again.schema == made.schema
        seen[made.bump.name] += 1

    holds()
    assert min(seen[bump.name] for bump in (Bump.NONE, Bump.MINOR, Bump.MAJOR)) >= 3, seen


def _carried(base: Schema, made: Schema, asked: Document) -> None:
    """Hold the documents before and after against each other."""
    was, now = base.dump(), made.dump()
    old, new = was["schema_definition"], now["schema_definition"]
    removed = asked.get("fields_to_remove", [])
    for name, field in old["fields"].items():
        if name in removed:
            assert name not in json.dumps({**new, "fields": list(new["fields"])}).replace("new_", "").split('"')
            assert name not in now["reducer_config"]["merge_policies"]
            continue
        found = new["fields"][name]
        assert {**found, "converters": None} == {**field, "converters": None}
        assert found.get("converters", [])[: len(field.get("converters", []))] == field.get("converters", [])
        assert now["reducer_config"]["merge_policies"].get(name) == was["reducer_config"]["merge_policies"].get(name)
    assert all(new.get(option) == old.get(option) for option in FREE)
    if not removed:
        names = [name for name in old if not name.startswith(("fields", "canonical", "identity_opt", "name_coll"))]
        assert all(new.get(option) == old.get(option) for option in names)
    assert was["metadata"].keys() <= now["metadata"].keys()
    for option in ("observation_source_priority", "source_priorities"):
        assert now["reducer_config"].get(option) == was["reducer_config"].get(option)
    assert {name: was[name] for name in ("entity_type", "scope", "user_id", "base_version")} == {
        name: now[name] for name in ("entity_type", "scope", "user_id", "base_version")
    }


@settings(max_examples=100)
@given(st.data())
def test_an_overlay_follows_what_is_global_and_keeps_what_is_the_users(data: st.DataObject) -> None:
    members = data.draw(payloads())
    base, user = schema(**members), schema(**data.draw(evolved(members)))
    later = schema(**data.draw(evolved(members)))
    assert overlay_schema(user, base, base) == user
    followed = overlay_schema(base, base, later)
    assert followed.schema_definition == later.schema_definition
    assert followed.reducer_config == later.reducer_config
    found = overlay_schema(user, base, later)
    assert valid(found)
    before, own, today = (one.schema_definition.fields for one in (base, user, later))
    expected = {
        name: own.get(name) if own.get(name) != before.get(name) else today.get(name)
        for name in {**before, **own, **today}
    }
    left = {name: field for name, field in expected.items() if field is not None}
    assert found.schema_definition.fields == (left or own)


@settings(max_examples=60)
@given(schemas(), schemas())
def test_a_schema_made_from_none_shows_every_global_field(user: Schema, current: Schema) -> None:
    found = overlay_schema(user, None, current)
    assert valid(found)
    assert found.schema_definition.fields == {**current.schema_definition.fields, **user.schema_definition.fields}


@settings(max_examples=60)
@given(payloads(), st.integers())
def test_a_file_has_the_same_bytes_however_the_schema_was_spelled(members: Document, seed: int) -> None:
    one = export(schema(**members))
    turned = {name: shuffled(value, seed) for name, value in members.items()}
    assert export(schema(**turned)) == one
    assert export(schema(**json.loads(one))) == one
    assert (
        msgspec.json.decode(one)["schema_definition"]["fields"].keys() == members["schema_definition"]["fields"].keys()
    )
