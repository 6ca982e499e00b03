"""An embedded server: a child process with a data directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path

from headrace.client.errors import Unreachable

_STOP_S = 30.0
_LOG = "embedded.log"


class EmbeddedServer:
    """A server on a data directory; it listens on loopback, at ``url``."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        """Start it and wait until it listens; settings are by the names of the environment, such as ``limits__…``."""
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._process = _start_server(data_dir.resolve(), settings)
        self._stop = weakref.finalize(self, _end_server, self._process)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.stop()
            reason = (data_dir / _LOG).read_text().strip().rpartition("\n")[2]
            raise Unreachable(f"the embedded server did not start: {reason}", sent=False)

    def stop(self) -> None:
        """Ask it to finish, and wait."""
        self._stop()


def _start_server(data_dir: Path, settings: Mapping[str, str]) -> subprocess.Popen[str]:
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        "HEADRACE_SERVER__PORT": "0",
        "HEADRACE_STORAGE__DATA_DIR": str(data_dir),
        **{f"HEADRACE_{name.upper()}": value for name, value in settings.items()},
    }
    with open(data_dir / _LOG, "a", opener=_open_private) as log:
        command = [sys.executable, "-m", "headrace.server"]
        # In its own directory no headrace.toml of somebody else's is found.
        return subprocess.Popen(command, env=environ, cwd=data_dir, stdout=subprocess.PIPE, stderr=log, text=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _end_server(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
