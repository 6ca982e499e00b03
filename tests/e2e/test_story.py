"""The first five minutes of a newcomer, with real commands in real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr

pytestmark = pytest.mark.e2e

HEADRACE = str(Path(sys.executable).with_name("headrace"))
SERVER_LIBRARIES = ("apsw", "cryptography", "httptools", "prometheus_client", "starlette", "structlog", "uvicorn")


class Up:
    """``headrace up`` as a person starts it; ``said`` is what it told them."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        words = [HEADRACE, "up", "--port", "0", "--data-dir", str(data_dir), *flags]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = ""
        while "curl         " not in self.said:
            line = self.process.stderr.readline()
            assert line, f"headrace up ended:\n{self.said}"
            self.said += line
        found = re.search(r"https?://[\d.]+:\d+", self.said)
        assert found is not None
        self.url = found[0]

    def stop(self) -> int:
        self.process.terminate()
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path / "data")
    yield running
    running.stop()


def run(command: str, url: str, **given: str) -> str:
    environ = {**os.environ, "HEADRACE_URL": url}
    done = subprocess.run(
        command, shell=True, text=True, env=environ, timeout=30, check=False, capture_output=True, **given
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_printed_commands_work(up: Up) -> None:
    commands = re.findall(r"^  (curl .*)$", up.said, re.MULTILINE)
    answers = [run(f"{command} --silent --fail", up.url) for command in commands]
    assert json.loads(answers[-1]) == [{"greeting": "hi"}]


def test_pipes_go_in_and_out(up: Up) -> None:
    run(f"{HEADRACE} stream create orders", up.url)
    lines = "".join(f'{{"order": {n}}}\n' for n in range(1000))
    run(f"{HEADRACE} stream append orders", up.url, input=lines)
    out = run(f"{HEADRACE} stream read orders", up.url)
    assert [json.loads(line)["order"] for line in out.splitlines()] == list(range(1000))
    listed = run(f"{HEADRACE} stream ls --json", up.url)
    assert [json.loads(line)["name"] for line in listed.splitlines()] == ["orders"]


def test_what_was_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    first = Up(tmp_path / "data")
    with hr.Client(first.url) as client:
        stream = client.stream("orders")
        stream.create()
        offset = stream.append([{"n": 1}, {"n": 2}]).next_offset
    assert first.stop() == 0
    second = Up(tmp_path / "data")
    try:
        with hr.Client(second.url) as client:
            (batch,) = client.stream("orders").read()
            assert batch.items == [{"n": 1}, {"n": 2}]
            assert batch.next_offset == offset
    finally:
        assert second.stop() == 0


def test_another_address_needs_a_key(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    open_bind = [HEADRACE, "serve", "--host", "0.0.0.0", "--port", "0", "--data-dir", data]
    refused = subprocess.run(open_bind, capture_output=True, text=True, timeout=30, check=False)
    assert refused.returncode != 0
    assert "headrace key create" in refused.stderr
    made = subprocess.run(
        [HEADRACE, "key", "create", "--user", "ada", "--scope", "write", "--data-dir", data, "--json"],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    token = json.loads(made.stdout)["token"]
    running = Up(tmp_path / "data", "--host", "0.0.0.0")
    try:
        url = running.url.replace("0.0.0.0", "127.0.0.1")
        with hr.Client(url) as keyless, pytest.raises(hr.errors.Unauthorized):
            keyless.stream("orders").create()
        with hr.Client(url, key=token) as client:
            client.stream("orders").create()
    finally:
        running.stop()


def test_the_client_needs_no_server_library() -> None:
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in SERVER_LIBRARIES)
    code = f"import sys; {blocked}; import headrace as hr; hr.Client('http://127.0.0.1:1').close()"
    subprocess.run([sys.executable, "-c", code], timeout=30, check=True)
