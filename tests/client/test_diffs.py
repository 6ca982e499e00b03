"""A diff can be asked by programs and read by people."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.console import Console

import headrace as hr

ENVELOPE: dict[str, Any] = {
    "status": "conflict",
    "registry_version": 7,
    "added": ["NewTable"],
    "removed": ["GoneEvent", "GoneTable"],
    "changed": [
        {
            "name": "T",
            "added_features": ["n"],
            "removed_features": ["gone"],
            "changed_features": [
                {
                    "name": "x",
                    "from": {"op": "sum", "params": {"field": "a", "window": "1h"}},
                    "to": {"op": "sum", "params": {"field": "a", "window": "5m"}},
                }
            ],
        },
        {
            "name": "E",
            "added_fields": [{"name": "f", "type": "str", "required": False, "default": None}],
            "changed_fields": [{"name": "amount", "from": "f64", "to": "i64"}],
            "renamed_fields": [{"from": "amt", "to": "amount"}],
            "keep_events_for": {"from": "30d", "to": None},
        },
    ],
    "plan": {
        "features": [
            {"table": "T", "feature": "n", "state": "new", "born": "first_retained", "seq": 0},
            {"table": "T", "feature": "x", "state": "reborn", "born": "now", "seq": 4},
            {"table": "T", "feature": "gone", "state": "cleared"},
            {"table": "NewTable", "feature": "n", "state": "new", "born": "first_retained", "seq": 0},
            {"table": "NewTable", "feature": "m", "state": "new", "born": "now", "seq": 4},
            {"table": "GoneTable", "feature": "n", "state": "cleared"},
        ],
        "streams": [{"event": "E", "change": "lens", "schema_version": 2}],
    },
}
TEXT = """\
registry version 7: conflict
  + NewTable
  - GoneEvent
  - GoneTable
  + T: feature n
  - T: feature gone
  ~ T: feature x, sum(field=a, window=1h) → sum(field=a, window=5m)
  + E: field f, type str, required false
  ~ E: field amount, f64 → i64
  ~ E: field amt → amount
  ~ E: keep_events_for 30d → null
  + T.n: computed from the first retained event on
  ~ T.x: computed from now on
  - T.gone: its state is cleared
  + NewTable.m: computed from now on"""


def diff(**members: Any) -> hr.Diff:
    return msgspec.convert({"status": "ok", "registry_version": 1, **members}, hr.Diff)


def test_a_diff_is_read_line_by_line() -> None:
    assert str(diff(**ENVELOPE)) == TEXT


def test_a_terminal_shows_the_same_in_colour() -> None:
    console = Console(force_terminal=True, width=200, color_system="standard", _environ={})
    with console.capture() as captured:
        console.print(diff(**ENVELOPE))
    shown = captured.get()
    assert "\x1b[32m  + NewTable\x1b[0m" in shown
    assert "\x1b[31m  - GoneEvent\x1b[0m" in shown
    assert "\x1b[33m  ~ T.x: computed from now on" in shown


def test_a_member_that_nobody_has_heard_of_is_shown_too() -> None:
    assert [line.text for line in diff(changed=[{"name": "T", "mood": {"good": 1}}]).lines()] == ["T: mood good 1"]


@pytest.mark.parametrize(("members", "is_true"), [({}, False), ({"added": ["A"]}, True), ({"changed": [{}]}, True)])
def test_a_diff_is_true_where_something_changes(members: dict[str, Any], is_true: bool) -> None:
    assert bool(diff(**members)) is is_true


def test_no_change_is_said() -> None:
    assert str(diff()) == "registry version 1: nothing changes"
    assert not diff().conflict
