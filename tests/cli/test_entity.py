"""``headrace entity-type`` and ``headrace entity``: a story from a file to snapshots, and exit codes for scripts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli import output
from headrace.storage.keys import KeyStore

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

_numbers = itertools.count(1)


@pytest.fixture
def contact(headrace: Headrace, at: ServerProcess, tmp_path: Path) -> str:
    """A type that no other test has, registered from a file."""
    name = f"cli_contact{next(_numbers)}"
    schema = {
        "entity_type": name,
        "schema_version": "1.0",
        "schema_definition": {
            "fields": {"name": {"type": "string"}, "age": {"type": "number"}},
            "canonical_name_fields": ["name"],
        },
        "reducer_config": {"merge_policies": {}},
    }
    done = headrace("entity-type", "register", _file(tmp_path, schema), "--activate")
    assert done.code == output.OK
    assert done.lines[0]["schema_version"] == "1.0.0"
    return name


def _file(directory: Path, value: Any) -> str:
    path = directory / "given.json"
    path.write_text(json.dumps(value))
    return str(path)


def test_a_file_of_entities_is_stored_once(headrace: Headrace, contact: str, tmp_path: Path) -> None:
    file = tmp_path / "people.jsonl"
    file.write_text('{"name": "Ada", "age": 36, "mood": "good"}\n\n{"name": "Bob"}\n')
    dry = headrace("entity", "store", str(file), "--entity-type", contact, "--dry-run")
    assert dry.lines == [{"entities": 2, "would_create": 2, "UNKNOWN_FIELD": 1}]
    first = headrace("entity", "store", str(file), "--entity-type", contact)
    again = headrace("entity", "store", str(file), "--entity-type", contact)
    assert first.lines[0]["created"] == 2
    assert again.lines[0]["unchanged"] == 2
    names = [one["canonical_name"] for one in headrace("entity", "ls", contact).lines]
    assert names == [f"{contact}:ada", f"{contact}:bob"]


def test_an_entity_is_read_corrected_deleted_and_restored(headrace: Headrace, contact: str, tmp_path: Path) -> None:
    file = _file(tmp_path, [{"entity_type": contact, "name": "Ada", "age": 36}])
    headrace("entity", "store", file)
    [ada] = [one["entity_id"] for one in headrace("entity", "ls", contact).lines]
    headrace("entity", "correct", ada, "age=37", "name=Ada L.")
    assert headrace("entity", "get", ada).lines[0]["snapshot"] == {"name": "Ada L.", "age": 37}
    assert [one["kind"] for one in headrace("entity", "history", ada).lines] == ["correction", "observation"]
    assert headrace("entity", "delete", ada).code == output.OK
    gone = headrace("entity", "get", ada)
    assert gone.code == output.FAILED and "deleted" in gone.err
    headrace("entity", "restore", ada)
    assert headrace("entity", "get", ada).code == output.OK


def test_entities_are_merged_and_that_is_taken_back(headrace: Headrace, contact: str, tmp_path: Path) -> None:
    rows = [{"entity_type": contact, "name": name} for name in ("Jon", "John")]
    headrace("entity", "store", _file(tmp_path, rows))
    jon, john = (one["entity_id"] for one in headrace("entity", "ls", contact).lines)
    assert headrace("entity", "merge", jon, john).code == output.OK
    assert headrace("entity", "get", jon).lines[0]["entity_id"] == john
    assert headrace("entity", "merge", jon, "--undo").code == output.OK
    assert headrace("entity", "get", jon).lines[0]["entity_id"] == jon
    assert headrace("entity", "merge", jon).code == output.USAGE


def test_a_type_is_changed_and_changed_back(headrace: Headrace, contact: str, tmp_path: Path) -> None:
    change = _file(tmp_path, {"fields_to_add": [{"field_name": "mood", "field_type": "string"}]})
    assert headrace("entity-type", "update", contact, change, "--dry-run").lines[0]["schema_version"] == "1.1.0"
    assert headrace("entity-type", "show", contact).lines[0]["schema_version"] == "1.0.0"
    assert headrace("entity-type", "update", contact, change).code == output.OK
    shown = headrace("entity-type", "show", contact, "--versions").lines
    assert [(one["schema_version"], one["active"]) for one in shown] == [("1.1.0", True), ("1.0.0", False)]
    assert headrace("entity-type", "activate", contact, "1.0.0").lines[0]["active"]
    listed = {one["entity_type"]: one["fields"] for one in headrace("entity-type", "ls").lines}
    assert listed[contact] == ["name", "age"]
    files = headrace("entity-type", "export", contact, str(tmp_path / "out")).lines
    assert [Path(one["file"]).name for one in files] == ["v1.0.0.json", "v1.1.0.json"]
    assert json.loads(Path(files[1]["file"]).read_text())["schema_definition"]["fields"]["mood"]


def test_unknown_fields_become_fields_after_a_look(headrace: Headrace, contact: str, tmp_path: Path) -> None:
    for number in range(4):
        row = {"entity_type": contact, "name": f"P{number}", "city_name": "Town"}
        headrace("entity", "store", _file(tmp_path, [row]))
    [found] = headrace("entity-type", "candidates", contact).lines[0]["candidates"]
    assert found["fragment_key"] == "city_name"
    assert found["promotable"] is True
    assert headrace("entity-type", "enhance", contact).lines[0]["dry_run"]
    done = headrace("entity-type", "enhance", contact, "--apply", "--migrate").lines[0]
    assert done["fields_added"] == ["city_name"]
    assert done["migration"]["migrated"] == 4
    assert {one["snapshot"]["city_name"] for one in headrace("entity", "ls", contact).lines} == {"Town"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("entity", "get", "ent_unknown"), output.FAILED),
        (("entity", "correct", "ent_unknown"), output.USAGE),
        (("entity", "correct", "ent_unknown", "name"), output.USAGE),
        (("entity", "store", "missing.json"), output.USAGE),
        (("entity-type", "register", "missing.json"), output.USAGE),
        (("entity-type", "show", "no_such_type"), output.FAILED),
    ],
)
def test_what_cannot_be_done_is_said(headrace: Headrace, at: ServerProcess, words: tuple[str, ...], code: int) -> None:
    done = headrace(*words)
    assert done.code == code
    assert done.out == b""
    assert done.err.startswith("headrace: ")


def test_sources_are_shown_by_their_names(
    headrace: Headrace, contact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "people.jsonl"
    file.write_text('{"name": "Ada", "age": 36}\n')
    crm_a, crm_b = f"crm-a of {contact}", f"crm-b of {contact}"
    options = ("--entity-type", contact, "--source-priority", "5")
    stored = headrace("entity", "store", str(file), *options, "--source", crm_a)
    assert stored.lines[0]["SOURCE_PRIORITY_IGNORED"] == 1
    assert "the latest value wins" in stored.err
    file.write_text('{"name": "Ada", "age": 37}\n')
    headrace("entity", "store", str(file), *options, "--source", crm_b)
    [ada] = headrace("entity", "ls", contact, "--source", crm_b).lines
    assert ada["sources"] == {"name": [crm_b], "age": [crm_b]}
    assert headrace("entity", "ls", contact, "--source", crm_a).lines == []
    [observation] = headrace("entity", "history", ada["entity_id"], "--source", crm_a).lines
    assert observation["source"]["name"] == crm_a and observation["fields"]["age"] == 36
    unknown = headrace("entity", "history", ada["entity_id"], "--source", "nobody")
    assert unknown.code == output.FAILED and "no such source" in unknown.err
    headrace("entity", "correct", ada["entity_id"], "age=38")
    file.write_text('{"name": "ada"}\n')
    headrace("entity", "store", str(file), *options)
    monkeypatch.setattr(output, "wants_table", lambda as_json: True)
    monkeypatch.setenv("COLUMNS", "200")
    history = headrace("entity", "history", ada["entity_id"]).out.decode()
    assert "source" in history.splitlines()[0] and crm_a in history and crm_b in history
    shown = headrace("entity", "get", ada["entity_id"], "--provenance").out.decode()
    assert "(correction)" in shown and "src_" in shown and "…" in shown
    assert "sources" in headrace("entity", "ls", contact).out.decode().splitlines()[0]


def test_a_source_is_observed_by_words_and_by_files(headrace: Headrace, contact: str, tmp_path: Path) -> None:
    source = ("--source", f"crm-a of {contact}", "--type", contact)
    [stored] = headrace("entity", "observe", "name=Ada", "age=36", *source).lines
    assert stored["action"] == "created" and stored["source"] == source[1]
    assert headrace("entity", "observe", "name=Ada", "age=36", *source).lines[0]["action"] == "unchanged"
    file, rejects = tmp_path / "people.csv", tmp_path / "rejects.jsonl"
    file.write_text("name,age,seen\nAda,37,2040-01-01T00:00:00Z\nBob,,2040-01-01T00:00:00Z\nCyd,5,\n")
    options = ("--observed-at-field", "seen", "--rejects", str(rejects))
    first = headrace("entity", "observe", str(file), *source, *options)
    assert first.code == output.PARTIAL and "row 3" in first.err and "no value in seen" in first.err
    assert first.lines == [{"source": source[1], "rows": 3, "updated": 1, "created": 1, "rejected": 1}]
    assert json.loads(rejects.read_text())["number"] == 3
    assert headrace("entity", "observe", str(file), *source, *options).lines[0]["unchanged"] == 2
    assert [one["snapshot"] for one in headrace("entity", "ls", contact, "--source", source[1]).lines] == [
        {"name": "Ada", "age": 37}, {"name": "Bob"},
    ]  # fmt: skip
    assert headrace("entity", "observe", *source).code == output.USAGE
    assert headrace("entity", "observe", str(tmp_path / "none.csv"), *source).code == output.USAGE
    assert headrace("entity", "observe", "name=Ada", "--observed-at-field", "seen", *source).code == output.USAGE
    dry = headrace("entity", "observe", "name=Dee", *source, "--dry-run")
    assert dry.lines[0]["action"] == "would_create"


def _stream_of_people(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    people = [{"who": {"name": person}, "years": age, "at": 1_700_000_000} for person, age in (("Ada", 36), ("Bob", 5))]
    lines = [*map(json.dumps, people), '{"who": 5}']
    headrace("stream", "append", name, stdin="\n".join(lines).encode())


def test_the_events_of_a_stream_are_observed_once(headrace: Headrace, contact: str, name: str, tmp_path: Path) -> None:
    _stream_of_people(headrace, name)
    rejects = tmp_path / "rejects.jsonl"
    observe = ("entity", "observe", "--from-stream", name, "--type", contact, "--rejects", str(rejects))
    mapped = (*observe, "--map", "name=/who/name", "--map", "age=years")
    dry = headrace(*mapped, "--dry-run")
    assert dry.code == output.PARTIAL and dry.lines[0]["would_create"] == 2
    first = headrace(*mapped)
    [counts] = first.lines
    assert first.code == output.PARTIAL and counts["stream"] == counts["source"] == name
    assert (counts["events"], counts["created"], counts["rejected"]) == (3, 2, 1)
    [rejected] = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert rejected["offset"] == counts["next_offset"] and "/who/name" in rejected["reason"]
    assert f"the event at {rejected['offset']} of {name}: the event has none of the mapped fields" in first.err
    headrace("stream", "append", name, '{"who": {"name": "Cyd"}, "years": 7}')
    second = headrace(*mapped, "--offset", counts["next_offset"], "--json")
    assert second.code == output.OK and second.lines[0]["created"] == 1
    third = headrace(*mapped)
    assert third.code == output.PARTIAL and third.lines[0]["unchanged"] == 3 and "updated" not in third.lines[0]
    by_json = headrace(*observe, "--map", '{"name": "/who/name", "age": "/years"}')
    assert by_json.lines[0]["unchanged"] == 3
    assert [one["snapshot"]["age"] for one in headrace("entity", "ls", contact, "--source", name).lines] == [36, 5, 7]


def test_the_time_and_the_version_of_events_are_chosen(headrace: Headrace, contact: str, name: str) -> None:
    _stream_of_people(headrace, name)
    observe = ("entity", "observe", "--from-stream", name, "--type", contact, "--map", "name=/who/name")
    untimed = headrace(*observe, "--observed-at-field", "at")
    assert untimed.lines[0]["rejected"] == 3 and "say its unit" in untimed.err
    timed = headrace(*observe, "--observed-at-field", "at", "--observed-at-unit", "s", "--source", "crm")
    assert timed.lines[0]["source"] == "crm" and timed.lines[0]["created"] == 2
    assert headrace("entity", "ls", contact).lines[0]["last_observation_at"] == "2023-11-14T22:13:20Z"
    versioned = headrace(*observe, "--schema-version", "3")
    assert versioned.code == output.FAILED and "version" in versioned.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("name=Ada", "--from-stream", "s", "--source", "a"), "leave out files"),
        (("--from-stream", "s", "--format", "csv"), "leave out files"),
        (("--map", "name=name", "--source", "a"), "add --from-stream"),
        (("name=Ada", "--source", "a", "--offset", "-1"), "add --from-stream"),
        (("name=Ada",), "--source NAME"),
        ((), "--from-stream NAME"),
        (("--from-stream", "s", "--map", "name"), "FIELD=/POINTER"),
        (("--from-stream", "s", "--map", "{name}"), "not an object"),
    ],
)
def test_how_streams_are_observed_is_said(
    headrace: Headrace, at: ServerProcess, words: tuple[str, ...], reason: str
) -> None:
    done = headrace("entity", "observe", "--type", "person", *words)
    assert done.code == output.USAGE and reason in done.err


def test_keys_need_to_read_the_stream_and_to_write_entities(
    headrace: Headrace, contact: str, name: str, at: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stream_of_people(headrace, name)
    store = KeyStore(at.data_dir / "keys.db")
    try:
        keys = {
            scope: store.create(user_id="ann", scopes=scopes, prefix=prefix)[1]
            for scope, scopes, prefix in (("read", ["read"], ""), ("write", ["read", "write"], ""),
                                          ("entities", ["read", "write"], "entities/"))
        }  # fmt: skip
    finally:
        store.close()
    observe = ("entity", "observe", "--from-stream", name, "--type", contact, "--map", "name=/who/name")
    monkeypatch.setenv("HEADRACE_KEY", keys["read"])
    refused = headrace(*observe)
    assert refused.code == output.FAILED and "lacks the scope write" in refused.err
    monkeypatch.setenv("HEADRACE_KEY", keys["entities"])
    assert "opens only some streams" in headrace(*observe).err
    monkeypatch.setenv("HEADRACE_KEY", keys["write"])
    assert headrace(*observe).lines[0]["created"] == 2
