"""A real S3 API on this machine, and a proxy before it that fails on demand, or by chance."""

from __future__ import annotations

import http.client
import logging
import random
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from moto.server import ThreadedMotoServer

from support.store_faults import Fault, Recent, Request

_LONGEST_DELAY_S = 0.3


def _refusal(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>It cannot be done now.</Message></Error>".encode()


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
        #: What goes wrong beside what is planned.
        self.chance: Callable[[Request], Fault | None] = lambda _: None
        self.recent = Recent()
        self._lock = threading.Lock()
        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"s3": self}))
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
        """Let the next requests of this method fail, one after another."""
        with self._lock:
            self._plan += [(method, fault) for fault in faults]

    def next_fault(self, request: Request) -> Fault | None:
        method, path = request.method, request.path
        with self._lock:
            self.seen.append((method, path))
            if self.outage.is_set():
                return self.answers
            for place, (wanted, fault) in enumerate(self._plan):
                if wanted == method:
                    del self._plan[place]
                    return fault
            return self.chance(request)

    def close(self) -> None:
        self.released.set()
        self._proxy.shutdown()
        self._thread.join()
        self._proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    s3: S3
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = Request(self.command, self.path, "if-none-match" in self.headers)
        fault = self.s3.next_fault(request)
        if fault == "hang":
            self.s3.released.wait(30)
        elif fault == "delay":
            time.sleep(random.Random(self.path).uniform(0, _LONGEST_DELAY_S))
        if fault == "throttle":
            self._refuse(503, "SlowDown")
        elif fault == "conflict":
            self._refuse(409, "ConditionalRequestConflict")
        elif fault == "deny":
            self._refuse(403, "AccessDenied")
        elif fault == "cut":
            self.close_connection = True
        else:
            status, headers, content = self._forward(body)
            if status < 300:
                self.s3.recent.note(request, body)
                content = self._listed(request, content, stale=fault == "stale")
            self._end(fault, status, headers, content)

    def _listed(self, request: Request, content: bytes, *, stale: bool) -> bytes:
        if not request.is_listing:
            return content
        prefix = parse_qs(urlsplit(request.path).query).get("prefix", [""])[0]
        bucket = request.key.strip("/")
        self.s3.recent.listed(bucket, content)
        return self.s3.recent.stale(bucket, prefix, content) if stale else content

    def _end(self, fault: Fault | None, status: int, headers: dict[str, str], content: bytes) -> None:
        if fault == "lose":
            self.close_connection = True
        elif fault == "reset":
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif fault == "exists" and status < 300:
            self._refuse(412, "PreconditionFailed")
        elif fault == "truncate":
            self.close_connection = True
            self._answer(status, headers, content[: len(content) // 2], length=len(content))
        else:
            self._answer(status, headers, content)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, {"content-type": "application/xml"}, _refusal(code))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.s3.backend, timeout=30)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
        try:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            if self.command == "HEAD":
                length = int(headers.get("Content-Length", 0))
            self.send_header("content-length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # whoever asked has given up

    def log_message(self, *_: object) -> None:
        pass


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
