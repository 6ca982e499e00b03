"""``headrace schema plan --on-data``: the verdict of the events, for people and for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.test_main import Terminal

from headrace.cli import plans

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

Written = Callable[[str, Any], str]


def quantity(**limits: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"qty": {"type": "integer", **limits}}, "required": ["qty"]}


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
    """A stream at version 1, with three events."""
    headrace("stream", "create", name)
    headrace("schema", "apply", name, "--schema", file("first", quantity()))
    headrace("stream", "append", name, stdin=b'{"qty": 1}\n{"qty": 0}\n{"qty": 7}\n')
    return name


def test_events_that_would_fail_are_told_and_the_exit_code_says_so(
    headrace: Headrace, orders: str, file: Written
) -> None:
    done = headrace("schema", "plan", orders, "--on-data", "--schema", file("next", quantity(minimum=1)))
    (planned,) = done.lines
    assert done.code == 1
    assert planned["refusals"] and planned["to_version"] == 2
    found = planned["verification"]
    assert found["state"] == "done"
    assert found["events"] == 3
    assert found["failing"] == {"lens": 0, "schema": 1, "key": 0}
    assert [(one["seq"], one["pointer"]) for one in found["failures"]] == [(1, "/qty")]
    assert "refused" in done.err
    assert headrace("schema", "show", orders).lines[0]["currentVersion"] == 1


def test_a_lens_that_is_refused_and_carried_is_still_refused(headrace: Headrace, orders: str, file: Written) -> None:
    done = headrace("schema", "plan", orders, "--on-data", "--schema", file("next", quantity(minimum=0)))
    assert done.code == 1
    assert done.lines[0]["verification"]["failing"] == {"lens": 0, "schema": 0, "key": 0}
    assert "refused" in done.err


def test_a_change_that_is_proven_and_carried_ends_well(headrace: Headrace, orders: str, file: Written) -> None:
    wider = {"type": "object", "properties": {"qty": {"type": "number"}}, "required": ["qty"]}
    done = headrace("schema", "plan", orders, "--on-data", "--schema", file("next", wider), "--json")
    assert done.code == 0
    assert done.err == ""
    assert done.lines[0]["verification"]["events"] == 3
    settings = headrace("schema", "plan", orders, "--on-data", "--routing-key", "/qty", "--optional")
    assert settings.code == 0
    assert settings.lines[0]["verification"] is None


def test_people_see_the_plan_and_the_verdict(orders: str, file: Written) -> None:
    shown = _shown("schema", "plan", orders, "--on-data", "--schema", file("next", quantity(minimum=1)), code=1)
    assert re.search(r"of 3 events up to [0-9A-Z]{26} 1 would fail: 1 at the schema", shown)
    assert re.search(r"[0-9A-Z]{26} schema /qty +value is less than the minimum of 1", shown)
    carried = _shown("schema", "plan", orders, "--on-data", "--schema", file("next", quantity(minimum=0)), code=1)
    assert re.search(r"all 3 events up to [0-9A-Z]{26} carry the change", carried)


@pytest.mark.parametrize(
    ("verification", "said"),
    [
        (None, "there is no new version"),
        ({"failing": {"lens": 0, "schema": 0, "key": 0}, "events": 1234}, "all 1,234 events up to X carry the change"),
        (
            {"failing": {"lens": 200, "schema": 50, "key": 0}, "events": 5000},
            "of 5,000 events up to X 250 would fail: 200 at the lens and 50 at the schema",
        ),
        ({"failing": {"lens": 200, "schema": 50, "key": 0}, "events": 5000}, "and 249 more"),
    ],
)
def test_a_verdict_is_a_sentence(
    capsys: pytest.CaptureFixture[str], verification: dict[str, Any] | None, said: str
) -> None:
    failure = {"offset": "Y", "cause": "lens", "pointer": "", "reason": "there is no value"}
    plans.show_verdict(verification and {"through_offset": "X", "failures": [failure], **verification})
    assert said in capsys.readouterr().out


def _shown(*words: str, code: int) -> str:
    """What a person sees of a command, without the colours."""
    running = Terminal(list(words))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", running.shown())
    assert running.ended() == code, shown
    return shown


@pytest.fixture
def unshaped(at: ServerProcess, headrace: Headrace, name: str) -> str:
    """A stream without a schema, with three events."""
    headrace("stream", "create", name)
    headrace("stream", "append", name, stdin=b'{"qty": 1}\n{"qty": 0}\n{"qty": 7}\n')
    return name


def test_first_schema_is_installed_where_the_events_fit(headrace: Headrace, unshaped: str, file: Written) -> None:
    first = file("first", quantity(minimum=0))
    planned = headrace("schema", "plan", unshaped, "--schema", first, "--first-on-data", "--on-data")
    assert planned.code == 0
    assert planned.lines[0]["verification"]["events"] == 3
    assert headrace("schema", "show", unshaped).lines[0]["currentVersion"] == 0
    done = headrace("schema", "apply", unshaped, "--schema", first, "--first-on-data")
    assert done.code == 0, done.err
    assert done.lines[0]["registry"]["boundaries"] == [{"offset": 0, "version": 1}]
    again = headrace("schema", "apply", unshaped, "--schema", first, "--first-on-data")
    assert again.lines[0]["changes"] == []
    assert headrace("stream", "append", unshaped, '{"qty": -1}').code == 1


def test_first_schema_that_events_do_not_fit_names_them(headrace: Headrace, unshaped: str, file: Written) -> None:
    words = ("schema", "apply", unshaped, "--schema", file("first", quantity(minimum=1)), "--first-on-data")
    done = headrace(*words, "--json")
    assert done.code == 1
    error = json.loads(done.err)["error"]
    assert error["code"] == "events_do_not_fit"
    assert [(failure["seq"], failure["pointer"]) for failure in error["failures"]] == [(1, "/qty")]
    running = Terminal(list(words))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", running.shown())
    assert running.ended() == 1
    assert error["failures"][0]["offset"] in shown
    assert "1 of 3 stored events does not fit the schema" in shown
    assert headrace("schema", "show", unshaped).lines[0]["currentVersion"] == 0
