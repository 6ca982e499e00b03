"""The examples of the wire: requests that are valid, and the answer to the one that takes something away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.schema.descriptor.diff import diff
from headrace.schema.descriptor.generated import write_node
from headrace.schema.descriptor.registration import Registration, read_registration
from headrace.schema.descriptor.validate import validate

WIRE = Path(__file__).parents[3] / "examples" / "wire"
REQUESTS = ("register-fraud-team", "register-force", "register-dry-run")


def example(name: str) -> Any:
    return msgspec.json.decode((WIRE / f"{name}.json").read_bytes())


def request(name: str) -> Registration:
    found = read_registration(example(f"{name}.request"))
    assert isinstance(found, Registration), found
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_valid_and_is_written_as_it_means(name: str) -> None:
    found = request(name)
    assert validate(found.nodes, found.nodes) == []
    again = read_registration({"descriptors": [write_node(node) for node in found.nodes.values()]})
    assert isinstance(again, Registration)
    assert again.nodes == found.nodes


def test_flags_are_as_the_names_say() -> None:
    flags = [(found.force, found.dry_run) for found in map(request, REQUESTS)]
    assert flags == [(False, False), (True, False), (False, True)]
    assert len({found.app for found in map(request, REQUESTS)}) == 1


def test_the_first_request_adds_everything() -> None:
    team = request("register-fraud-team").nodes
    found = diff({}, team)
    assert found.destructive is False
    assert found.added == sorted(team)
    assert found.removed == []
    assert found.changed == []


def test_the_conflict_is_what_the_forced_request_does_to_the_first() -> None:
    answer, after = example("register-conflict.error"), request("register-force").nodes
    found = diff(request("register-fraud-team").nodes, after)
    assert answer["status"] == "conflict"
    assert answer["registry_version"] == 1
    assert answer["added"] == found.added
    assert answer["removed"] == found.removed
    assert answer["changed"] == found.changed
    places = {name: f"descriptors[{number}]" for number, name in enumerate(after)}
    assert answer["error"]["code"] == "registration_conflict"
    assert [(error["path"], error["message"]) for error in answer["error"]["errors"]] == [
        (places.get(loss.node, f"registry.{loss.node}") + loss.rest, loss.message) for loss in found.losses
    ]


def test_the_dry_run_previews_additive_changes() -> None:
    found = diff(request("register-fraud-team").nodes, request("register-dry-run").nodes)
    assert found.destructive is False
    assert found.removed == []
    assert bool(found.changed) is True
    assert {fate for fates in found.state_effects.values() for fate in fates.values()} == {"kept", "additive"}
