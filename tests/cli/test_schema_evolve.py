"""``headrace schema evolve``: fields are renamed, added, removed and converted without a document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.test_main import Terminal

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

pytestmark = pytest.mark.usefixtures("at")

OPEN = {
    "type": "object",
    "properties": {"at": {"type": "integer"}, "service": {"type": "string"}, "duration_ms": {"type": "integer"}},
    "required": ["at", "duration_ms"],
}
SEARCH = {
    "primaryTimestampField": "at",
    "fields": {
        "at": {"kind": "date", "column": True, "bindings": [{"version": 1, "jsonPointer": "/at"}]},
        "ms": {
            **{"kind": "integer", "exact": True, "column": True, "aggregatable": True},
            "bindings": [{"version": 1, "jsonPointer": "/duration_ms"}],
        },
    },
    "rollups": {
        "load": {
            "dimensions": [],
            "intervals": ["1h"],
            "measures": {"p": {"kind": "quantiles", "field": "ms"}, "count": {"kind": "count"}},
        }
    },
}
EVENTS = [{"at": 1_000 * number, "duration_ms": number, "service": "web"} for number in range(1, 4)]


@pytest.fixture
def requests(headrace: Headrace, name: str, tmp_path: Path) -> str:
    """A stream with an open schema, a search field and a rollup over it, and three events."""
    for part, document in {"schema": OPEN, "search": SEARCH}.items():
        (tmp_path / part).write_text(json.dumps(document))
    headrace("stream", "create", name)
    words = ["--schema", str(tmp_path / "schema"), "--search", str(tmp_path / "search")]
    assert headrace("schema", "apply", name, *words).code == 0
    headrace("stream", "append", name, *map(json.dumps, EVENTS))
    return name


def read(headrace: Headrace, name: str, *words: str) -> list[Any]:
    done = headrace("stream", "read", name, *words)
    assert done.code == 0, done.err
    return done.lines


def test_one_command_renames_a_field_and_adds_one(headrace: Headrace, requests: str) -> None:
    done = headrace(
        "schema", "evolve", requests, "--rename", "duration_ms=latency_ms", "--add", "region:string=eu", "--yes"
    )
    assert done.code == 0, done.err
    (plan,) = done.lines
    assert [plan["from_version"], plan["to_version"], plan["refusals"]] == [1, 2, []]
    assert "/latency_ms or /region" in done.err
    assert "is new and required" not in done.out.decode()
    assert read(headrace, requests) == [
        {"at": event["at"], "latency_ms": event["duration_ms"], "service": "web", "region": "eu"} for event in EVENTS
    ]
    assert read(headrace, requests, "--schema-version", "1") == EVENTS
    headrace("stream", "append", requests, '{"at": 4000, "latency_ms": 4}')
    assert read(headrace, requests, "--schema-version", "1")[-1] == {"at": 4000, "duration_ms": 4}
    assert headrace("stream", "append", requests, '{"at": 4000, "duration_ms": 4}').code == 1


def test_searches_and_rollups_follow_a_renamed_field(headrace: Headrace, requests: str) -> None:
    def ask() -> tuple[Any, Any]:
        found = headrace("search", requests, "ms:>1", "--json").lines
        hours = headrace(
            *("aggregate", requests, "load", "--from", "1970-01-01", "--to", "1970-01-02", "--interval", "1h")
        ).lines
        return [hit["fields"]["ms"] for hit in found if "fields" in hit] or found, [hour["measures"] for hour in hours]

    before = ask()
    assert before[1][0]["count"]["count"] == 3
    words = ["--rename", "duration_ms=latency_ms", "--add", "region:string=eu", "--require", "region"]
    done = headrace("schema", "evolve", requests, *words, "--yes")
    assert done.lines[0]["impact"] == []
    fields = done.lines[0]["registry"]["search"]["fields"]
    assert fields["ms"]["bindings"][-1] == {"version": 2, "jsonPointer": "/latency_ms"}
    assert ask() == before


def test_dry_run_shows_the_plan_and_changes_nothing(headrace: Headrace, requests: str) -> None:
    done = headrace("schema", "evolve", requests, "--remove", "service", "--convert", "at:number", "--dry-run")
    assert done.code == 0, done.err
    (plan,) = done.lines
    assert plan["lens"]["document"]["ops"] == [
        {"op": "remove", "path": "/service", "schema": {"type": "string"}, "optional": True}
    ]
    assert headrace("schema", "show", requests).lines[0]["currentVersion"] == 1


def test_edit_that_searches_lose_values_by_needs_yes(headrace: Headrace, requests: str) -> None:
    done = headrace("schema", "evolve", requests, "--remove", "duration_ms=0")
    assert done.code == 2
    assert "leaves /search/fields/ms, /search/rollups/load without values" in done.err
    assert "--yes" in done.err
    assert read(headrace, requests) == EVENTS


def test_person_sees_the_plan_and_is_asked(headrace: Headrace, requests: str) -> None:
    running = Terminal(["schema", "evolve", requests, "--rename", "duration_ms=latency_ms"])
    running.say("y\n")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", running.shown())
    assert running.ended() == 0
    assert f"{requests}: version 1 to 2, destructive" in shown
    assert "the lens moves it to /latency_ms" in " ".join(shown.split())
    assert f"{requests} is at version 2." in shown


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ((), 2, "Say what to change: --rename"),
        (("--rename", "duration_ms"), 2, "does not have the form OLD=NEW"),
        (("--rename", "nope=x"), 1, "The schema has no field /nope; there are: at, service, duration_ms."),
        (("--add", "region"), 1, "write NAME:TYPE or NAME:TYPE=DEFAULT"),
        (("--add", "region:strnig"), 1, "types are: string, integer"),
        (("--convert", "service:integer"), 1, "The change is refused"),
        (("--require", "service"), 1, "is now required"),
        (("--add", 'region:{"type":"integer"}="eu"'), 1, "the default does not fit"),
    ],
)
def test_edit_that_cannot_be_made_changes_nothing(
    headrace: Headrace, requests: str, words: tuple[str, ...], code: int, reason: str
) -> None:
    done = headrace("schema", "evolve", requests, *words, "--yes")
    assert done.code == code
    assert reason in done.err
    assert headrace("schema", "show", requests).lines[0]["currentVersion"] == 1


def test_stream_without_a_schema_is_told_how_to_get_one(headrace: Headrace, name: str, at: ServerProcess) -> None:
    headrace("stream", "create", name)
    done = headrace("schema", "evolve", name, "--remove", "a")
    assert done.code == 1
    assert f"headrace schema infer {name}" in done.err
