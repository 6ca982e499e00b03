"""A bit flips in the write-ahead log of a server that was killed: it does not start, unless that is accepted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.crash

EVENTS = 300
_MAIN = "from headrace.cli.main import main; main()"


@contextmanager
def _served(data_dir: Path, *flags: str) -> Iterator[str]:
    """The address of ``headrace serve`` with these flags."""
    command = [sys.executable, "-c", _MAIN, "serve", "--port", "0", "--data-dir", str(data_dir), *flags]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(word for line in process.stderr for word in line.split() if word.startswith("http://"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def test_damage_in_the_middle_of_the_log_of_a_killed_server(start_server: Callable[..., Any]) -> None:
    server = start_server(storage__seal_age_s="3600")
    with httpx2.Client(base_url=server.url, trust_env=False) as client:
        client.put("/v1/stream/s", headers={"content-type": "application/json"})
        offsets = [client.post("/v1/stream/s", json=number).headers["stream-next-offset"] for number in range(EVENTS)]
    server.kill()
    wal = server.data_dir / "headrace.db-wal"
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 4
    wal.write_bytes(content)
    with pytest.raises(RuntimeError, match=r"headrace.db-wal is damaged between byte \d+ and byte \d+"):
        server.start()
    server.kill()
    assert wal.read_bytes() == content
    with _served(server.data_dir, "--accept-log-damage") as url, httpx2.Client(base_url=url, trust_env=False) as client:
        left = client.get("/v1/stream/s", params={"offset": "-1"}).json()
        assert left == list(range(len(left)))
        assert 0 < len(left) < EVENTS
        # Offsets of events that are lost lead nowhere, not to the events that take their place.
        lost = client.get("/v1/stream/s", params={"offset": offsets[-1]})
        assert lost.status_code == 410
        assert lost.json()["error"]["code"] == "offset_fenced"
        assert client.post("/v1/stream/s", json="next").status_code < 300
        lost = client.get("/v1/stream/s", params={"offset": offsets[len(left) + 1]})
        assert lost.json()["error"]["code"] == "offset_fenced"
        kept = client.get("/v1/stream/s", params={"offset": offsets[len(left) - 1]})
        assert kept.json() == ["next"]
    assert (server.data_dir / "headrace.db-wal.damaged-1").read_bytes() == content
    server.start()
    with httpx2.Client(base_url=server.url, trust_env=False) as client:
        assert client.get("/v1/stream/s", params={"offset": "-1"}).json() == [*left, "next"]


def test_a_log_that_a_kill_cut_short_is_opened(start_server: Callable[..., Any]) -> None:
    server = start_server()
    with httpx2.Client(base_url=server.url, trust_env=False) as client:
        client.put("/v1/stream/s", headers={"content-type": "application/json"})
        for number in range(20):
            client.post("/v1/stream/s", json=number)
    server.kill()
    wal = server.data_dir / "headrace.db-wal"
    wal.write_bytes(wal.read_bytes()[:-100])
    server.start()
    with httpx2.Client(base_url=server.url, trust_env=False) as client:
        left = client.get("/v1/stream/s", params={"offset": "-1"}).json()
    assert left in (list(range(19)), list(range(20)))
