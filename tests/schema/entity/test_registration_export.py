from __future__ import annotations

import json

import msgspec

from headrace.schema.entity.registration import export, path
from schema.entity.samples import CONTACT, POLICIES, defined, payload, schema


def test_a_file_holds_the_whole_version_and_can_be_registered_again() -> None:
    document = json.loads(export(schema()))
    assert document == {**payload(), "scope": "global"}
    assert schema(**document) == schema()


def test_the_bytes_are_the_same_however_the_schema_was_spelled() -> None:
    turned = {name: CONTACT[name] for name in reversed(CONTACT)}
    turned["fields"] = {name: CONTACT["fields"][name] for name in reversed(CONTACT["fields"])}
    turned["fields"]["age"] = {**CONTACT["fields"]["age"], "constraints": {"max": 150.0, "min": 0.0}}
    policies = {name: POLICIES[name] for name in reversed(POLICIES)}
    assert export(schema(schema_definition=turned, reducer_config=policies)) == export(schema())


def test_the_bytes_are_these() -> None:
    assert (
        export(defined({"b": "string", "a": "date"})).decode()
        == """{
  "entity_type": "contact",
  "metadata": {},
  "reducer_config": {
    "merge_policies": {}
  },
  "schema_definition": {
    "fields": {
      "a": {
        "type": "date"
      },
      "b": {
        "type": "string"
      }
    },
    "identity_opt_out": "heuristic_canonical_name"
  },
  "schema_version": "1.0.0",
  "scope": "global"
}
"""
    )


def test_each_version_has_a_file_and_a_user_cannot_leave_his_place() -> None:
    assert path(schema()) == "schema_snapshots/contact/v1.0.0.json"
    user = msgspec.structs.replace(schema(), scope="user", user_id="../x")
    assert path(user) == "schema_snapshots/users/%2E%2E%2Fx/contact/v1.0.0.json"
