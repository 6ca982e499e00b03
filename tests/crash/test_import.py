"""SIGKILL to an import and to the server: begun again, every row is there once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace as hr

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

ROWS, KILLS = 300_000, 4
COMMAND = [sys.executable, "-c", "from headrace.cli.main import main; main()"]


def start_import(url: str, path: Path) -> subprocess.Popen[bytes]:
    words = ["import", str(path), "--stream", "rows", "--yes"]
    environ = {**os.environ, "HEADRACE_URL": url}
    return subprocess.Popen([*COMMAND, *words], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def count(url: str) -> int:
    """How many rows are there."""
    with hr.Client(url) as client:
        return next((int(stream["next_offset"]) for stream in client.streams(prefix="rows")), 0)


@pytest.mark.parametrize("victim", ["import", "server"])
def test_an_import_that_is_killed_and_begun_again_appends_every_row_once(
    start_server: StartServer, tmp_path: Path, victim: str
) -> None:
    chance = random.Random(victim)
    path = tmp_path / "rows.csv"
    path.write_text("n,text\n" + "".join(f"{number},row {number}\n" for number in range(ROWS)))
    server = start_server()
    for _ in range(KILLS):
        before = count(server.url)
        process = start_import(server.url, path)
        while count(server.url) == before and process.poll() is None:
            time.sleep(0.005)  # there is no event: the rows are counted by another process
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.wait()
        if victim == "server":
            server.kill()
            server.start()
    last = start_import(server.url, path)
    assert last.wait(120) == 0
    with hr.Client(server.url) as client:
        numbers = [event["n"] for batch in client.stream("rows").read() for event in batch.items]
    assert numbers == list(range(ROWS))
