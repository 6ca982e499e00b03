"""``headrace schema``: plans for people and programs, changes that ask, and a comparison without a server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.test_main import Terminal

from headrace.cli import plans

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

WHOLE = {"type": "integer"}
WORD = {"type": "string"}

Written = Callable[[str, Any], str]


def shape(*optional: str, **members: Any) -> dict[str, Any]:
    required = [name for name in members if name not in optional]
    return {"type": "object", "properties": members, "required": required, "additionalProperties": False}


def lens(name: str, *ops: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "durable.lens/v1", "schema": name, "from": 1, "to": 2, "ops": list(ops)}


RENAME = {"op": "rename", "from": "/qty", "to": "/total"}


@pytest.fixture
def file(tmp_path: Path) -> Written:
    """Write a value to a file; its path."""

    def write(name: str, value: Any) -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(value))
        return str(path)

    return write


@pytest.fixture
def orders(at: ServerProcess, headrace: Headrace, name: str, file: Written) -> str:
    """A stream at version 1, with one event."""
    headrace("stream", "create", name)
    assert headrace("schema", "apply", name, "--schema", file("first", shape(qty=WHOLE))).code == 0
    headrace("stream", "append", name, '{"qty": 1}')
    return name


@pytest.mark.parametrize(
    ("new", "classification", "code"),
    [
        (shape(qty=WHOLE), "identical", 0),
        (shape("note", qty=WHOLE, note=WORD), "additive", 0),
        (shape(qty={"type": "number"}), "widening", 0),
        (shape(qty=WHOLE, unit=WORD), "destructive", 3),
        (shape(qty={"type": "integer", "minimum": 0}), "destructive", 3),
        (shape(total=WHOLE), "destructive", 3),
    ],
)
def test_diff_tells_by_its_exit_code_what_destroys(
    headrace: Headrace, file: Written, new: Any, classification: str, code: int
) -> None:
    done = headrace("schema", "diff", file("old", shape(qty=WHOLE)), file("new", new))
    assert done.code == code
    assert done.lines[0]["classification"] == classification
    assert bool(done.lines[0]["changes"]) == (classification != "identical")
    assert done.err == ""


@pytest.mark.parametrize("content", [b"{oops", b"\xff", b'{"type": "nonsense"}', b'"text"', None])
def test_diff_names_the_file_that_is_no_schema(
    headrace: Headrace, file: Written, tmp_path: Path, content: bytes | None
) -> None:
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_bytes(content)
    done = headrace("schema", "diff", file("old", shape(qty=WHOLE)), str(bad))
    assert done.code == 2
    assert "bad.json" in done.err
    assert done.out == b""


def test_diff_says_what_to_install_where_the_validator_is_missing(
    headrace: Headrace, file: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    monkeypatch.delitem(sys.modules, "headrace.schema.document", raising=False)
    done = headrace("schema", "diff", file("old", True), file("new", True))
    assert done.code == 1
    assert "headrace[server]" in done.err


def test_commands_load_no_validator_and_no_server() -> None:
    absent = ["apsw", "jsonschema_rs", "headrace.schema", "headrace.server", "headrace.client", "httpx2"]
    code = f"import headrace.cli.schema, sys\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_plan_changes_nothing(headrace: Headrace, orders: str, file: Written) -> None:
    before = headrace("schema", "show", orders).lines
    wider = file("wider", shape("note", qty=WHOLE, note=WORD))
    done = headrace("schema", "plan", orders, "--schema", wider)
    assert done.code == 0
    (planned,) = done.lines
    assert planned["from_version"] == 1
    assert planned["to_version"] == 2
    assert planned["classification"] == "additive"
    assert planned["lens"] == {"document": lens(orders), "written": True}
    assert planned["registry"]["currentVersion"] == 2
    assert headrace("schema", "show", orders).lines == before


@pytest.mark.parametrize("verb", ["plan", "apply"])
@pytest.mark.parametrize(
    ("ops", "code", "step"), [(None, "lens_required", "--lens FILE"), ([], "lens_unsound", "Mend the lens")]
)
def test_refusal_says_why_and_what_to_do_next(
    headrace: Headrace, orders: str, file: Written, verb: str, ops: list[Any] | None, code: str, step: str
) -> None:
    words = ["--schema", file("next", shape(total=WHOLE))]
    words += [] if ops is None else ["--lens", file("lens", lens(orders, *ops))]
    done = headrace("schema", verb, orders, *words)
    assert done.code == 1
    assert {refusal["code"] for refusal in done.lines[0]["refusals"]} == {code}
    assert step in done.err
    assert headrace("schema", "show", orders).lines[0]["currentVersion"] == 1
    as_json = headrace("schema", verb, orders, *words, "--json")
    assert json.loads(as_json.err)["error"]["code"] == "plan_refused"


def test_lens_from_another_version_is_a_conflict(headrace: Headrace, orders: str, file: Written) -> None:
    other = {**lens(orders, RENAME), "from": 2, "to": 3}
    words = ["--schema", file("next", shape(total=WHOLE)), "--lens", file("lens", other)]
    done = headrace("schema", "plan", orders, *words)
    assert done.code == 1
    assert f"headrace schema show {orders}" in done.err


def test_first_schema_of_a_stream_with_events_needs_a_new_stream(
    at: ServerProcess, headrace: Headrace, name: str, file: Written
) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, '{"qty": 1}')
    done = headrace("schema", "apply", name, "--schema", file("first", shape(qty=WHOLE)))
    assert done.code == 1
    assert f"headrace stream read {name} | headrace stream append NEW" in done.err


def test_schema_that_is_none_is_refused_where_it_is_wrong(headrace: Headrace, orders: str, file: Written) -> None:
    done = headrace("schema", "plan", orders, "--schema", file("bad", {"properties": {"qty": {"type": "nonsense"}}}))
    assert done.code == 1
    assert [refusal["pointer"] for refusal in done.lines[0]["refusals"]] == ["/schema/properties/qty/type"]
    assert "where the pointers say" in done.err


def test_destructive_change_without_a_terminal_needs_yes(headrace: Headrace, orders: str, file: Written) -> None:
    words = ["--schema", file("next", shape(total=WHOLE)), "--lens", file("lens", lens(orders, RENAME))]
    asked = headrace("schema", "apply", orders, *words)
    assert asked.code == 2
    assert "--yes" in asked.err
    assert headrace("stream", "read", orders).out == b'{"qty": 1}\n'
    done = headrace("schema", "apply", orders, *words, "--yes")
    assert done.code == 0
    assert done.lines[0]["lens"]["written"] is False
    assert done.lines[0]["registry"] == headrace("schema", "show", orders).lines[0]
    assert json.loads(headrace("stream", "read", orders).out) == {"total": 1}


def test_repeated_change_changes_nothing(headrace: Headrace, orders: str, file: Written) -> None:
    done = headrace("schema", "apply", orders, "--schema", file("same", shape(qty=WHOLE)))
    assert done.code == 0
    assert done.lines[0]["changes"] == []
    assert done.lines[0]["to_version"] == 1
    assert len(headrace("schema", "history", orders).lines) == 1


def test_routing_key_and_search_are_set_and_cleared(headrace: Headrace, orders: str, file: Written) -> None:
    assert headrace("schema", "apply", orders, "--routing-key", "/user", "--optional").code == 0
    fields = {
        "at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}], "column": True},
        "qty": {"kind": "integer", "bindings": [{"version": 1, "jsonPointer": "/qty"}], "column": True},
    }
    search = {"primaryTimestampField": "at", "fields": fields}
    assert headrace("schema", "apply", orders, "--search", file("search", search)).code == 0
    assert headrace("schema", "apply", orders, "--search", file("none", None)).code == 2
    assert headrace("schema", "apply", orders, "--search", file("none", None), "--yes").code == 0
    revisions = [revision["registry"] for revision in headrace("schema", "history", orders).lines]
    assert [registry.get("routingKey", {}).get("jsonPointer") for registry in revisions] == [None, *["/user"] * 3]
    assert [set(registry.get("search", {}).get("fields", {})) for registry in revisions] == [
        set(),
        set(),
        {"at", "qty"},
        set(),
    ]


@pytest.mark.parametrize(
    "words", [[], ["--routing-key", "/user"], ["--required"], ["--schema", "absent.json"], ["--lens", "absent.json"]]
)
def test_incomplete_wish_is_a_usage_error(headrace: Headrace, orders: str, words: list[str]) -> None:
    for verb in ("plan", "apply"):
        assert headrace("schema", verb, orders, *words).code == 2


def test_people_see_marks_reasons_and_the_lens(orders: str, file: Written) -> None:
    wider = shape("note", "qty", qty={"type": "number"}, note=WORD)
    shown = _shown("schema", "plan", orders, "--schema", file("wider", wider))
    assert f"{orders}: version 1 to 2, widening\n" in shown
    assert "+ /note" in shown
    assert "~ /qty" in shown
    assert "written by the server" in shown
    assert '"ops": []' in shown


def test_people_see_what_the_documentation_shows(headrace: Headrace, at: ServerProcess, file: Written) -> None:
    page = (Path(__file__).parents[2] / "docs" / "schemas.md").read_text()
    schemas = [json.loads(text) for text in re.findall(r"^cat > v[12]\.json <<'END'\n(.*?)^END$", page, re.M | re.S)]
    example = re.search(r"^```text\n(purchases: .*?)^```$", page, re.M | re.S)
    assert example
    headrace("stream", "create", "purchases")
    assert headrace("schema", "apply", "purchases", "--schema", file("v1", schemas[0])).code == 0
    shown = _shown("schema", "plan", "purchases", "--schema", file("v2", schemas[1]))
    assert [line.rstrip() for line in shown.splitlines()] == example[1].splitlines()


def test_people_see_refusals_with_an_event_that_would_break(orders: str, file: Written) -> None:
    words = ["--schema", file("next", shape(total=WHOLE)), "--lens", file("lens", lens(orders))]
    shown = _shown("schema", "plan", orders, *words, code=1)
    assert "- /total" in shown
    assert "refused\n" in shown
    assert "! /lens" in shown
    assert shown.count("this event would break: {") == 1


def test_marks_have_the_colours_of_what_they_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    kinds = {"additive": "\x1b[32m+", "widening": "\x1b[33m~", "destructive": "\x1b[31m-", "identical": "\x1b[2m="}
    changes = [{"pointer": "/x", "classification": kind, "reason": "/x: so it is"} for kind in kinds]
    plans.show_changes("old to new", "destructive", changes)
    shown = capsys.readouterr().out
    assert [mark for mark in kinds.values() if mark not in shown] == []
    assert "\x1b[2mso it is" in shown


def test_people_see_what_searches_lose(orders: str, file: Written) -> None:
    at = {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/qty"}], "column": True}
    search = file("search", {"primaryTimestampField": "at", "fields": {"at": at}})
    _shown("schema", "apply", orders, "--search", search)
    remove = lens(orders, {"op": "remove", "path": "/qty", "schema": WHOLE})
    shown = _shown("schema", "plan", orders, "--schema", file("next", shape()), "--lens", file("lens", remove))
    assert "  lost: search.fields.at has no values any more from version 2 on" in shown


def test_brackets_in_names_are_shown_as_they_are(orders: str, file: Written) -> None:
    wider = shape("[red]", qty=WHOLE, **{"[red]": WORD})
    assert "+ /[red]" in _shown("schema", "plan", orders, "--schema", file("wider", wider))


@pytest.mark.parametrize(("answer", "code", "version"), [("y\n", 0, 2), ("n\n", 1, 1)])
def test_destructive_change_asks_a_person(
    headrace: Headrace, orders: str, file: Written, answer: str, code: int, version: int
) -> None:
    words = ["--schema", file("next", shape(total=WHOLE)), "--lens", file("lens", lens(orders, RENAME))]
    shown = _shown("schema", "apply", orders, *words, say=answer, code=code)
    assert "destructive. Apply it? [y/N]" in shown
    assert (f"{orders} is at version 2." in shown) == (code == 0)
    assert headrace("schema", "show", orders).lines[0]["currentVersion"] == version


def test_people_see_the_registry_and_its_history(headrace: Headrace, orders: str, file: Written) -> None:
    words = ["--schema", file("next", shape(total=WHOLE)), "--lens", file("lens", lens(orders, RENAME)), "--yes"]
    assert headrace("schema", "apply", orders, *words).code == 0
    assert headrace("schema", "apply", orders, "--routing-key", "/total", "--required").code == 0
    shown = _shown("schema", "show", orders)
    assert f"{orders}: version 2\n" in shown
    assert "routing key: /total (required)\n" in shown
    assert "version 2 from event 1 on, by rename\n" in shown
    assert '"total": {' in shown
    revisions = _shown("schema", "history", orders).splitlines()
    assert [line.split()[0] for line in revisions] == ["revision", "1", "2", "3"]


def test_people_see_the_difference_of_two_files(at: ServerProcess, file: Written) -> None:
    old, new = file("old", shape(qty=WHOLE)), file("new", shape(total=WHOLE))
    assert "- /qty" in _shown("schema", "diff", old, new, code=3)
    assert "nothing changes" in _shown("schema", "diff", old, old)


def test_stream_that_is_not_there_is_not_found(at: ServerProcess, headrace: Headrace, name: str) -> None:
    for verb in ("show", "history"):
        done = headrace("schema", verb, name)
        assert done.code == 1
        assert "headrace stream create" in done.err


def _shown(*words: str, say: str = "", code: int = 0) -> str:
    """What a person sees of a command, without the colours."""
    running = Terminal(list(words))
    if say:
        running.say(say)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", running.shown())
    assert running.ended() == code, shown
    return shown


pytestmark = pytest.mark.usefixtures("at")


@pytest.fixture
def stream(headrace: Headrace, name: str) -> str:
    """An empty JSON stream."""
    assert headrace("stream", "create", name).code == 0
    return name


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A file with settings of a profile."""
    file = tmp_path / "evlog.json"
    file.write_text(json.dumps({"redactKeys": ["pin"]}))
    return file


