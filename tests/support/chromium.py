"""A real Chromium without a screen: what a page becomes in it, and a web site of somebody else."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import pytest

LONGEST_S = 60
_COMMANDS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom",
)  # fmt: skip


def command() -> str:
    """Where Chromium is; a test that needs it is skipped where there is none."""
    found = next(filter(None, map(shutil.which, _COMMANDS)), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine: `apt-get install chromium` provides it")
    return found


class Browser:
    """Opens pages, each in a profile of its own."""

    def __init__(self, directory: Path) -> None:
        self._command = command()
        self._directory = directory
        self._opened = 0

    def open(self, url: str) -> str:
        """The document that a page has become once it was loaded and its scripts have run."""
        self._opened += 1
        profile = self._directory / f"profile-{self._opened}"
        call = [self._command, *_FLAGS, f"--user-data-dir={profile}", url]
        done = subprocess.run(call, capture_output=True, text=True, timeout=LONGEST_S, check=True)
        return done.stdout


class Site:
    """A web site on this machine with one page, which may post a report; ``/reported`` is answered after that.

    A page that embeds ``/reported`` is not loaded before its report is here.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.origin = f"http://localhost:{server.server_port}"
        self.page = b""
        self.posted: Queue[str] = Queue()
        self.has_report = threading.Event()


@contextmanager
def site() -> Iterator[Site]:
    """A web site, until the block is left. Its name is another than that of a server on 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/reported":
                made.has_report.wait(LONGEST_S)
            self._answer(made.page)

        def do_POST(self) -> None:
            made.posted.put(self.rfile.read(int(self.headers["content-length"])).decode())
            made.has_report.set()
            self._answer(b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Site(server)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        yield made
    finally:
        made.has_report.set()
        server.shutdown()
        server.server_close()
        serving.join()
