"""``headrace profile`` against a real server process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace

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
    assert (done.code, done.lines) == (0, [{"kind": "evlog", "redactKeys": ["pin"]}])
    assert headrace("profile", "show", stream, "--json").lines == [{"kind": "evlog", "redactKeys": ["pin"]}]


def test_a_dry_run_shows_the_plan_and_changes_nothing(headrace: Headrace, stream: str) -> None:
    done = headrace("profile", "set", stream, "metrics", "--dry-run")
    assert (done.code, done.lines[0]["to_version"], done.lines[0]["refusals"]) == (0, 1, [])
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