def test_a_profile_is_set_with_its_settings_and_shown(headrace: Headrace, stream: str, settings: Path) -> None:
    assert headrace("profile", "show", stream).lines == [{"kind": "generic"}]
    done = headrace("profile", "set", stream, "evlog", str(settings))
    assert done.code == 0
    assert done.lines == [{"kind": "evlog", "redactKeys": ["pin"]}]
    assert headrace("profile", "show", stream, "--json").lines == [{"kind": "evlog", "redactKeys": ["pin"]}]


def test_a_dry_run_shows_the_plan_and_changes_nothing(headrace: Headrace, stream: str) -> None:
    done = headrace("profile", "set", stream, "metrics", "--dry-run")
    assert done.code == 0
    assert done.lines[0]["to_version"] == 1
    assert done.lines[0]["refusals"] == []
    assert done.lines[0]["changes"][0]["pointer"] == "/profile/kind"
    assert headrace("profile", "show", stream).lines == [{"kind": "generic"}]


@pytest.mark.parametrize("words", [(), ("--dry-run",)], ids=["set", "dry"])
def test_a_refused_change_is_shown_with_its_reasons(headrace: Headrace, stream: str, words: tuple[str, ...]) -> None:
    headrace("stream", "append", stream, "{}")
    done = headrace("profile", "set", stream, "evlog", *words)
    assert done.code == 1
    assert done.lines[0]["refusals"][0]["pointer"] == "/profile/kind"
    assert "The change is refused: profile evlog must be installed before appending data" in done.err


