"""A server that others can reach, with a certificate and keys: everything works over TLS, and both can be replaced."""

from __future__ import annotations

import http.server
import json
import queue
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import pytest

import headrace as hr
from headrace.errors import HeadraceError
from headrace.pipeline.work import Work
from headrace.storage.keys import KeyStore
from support.certificates import write_certificate

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

Eventually = Callable[..., None]
JSON = {"content-type": "application/json"}


class Secured:
    """The server, its certificate, and an admin's key."""

    def __init__(self, server: ServerProcess, directory: Path, token: str) -> None:
        self.server, self.directory, self.token = server, directory, token
        self.ca_file = str(directory / "cert.pem")
        # The certificate names the address that clients use, and not the one that the server binds.
        self.url = server.url.replace("0.0.0.0", "127.0.0.1")

    def client(self, key: str | None = None, **options: Any) -> hr.Client:
        return hr.Client(self.url, key or self.token, ca_file=self.ca_file, **options)

    def connect(self, ca_file: str | None = None) -> ssl.SSLSocket:
        """A connection of one's own; raises where the certificate is not trusted."""
        parts = urlsplit(self.url)
        context = ssl.create_default_context(cafile=ca_file or self.ca_file)
        plain = socket.create_connection((parts.hostname, parts.port), timeout=10)
        try:
            return context.wrap_socket(plain, server_hostname=parts.hostname)
        except BaseException:
            plain.close()
            raise

    def shown(self) -> bytes:
        """The certificate that a new connection gets."""
        parts = urlsplit(self.url)
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((str(parts.hostname), int(parts.port or 0))))

    def lines(self, word: str) -> list[dict[str, Any]]:
        """Lines of the log about the certificate that hold a word."""
        found = [json.loads(line) for line in self.server.log().splitlines() if "headrace.server.tls" in line]
        return [line for line in found if word in line["event"]]


@pytest.fixture
def secured(start_server: StartServer, tmp_path: Path) -> Secured:
    cert_file, key_file = write_certificate(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)
    with closing(KeyStore(tmp_path / "data" / "keys.db")) as keys:
        _, token = keys.create(user_id="ada", scopes=["admin"])
    tls = {"server__tls_cert": str(cert_file), "server__tls_key": str(key_file)}
    hooks = {"subscriptions__local_webhooks": "true"}
    return Secured(start_server(server__host="0.0.0.0", **tls, **hooks), tmp_path, token)


# -- everything over TLS


def test_the_client_writes_reads_and_follows(secured: Secured) -> None:
    with secured.client() as client:
        stream = client.stream("orders")
        stream.create()
        with stream.producer() as producer:
            producer.send({"n": 1})
        stream.append({"n": 2})
        assert [item for batch in stream.read() for item in batch.items] == [{"n": 1}, {"n": 2}]
        for live in ("sse", "long-poll"):
            followed = []
            for batch in stream.tail("-1", live=live):
                followed += batch.items
                if len(followed) == 2:
                    break
            assert followed == [{"n": 1}, {"n": 2}]
        assert [found["name"] for found in client.streams()] == ["orders"]
        stream.delete()
    with secured.client("hr_0_unknown") as stranger, pytest.raises(HeadraceError) as refusal:
        stranger.stream("orders").info()
    assert refusal.value.status == 401


def test_nothing_is_served_without_tls(secured: Secured) -> None:
    with pytest.raises(httpx2.HTTPError):
        httpx2.get(secured.url.replace("https://", "http://") + "/health", trust_env=False)


def test_a_webhook_is_confirmed_at_an_https_address(secured: Secured, hook: Hook) -> None:
    headers = {"authorization": f"Bearer {secured.token}"}
    context = ssl.create_default_context(cafile=secured.ca_file)
    with httpx2.Client(base_url=secured.url, headers=headers, verify=context, trust_env=False) as http:
        http.put("/v1/stream/jobs/a", headers=JSON)
        asked = {"type": "webhook", "pattern": "jobs/*", "webhook": {"url": hook.url}}
        assert http.put("/v1/stream/__ds/subscriptions/s1", json=asked).status_code == 201
        assert http.post("/v1/stream/jobs/a", json=[1]).status_code == 204
        wake = hook.received.get(timeout=20)
        assert wake["callback_url"].startswith(secured.url)
        report = {"wake_id": wake["wake_id"], "generation": wake["generation"], "done": True}
        report["acks"] = [{"stream": view["path"], "offset": view["tail_offset"]} for view in wake["streams"]]
        answer = httpx2.post(
            wake["callback_url"],
            json=report,
            headers={"authorization": f"Bearer {wake['callback_token']}"},
            verify=context,
            trust_env=False,
        )
        assert answer.json() == {"ok": True, "next_wake": False}


