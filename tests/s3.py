"""A real S3 API on this machine, and a proxy before it that fails on demand."""

from __future__ import annotations

import http.client
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from moto.server import ThreadedMotoServer

Fault = Literal["throttle", "lose", "cut", "hang"]
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class S3:
    """An S3 service with one bucket; ``environ`` leads obstore to it, through the proxy."""

    def __init__(self, bucket: str, backend: tuple[str, int]) -> None:
        self.url = f"s3://{bucket}/some/prefix"
        self.backend = backend
        self.outage = threading.Event()
        #: How the service answers during an outage.
        self.answers: Fault = "cut"
        self.released = threading.Event()
        self.seen: list[tuple[str, str]] = []
        self._plan: list[tuple[str, Fault]] = []
        self._lock = threading.Lock()
        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._proxy.daemon_threads = True
        self._thread = threading.Thread(target=self._proxy.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def environ(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._proxy.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def plan(self, method: str, *faults: Fault) -> None:
        """Let the next requests of this method fail, one after another.

        ``throttle`` answers 503; ``lose`` does what was asked and answers nothing; ``cut`` does nothing and answers
        nothing; ``hang`` answers when ``released`` is set.
        """
        with self._lock:
            self._plan += [(method, fault) for fault in faults]

    def next_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append((method, path))
            if self.outage.is_set():
                return self.answers
            for place, (wanted, fault) in enumerate(self._plan):
                if wanted == method:
                    del self._plan[place]
                    return fault
        return None

    def close(self) -> None:
        self.released.set()
        self._proxy.shutdown()
        self._thread.join()
        self._proxy.server_close()


def _handler(s3: S3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            fault = s3.next_fault(self.command, self.path)
            if fault == "hang":
                s3.released.wait(30)
            if fault == "throttle":
                self._answer(503, {"content-type": "application/xml"}, _SLOW_DOWN)
                return
            if fault != "cut":
                answer = self._forward(body)
            if fault in ("cut", "lose"):
                self.close_connection = True
                return
            self._answer(*answer)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

        def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection(*s3.backend, timeout=30)
            try:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                return answer.status, dict(answer.headers), answer.read()
            finally:
                connection.close()

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            try:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
                self.send_header("content-length", length)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # whoever asked has given up

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def service() -> Iterator[tuple[str, int]]:
    """The address of an S3 API without faults."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()
    finally:
        server.stop()


def bucket(backend: tuple[str, int]) -> S3:
    """A bucket of its own on a service."""
    name = f"bucket-{uuid.uuid4().hex}"
    connection = http.client.HTTPConnection(*backend, timeout=30)
    connection.request("PUT", f"/{name}")
    assert connection.getresponse().status == 200
    connection.close()
    return S3(name, backend)