def test_taking_the_place_of_another_profile_needs_a_yes(headrace: Headrace, stream: str) -> None:
    assert headrace("profile", "set", stream, "evlog").code == 0
    assert headrace("profile", "set", stream, "evlog").code == 0
    refused = headrace("profile", "set", stream, "generic")
    assert refused.code == 2
    assert f"The profile of {stream} is evlog. Set generic in its place?" in refused.err
    assert headrace("profile", "show", stream).lines == [{"kind": "evlog"}]
    assert headrace("profile", "set", stream, "generic", "--yes").lines == [{"kind": "generic"}]


@pytest.mark.parametrize("content", ["[]", "nonsense", '{"kind": "metrics"}'])
def test_a_file_without_settings_is_a_wrong_use(headrace: Headrace, stream: str, settings: Path, content: str) -> None:
    settings.write_text(content)
    assert headrace("profile", "set", stream, "evlog", str(settings)).code == 2


def test_an_unknown_kind_is_refused(headrace: Headrace, stream: str) -> None:
    done = headrace("profile", "set", stream, "diary")
    assert done.code == 1
    assert "evlog" in done.err


def test_people_see_a_plan(headrace: Headrace, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.output.wants_table", lambda as_json: not as_json)
    done = headrace("profile", "set", stream, "evlog")
    assert done.code == 0
    assert b"/profile/kind" in done.out
    assert f"The profile of {stream} is evlog.".encode() in done.out
    assert b"kind  evlog" in headrace("profile", "show", stream).out
