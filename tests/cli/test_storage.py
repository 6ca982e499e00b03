"""``headrace recover``, ``verify``, ``backup`` and ``restore``: from a lost disk back to a running server."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.storage.objects import Objects

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess, StartServer

WITHOUT_SYSTEM_STREAMS = {"system__registry_log": "false", "system__metrics_interval_s": "0"}
COMMAND = [sys.executable, "-c", "from headrace.cli.main import main; main()"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def sealing(start_server: StartServer, store: Path, headrace: Headrace) -> ServerProcess:
    """A server that publishes at once, with two streams that are published."""
    server = start_server(storage__object_store=f"file://{store}", storage__seal_age_s="0.1", **WITHOUT_SYSTEM_STREAMS)
    for name in ("a", "b"):
        headrace("stream", "create", name, "--url", server.url)
        headrace("stream", "append", name, "1", "2", "--url", server.url)
    wait_for(headrace, store, {"a": 2, "b": 2})
    return server


def wait_for(headrace: Headrace, store: Path, entries: dict[str, int]) -> None:
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        found = headrace("verify", "--object-store", str(store)).lines if store.exists() else []
        if {row["stream"]: row["entries"] for row in found} == entries:
            return
        time.sleep(0.1)
    raise TimeoutError(found)


def segments(store: Path) -> list[Path]:
    return sorted((store / "segments").rglob("*.parquet"))


def test_a_lost_disk_is_recovered_from_the_store(
    sealing: ServerProcess, store: Path, headrace: Headrace, start_server: StartServer, tmp_path: Path
) -> None:
    sealing.kill()
    done = headrace("recover", "--from", f"file://{store}", "--data-dir", str(tmp_path / "new"))
    assert done.code == 0
    assert done.err == ""
    assert sorted((row["stream"], row["entries"], row["segments"]) for row in done.lines) == [("a", 2, 1), ("b", 2, 1)]
    server = start_server(data="new", storage__object_store=f"file://{store}")
    assert headrace("stream", "read", "a", "--url", server.url).out == b"1\n2\n"
    assert headrace("stream", "append", "a", "3", "--url", server.url).code == 0
    assert headrace("stream", "read", "a", "--url", server.url).out == b"1\n2\n3\n"


def test_recover_says_what_it_could_not_bring_back(
    sealing: ServerProcess, store: Path, headrace: Headrace, tmp_path: Path
) -> None:
    sealing.stop()
    damaged = max((store / "manifests").rglob("*.json"))  # the newest of its stream; an older one would not be missed
    damaged.write_bytes(damaged.read_bytes()[:-9])
    done = headrace("recover", "--from", str(store), "--data-dir", str(tmp_path / "new"), "--json")
    assert done.code == 1
    assert len(done.lines) == 1
    problem = json.loads(done.err)["message"]
    assert str(damaged.relative_to(store)) in problem


def test_recover_refuses_a_directory_that_has_a_log_and_a_store_that_is_not_there(
    sealing: ServerProcess, store: Path, headrace: Headrace, tmp_path: Path
) -> None:
    sealing.stop()
    done = headrace("recover", "--from", str(store), "--data-dir", str(sealing.data_dir), "--json")
    assert done.code == 1
    assert json.loads(done.err)["error"]["code"] == "conflict"
    done = headrace("recover", "--from", str(tmp_path / "typo"), "--data-dir", str(tmp_path / "new"), "--json")
    assert done.code == 1
    assert json.loads(done.err)["error"]["code"] == "not_found"
    assert not (tmp_path / "typo").exists()
    assert not (tmp_path / "new").exists()


def test_a_recovery_that_fails_leaves_a_directory_to_try_again_with(
    sealing: ServerProcess, store: Path, headrace: Headrace, tmp_path: Path
) -> None:
    sealing.stop()
    (store / "epochs").rename(store / "aside")
    (store / "epochs").write_bytes(b"a file where a directory should be")
    where = ["recover", "--from", str(store), "--data-dir", str(tmp_path / "new")]
    done = headrace(*where, "--json")
    assert done.code == 1
    assert json.loads(done.err)["error"]["code"] == "store_unavailable"
    (store / "epochs").unlink()
    (store / "aside").rename(store / "epochs")
    assert headrace(*where).code == 0


def test_verify_names_the_object_that_is_damaged(sealing: ServerProcess, store: Path, headrace: Headrace) -> None:
    sealing.stop()
    where = ["--object-store", f"file://{store}"]
    done = headrace("verify", *where)
    assert done.code == 0
    assert done.err == ""
    assert {row["stream"]: row["damage"] for row in done.lines} == {"a": [], "b": []}
    (key,) = [info.key for info in Objects.open(str(store)).list("segments") if info.bytes][:1]
    path = store / key
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    done = headrace("verify", *where)
    assert done.code == 1
    assert key in done.err
    (damage,) = [damage for row in done.lines for damage in row["damage"]]
    assert damage["object"] == key
    assert damage["check"] == "checksum"
    others = [row["stream"] for row in done.lines if not row["damage"]]
    assert headrace("verify", *where, "--stream", others[0]).code == 0


def test_verify_finds_the_store_of_a_data_directory(
    start_server: StartServer, headrace: Headrace, tmp_path: Path
) -> None:
    server = start_server(storage__seal_age_s="0.1", **WITHOUT_SYSTEM_STREAMS)
    headrace("stream", "create", "a", "--url", server.url)
    wait_for(headrace, server.data_dir / "objects", {"a": 0})
    assert headrace("verify", "--data-dir", str(server.data_dir)).lines[0]["stream"] == "a"
    assert headrace("verify", "--data-dir", str(tmp_path / "typo")).code == 1
    assert headrace("verify", "--data-dir", str(server.data_dir), "--stream", "nobody").code == 1
    assert headrace("verify", "--data-dir", str(server.data_dir), "--object-store", "x").code == 2


def test_a_backup_of_a_running_server_is_restored_elsewhere(
    start_server: StartServer, headrace: Headrace, tmp_path: Path
) -> None:
    server = start_server(storage__seal_age_s="0.1", **WITHOUT_SYSTEM_STREAMS)
    headrace("stream", "create", "a", "--url", server.url)
    headrace("stream", "append", "a", "1", "--url", server.url)
    wait_for(headrace, server.data_dir / "objects", {"a": 1})
    made = headrace("key", "create", "--user", "ada", "--data-dir", str(server.data_dir)).lines[0]
    remote = ["--url", server.url, "--key", made["token"]]
    done = headrace("backup", str(tmp_path / "saturday"), "--data-dir", str(server.data_dir))
    (facts,) = done.lines
    assert done.code == 0
    assert facts["files"] == ["headrace.db", "keys.db"]
    assert facts["object_store"] == "included"
    headrace("stream", "append", "a", "2", *remote)
    server.kill()
    again = headrace("backup", str(tmp_path / "saturday"), "--data-dir", str(server.data_dir), "--json")
    assert json.loads(again.err)["error"]["code"] == "conflict"
    where = ["--data-dir", str(tmp_path / "new")]
    assert headrace("restore", str(tmp_path / "saturday"), *where).lines[0]["taken_at"] == facts["taken_at"]
    assert headrace("restore", str(tmp_path / "saturday"), *where).code == 1
    server = start_server(data="new")
    remote[1] = server.url
    assert headrace("stream", "read", "a", *remote).out == b"1\n"
    assert headrace("stream", "append", "a", "3", *remote).code == 0


def test_help_names_the_commands(headrace: Headrace) -> None:
    shown = headrace("--help").out.decode()
    assert all(f" {command} " in shown for command in ("recover", "verify", "backup", "restore"))
    assert "--from" in headrace("recover", "--help").out.decode()
    assert headrace("recover").code == 2


def test_people_see_a_bar_and_a_table(sealing: ServerProcess, store: Path) -> None:
    sealing.stop()
    path = segments(store)[0]
    path.unlink()
    leader, follower = pty.openpty()
    environ = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    words = [*COMMAND, "verify", "--object-store", str(store)]
    shown = subprocess.Popen(words, stdout=follower, stderr=follower, stdin=subprocess.DEVNULL, env=environ)
    os.close(follower)
    text = b""
    try:
        while part := os.read(leader, 4096):
            text += part
    except OSError:
        pass  # the other side is closed
    os.close(leader)
    assert shown.wait(20) == 1
    assert b"verifying" in text
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", text)
    assert re.search(rb"stream +generation +state +entries +segments +bytes +orphans +damaged", text)
    assert f"headrace: the object segments/{path.relative_to(store / 'segments')} is missing".encode() in text