def test_the_pipeline_works(secured: Secured) -> None:
    with Work(secured.url, secured.token, secured.ca_file) as work:
        assert work.pause()["paused"] is True
        assert work.resume()["paused"] is False
        assert work.lease("w", 1) is None
        assert work.status()["due"] == []


class Hook:
    """A receiver of webhooks on this machine."""

    def __init__(self) -> None:
        self.received: queue.Queue[dict[str, Any]] = queue.Queue()
        received = self.received

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


# -- keys are replaced


def test_a_key_is_rotated_without_a_refused_request(secured: Secured, eventually: Eventually) -> None:
    path = secured.server.data_dir / "keys.db"
    with closing(KeyStore(path)) as keys:
        old, old_token = keys.create(user_id="ann", scopes=["write"], prefix="a/")
    with secured.client(old_token) as before, closing(KeyStore(path)) as keys:
        before.stream("a/x").create()
        _, new_token = keys.rotate(old.id)
        with secured.client(new_token) as after:
            after.stream("a/x").append(1)
            before.stream("a/x").append(2)
            keys.revoke(old.id)

            def is_refused() -> bool:
                try:
                    before.stream("a/x").info()
                except HeadraceError as refusal:
                    return refusal.status == 401
                return False

            eventually(is_refused)
            after.stream("a/x").append(3)
            assert [item for batch in after.stream("a/x").read() for item in batch.items] == [1, 2, 3]
            with pytest.raises(HeadraceError):
                after.stream("b/x").create()


# -- the certificate is replaced


@pytest.mark.parametrize("is_told", [True, False])
def test_a_new_certificate_is_used_and_connections_go_on(
    secured: Secured, eventually: Eventually, is_told: bool
) -> None:
    before = secured.shown()
    old_ca = secured.directory / "old.pem"
    old_ca.write_bytes(Path(secured.ca_file).read_bytes())
    with secured.client() as client, secured.connect() as kept:
        client.stream("x").create()
        write_certificate(secured.directory)
        if is_told:
            assert secured.server.process is not None
            secured.server.process.send_signal(signal.SIGHUP)
        eventually(lambda: secured.shown() != before)
        client.stream("x").append(1)
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert kept.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert secured.shown() == ssl.PEM_cert_to_DER_cert(Path(secured.ca_file).read_text())
    with pytest.raises(ssl.SSLError):
        secured.connect(str(old_ca)).close()
    with secured.client() as client:
        assert [item for batch in client.stream("x").read() for item in batch.items] == [1]
    assert len(secured.lines("reloaded")) >= 1


@pytest.mark.parametrize("damage", ["empty", "mismatch", "missing"])
def test_a_broken_certificate_is_not_used_and_the_log_says_why(
    secured: Secured, eventually: Eventually, tmp_path: Path, damage: str
) -> None:
    before = secured.shown()
    cert_file = Path(secured.ca_file)
    kept = cert_file.read_bytes()
    if damage == "empty":
        cert_file.write_bytes(b"")
    elif damage == "missing":
        cert_file.unlink()
    else:
        (tmp_path / "other").mkdir()
        cert_file.write_bytes(write_certificate(tmp_path / "other")[0].read_bytes())
    assert secured.server.process is not None
    secured.server.process.send_signal(signal.SIGHUP)
    eventually(lambda: secured.lines("was not reloaded"))
    (line, *_) = secured.lines("was not reloaded")
    assert line["level"] == "error" and str(cert_file) in line["event"]
    assert secured.shown() == before
    cert_file.write_bytes(kept)
    secured.server.process.send_signal(signal.SIGHUP)
    eventually(lambda: secured.lines("was reloaded"))
    with secured.client() as client:
        client.stream("x").create()
