"""``headrace register`` and ``headrace table``: plans for people and programs, rows by key, exit codes for scripts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.cli import output

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

_numbers = itertools.count(1)

DECLARED = """
from __future__ import annotations
import headrace as hr

@hr.event
class {event}:
    user: str
    shop: int
    amount: float

@hr.table(key="user")
def {event}Spending(rows: {event}):
    return rows.agg(n=hr.count(), total=hr.sum("amount"))

@hr.table(key=["user", "shop"])
def {event}ByShop(rows: {event}):
    return rows.agg(n=hr.count(), last=hr.last_n("amount", 2))
"""

Written = Callable[..., str]


@pytest.fixture
def event() -> str:
    """A name that no other test has; it is an app of its own, too."""
    return f"Txn{next(_numbers)}"


@pytest.fixture
def file(tmp_path: Path, event: str) -> Written:
    """Write a table of this test's event with these features, and the event; the path."""

    def write(**features: Any) -> str:
        source = {"kind": "event", "name": event, "schema": {"user": "str", "amount": "f64"}}
        agg = {name: feature.descriptor() for name, feature in features.items()}
        table = {"kind": "table", "name": f"{event}T", "key": ["user"], "upstreams": [event], "agg": agg}
        path = tmp_path / "features.json"
        path.write_text(json.dumps({"app": event, "descriptors": [source, table]}))
        return str(path)

    return write


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone is looking, at a wide terminal."""
    monkeypatch.setattr(output, "wants_table", lambda as_json: not as_json)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def declared(tmp_path: Path, event: str) -> str:
    path = tmp_path / "features.py"
    path.write_text(DECLARED.format(event=event))
    return str(path)


def test_a_python_file_is_registered_whole(at: ServerProcess, headrace: Headrace, declared: str, event: str) -> None:
    done = headrace("register", declared, "--app", event, "--json")
    assert done.code == 0
    assert done.err == ""
    assert done.lines[0]["status"] == "ok"
    assert done.lines[0]["added"] == [event, f"{event}ByShop", f"{event}Spending"]
    again = headrace("register", declared, "--app", event)
    assert again.code == 0
    assert again.lines[0]["added"] == []
    assert again.lines[0]["changed"] == []


def test_a_python_file_may_import_what_lies_beside_it(
    at: ServerProcess, headrace: Headrace, tmp_path: Path, event: str
) -> None:
    (tmp_path / f"beside_{event}.py").write_text(f"import headrace as hr\n@hr.event\nclass {event}:\n    user: str\n")
    file = tmp_path / "main.py"
    file.write_text(f"from beside_{event} import {event}\n")
    done = headrace("register", str(file), "--app", event)
    assert done.code == 0
    assert done.lines[0]["added"] == [event]


def test_a_dry_run_changes_nothing(at: ServerProcess, headrace: Headrace, file: Written, event: str) -> None:
    done = headrace("register", file(n=hr.count()), "--dry-run")
    assert done.code == 0
    assert done.lines[0]["added"] == [event, f"{event}T"]
    assert event not in headrace("table", "ls").out.decode()


def test_a_row_tells_how_many_events_came_too_late(
    at: ServerProcess, headrace: Headrace, tmp_path: Path, event: str
) -> None:
    schema = {"user": "str", "at": "datetime"}
    source = {"kind": "event", "name": event, "schema": schema, "timestamp_field": "at", "late_after": "1h"}
    table = {"kind": "table", "name": f"{event}T", "key": ["user"], "upstreams": [event]}
    path = tmp_path / "timed.json"
    agg = {"n": hr.count().descriptor()}
    path.write_text(json.dumps({"app": event, "descriptors": [source, {**table, "agg": agg}]}))
    assert headrace("register", str(path)).code == 0
    with hr.App(at.url) as app:
        app.push(event, {"user": "u", "at": "2020-01-01T00:00:00Z"})
    row = headrace("table", "get", f"{event}T", "u")
    assert row.code == 0
    assert "1 events came too late" in row.err


def test_a_loss_needs_force(at: ServerProcess, headrace: Headrace, file: Written, event: str) -> None:
    headrace("register", file(n=hr.count(), total=hr.sum("amount")))
    loss = [{"name": f"{event}T", "removed_features": ["total"]}]
    narrow = file(n=hr.count())
    refused = headrace("register", narrow)
    assert refused.code == 3
    assert refused.lines[0]["changed"] == loss
    assert "pass --force" in refused.err
    preview = headrace("register", narrow, "--dry-run")
    assert preview.code == 3
    assert preview.lines[0]["status"] == "conflict"
    assert "--force" in preview.err
    forced = headrace("register", narrow, "--force")
    assert forced.code == 0
    assert forced.lines[0]["changed"] == loss


def test_programs_get_every_reason_as_json(at: ServerProcess, headrace: Headrace, file: Written) -> None:
    done = headrace("register", file(a=hr.sum("amuont"), b=hr.count(where="usr == 'x'")), "--json")
    assert done.code == 1
    error = json.loads(done.err)["error"]
    assert {problem["code"] for problem in error["errors"]} >= {"unknown_field_reference"}
    assert all("path" in problem for problem in error["errors"])


def test_people_see_every_reason(at: ServerProcess, people: None, headrace: Headrace, file: Written) -> None:
    done = headrace("register", file(a=hr.quantile("amount", 3), b=hr.top_k("user", 0)))
    assert done.code == 1
    assert "(invalid_percentile_q)" in done.err
    assert "(invalid_top_k_k)" in done.err
    assert done.out == b""


def test_people_see_the_plan(at: ServerProcess, people: None, headrace: Headrace, file: Written, event: str) -> None:
    first = headrace("register", file(n=hr.count()))
    assert f"  + {event}T" in first.out.decode().splitlines()
    second = headrace("register", file(n=hr.count(window="1h"), m=hr.count()))
    assert second.code == 3
    assert f"  + {event}T: feature m" in second.out.decode().splitlines()
    assert f"  ~ {event}T: feature n, count() → count(window=1h)" in second.out.decode().splitlines()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("f.json", "{", "is not JSON"),
        ("f.json", "3", "has no descriptors"),
        ("f.py", "x = 3", "declares nothing"),
        ("f.py", "raise KeyError('k')", "does not run: KeyError"),
        ("f.py", "def (", "does not run: SyntaxError"),
    ],
)
def test_a_file_that_holds_no_descriptors_is_refused(
    headrace: Headrace, tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    done = headrace("register", str(tmp_path / name))
    assert done.code == 2
    assert said in done.err


def test_a_file_that_is_not_there_is_named(headrace: Headrace) -> None:
    done = headrace("register", "nowhere.json")
    assert done.code == 2
    assert done.err.splitlines()[0] == "headrace: there is no file nowhere.json"


@pytest.fixture
def filled(at: ServerProcess, headrace: Headrace, declared: str, event: str) -> str:
    """The event of this test with three pushed, the last two in one shop."""
    headrace("register", declared, "--app", event)
    with hr.App(at.url) as app:
        app.push_many(event, [{"user": "7", "shop": shop, "amount": 1.5} for shop in (1, 2, 2)])
    return event


def test_rows_are_got_by_key(filled: str, headrace: Headrace) -> None:
    done = headrace("table", "get", f"{filled}Spending", "7")
    assert done.code == 0
    assert done.lines == [{"n": 3, "total": 4.5}]
    assert headrace("table", "get", f"{filled}Spending", "7", "--feature", "n").lines == [{"n": 3}]
    assert headrace("table", "get", f"{filled}Spending", "nobody").lines == [{}]


def test_words_of_a_key_have_the_types_of_its_fields(filled: str, headrace: Headrace) -> None:
    done = headrace("table", "get", f"{filled}ByShop", "7", "2")
    assert done.lines == [{"n": 2, "last": [1.5, 1.5]}]
    refused = headrace("table", "get", f"{filled}ByShop", "7", "two")
    assert refused.code == 1
    assert "shop (i64)" in refused.err


def test_people_see_a_line_per_feature(people: None, filled: str, headrace: Headrace) -> None:
    done = headrace("table", "get", f"{filled}ByShop", "7", "2")
    assert done.out.decode().splitlines() == ["n     2", "last  [1.5,1.5]"]


def test_rows_are_exported_as_they_were(filled: str, headrace: Headrace, tmp_path: Path) -> None:
    lines = b'{"key": "7", "at": "2100-01-01T00:00:00Z"}\n\n{"key": ["7"], "at": "2020-01-01T00:00:00Z"}\n'
    expected = [
        {"key": "7", "at": "2100-01-01T00:00:00Z", "features": {"n": 3}},
        {"key": ["7"], "at": "2020-01-01T00:00:00Z", "features": {}},
    ]
    done = headrace("table", "export", f"{filled}Spending", "--feature", "n", stdin=lines)
    assert done.code == 0
    assert done.lines == expected
    assert done.err == ""
    (tmp_path / "rows.jsonl").write_bytes(lines)
    again = headrace("table", "export", f"{filled}Spending", str(tmp_path / "rows.jsonl"), "--feature", "n")
    assert again.lines == expected


def test_rows_are_exported_as_they_were_known(filled: str, headrace: Headrace) -> None:
    late, early = "2100-01-01T00:00:00Z", "2020-01-01T00:00:00Z"
    line = {"key": "7", "at": late, "as_known_at": early}
    stdin = b'{"key": "7", "at": "2100-01-01T00:00:00Z", "as_known_at": "2020-01-01T00:00:00Z"}'
    done = headrace("table", "export", f"{filled}Spending", "--feature", "n", "--as-known-at", late, stdin=stdin)
    assert done.lines == [{**line, "features": {}}]
    own = ("table", "get", f"{filled}Spending", "7", "--feature", "n", "--as-of", late)
    assert headrace(*own, "--as-known-at", late).lines == [{"n": 3}]
    assert headrace(*own, "--as-known-at", early).lines == [{}]
    alone = headrace("table", "get", f"{filled}Spending", "7", "--as-known-at", late)
    assert alone.code == 2 and "--as-known-at needs --as-of" in alone.err


def test_a_line_that_asks_for_nothing_is_named(at: ServerProcess, headrace: Headrace) -> None:
    done = headrace("table", "export", "T", stdin=b'{"key": 1, "at": "2100-01-01T00:00:00Z"}\n{"kye": 1}\n')
    assert done.code == 2
    assert "line 2 is not" in done.err
    assert headrace("table", "export", "T", "nowhere.jsonl").code == 2


def test_a_table_that_is_not_there_is_refused(at: ServerProcess, headrace: Headrace) -> None:
    done = headrace("table", "get", "Nonsense", "7")
    assert done.code == 1
    assert "headrace table ls" in done.err


def test_tables_are_listed(filled: str, headrace: Headrace) -> None:
    found = {row["name"]: row for row in headrace("table", "ls").lines}
    assert found[f"{filled}ByShop"] == {
        "name": f"{filled}ByShop",
        "key": ["user", "shop"],
        "upstream": filled,
        "features": ["n", "last"],
        "app": filled,
    }
