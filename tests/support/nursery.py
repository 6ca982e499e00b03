"""Servers without the wait for imports: a process that has imported everything becomes one as often as it is asked.

Half a second of every start is spent on imports, and the tests start hundreds of servers. What begins here is a process
of its own that runs ``headrace.server`` from its first line; only the modules it imports are in memory already.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import IO, NamedTuple

_ASKED_BYTES = 1024 * 1024


class Child:
    """A server that was begun; the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int, stdout: IO[str], ended: socket.socket) -> None:
        self.pid, self.stdout = pid, stdout
        self.returncode: int | None = None
        self._ended = ended

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and say how."""
        if self.returncode is None:
            self._ended.settimeout(timeout)
            try:
                told = self._ended.recv(64)
            except TimeoutError:
                raise subprocess.TimeoutExpired("headrace.server", timeout or 0.0) from None
            self._ended.close()
            self.returncode = int(told)
        return self.returncode


class Nursery:
    """The process that servers come from, of whoever tests."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ASKED_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        atexit.register(self.close)

    def begin(self, environ: dict[str, str], log: Path) -> Child:
        """Begin a server with an environment; what it says about itself is added to a log."""
        ended, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        said, saying = os.pipe()
        with log.open("a") as file, telling:
            asked = json.dumps({"environ": environ, "directory": os.getcwd()}).encode()
            socket.send_fds(self._socket, [asked], [saying, file.fileno(), telling.fileno()])
        os.close(saying)
        return Child(int(self._socket.recv(64)), os.fdopen(said), ended)

    def close(self) -> None:
        """End it, and with it what came from it."""
        self._socket.close()
        self._process.wait()


class _Asked(NamedTuple):
    environ: dict[str, str]
    directory: str
    stdout: int
    stderr: int


class _Keeper:
    """Begins servers and tells how they have ended, until nobody asks any more."""

    def __init__(self, asking: socket.socket) -> None:
        self._asking = asking
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(asking, selectors.EVENT_READ)

    def keep(self) -> _Asked | None:
        """Returns in each child with what is asked of it, and in the end with None."""
        while True:
            for key, _ in self._waiting.select():
                if key.data is not None:
                    self._bury(key.fd, *key.data)
                    continue
                given, fds, _, _ = socket.recv_fds(self._asking, _ASKED_BYTES, 3)
                if not given:
                    self._end()
                    return None
                asked = self._begin(_Asked(**json.loads(given), stdout=fds[0], stderr=fds[1]), fds[2])
                if asked is not None:
                    return asked

    def _begin(self, asked: _Asked, telling: int) -> _Asked | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the threads here are those of libraries that know
            pid = os.fork()
        if not pid:
            # Left to the collector they would close what has their numbers by then.
            self._waiting.close()
            self._asking.close()
            return asked
        os.close(asked.stdout)
        os.close(asked.stderr)
        self._waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, telling))
        self._asking.send(str(pid).encode())
        return None

    def _bury(self, pidfd: int, pid: int, telling: int) -> None:
        self._waiting.unregister(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with socket.socket(fileno=telling) as ended:
            try:
                ended.send(str(code).encode())
            except OSError:
                pass  # nobody waits for it
        os.close(pidfd)

    def _end(self) -> None:
        for key in list(self._waiting.get_map().values()):
            if key.data is not None:
                os.kill(key.data[0], signal.SIGKILL)


def _become(asked: _Asked) -> None:
    """Be what ``python -m headrace.server`` is."""
    os.dup2(asked.stdout, 1)
    os.dup2(asked.stderr, 2)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(asked.environ)
    os.chdir(asked.directory)
    sys.path[0] = asked.directory
    gc.unfreeze()
    runpy.run_module("headrace.server", run_name="__main__", alter_sys=True)


def _main() -> None:
    sys.path[0] = os.getcwd()
    from headrace.engine.runtime.allocators import use_jemalloc_in_arrow

    use_jemalloc_in_arrow()
    import headrace.server.main  # noqa: F401

    gc.collect()
    gc.freeze()  # so that those who come from here share what they do not change
    asked = _Keeper(socket.socket(fileno=int(sys.argv[1]))).keep()
    if asked is not None:
        _become(asked)


if __name__ == "__main__":
    _main()
