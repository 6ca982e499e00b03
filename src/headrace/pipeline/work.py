"""HTTP client of the work API: lease units, keep the lease alive, commit results."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx2
import msgspec

from headrace.errors import HeadraceError

_TIMEOUT_S = 30.0
_DISTRUST = "CERTIFICATE_VERIFY_FAILED"
_MAX_CLIENTS = 4
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Unreachable(HeadraceError):
    """No server answers there."""

    code = "unreachable"
    status = 503


class Refused(HeadraceError):
    """The server refused the request; ``code`` and ``status`` are those of its answer."""

    code = "refused"

    def __init__(self, status: int, code: str, message: str, facts: dict[str, Any]) -> None:
        super().__init__(message, **facts)
        # The tree declares both on the class; here each answer has its own.
        self.__dict__.update(status=status, code=code)


class Lease(msgspec.Struct, frozen=True):
    """Units that nobody else works on until the lease ends; the token proves that it is still ours."""

    id: str
    token: int
    ttl_ms: int
    store: str
    units: tuple[dict[str, Any], ...]


def is_open(status: dict[str, Any]) -> bool:
    """Whether a status names work that is not done: due, leased, tried again after a pause, or not looked for yet."""
    has_work = bool(status["due"] or status["leases"] or status.get("resting"))
    return has_work or not status.get("complete", True)


def trust(ca_file: str, *, is_pinned: bool) -> ssl.SSLContext:
    """The TLS context, which requires a certificate that the file vouches for or, if pinned, the first one of the file.

    A pinned certificate need not name the address: a process that has the file of its own server knows better.
    """
    if not is_pinned:
        return ssl.create_default_context(cafile=ca_file)
    first = _CERTIFICATE.search(Path(ca_file).read_text())
    if first is None:
        raise ssl.SSLError(f"{ca_file} holds no certificate in PEM")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=first[0])
    return context


class Work:
    """Client of the work endpoints of one server; thread-safe."""

    def __init__(
        self, url: str, key: str | None = None, ca_file: str | None = None, *, is_pinned: bool = False
    ) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._ca_file, self._is_pinned = ca_file, is_pinned
        self._clients = [self._connected()]

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connected(self) -> httpx2.Client:
        verify: Any = trust(self._ca_file, is_pinned=self._is_pinned) if self._ca_file else True
        return httpx2.Client(headers=self._headers, timeout=_TIMEOUT_S, verify=verify, trust_env=False)

    def status(self) -> dict[str, Any]:
        """What is due, leased and parked."""
        return self._ask("GET", "/v1/work")

    def attach(self, pipeline: str, *, attached: bool) -> None:
        """Say that a pipeline looks for work, or does so no more."""
        self._ask("POST", "/v1/work/attach", {"pipeline": pipeline, "attached": attached})

    def lease(self, worker: str, limit: int, **facts: str | None) -> Lease | None:
        """Lease up to ``limit`` units; None where nothing is due.

        Facts tell people where the worker runs: ``host``, ``master``, ``ui``, ``event_log``.
        """
        body = {"worker": worker, "limit": limit} | {name: value for name, value in facts.items() if value}
        granted = self._ask("POST", "/v1/work/lease", body)
        if not granted["units"]:
            return None
        lease = granted["lease"]
        return Lease(lease["id"], lease["token"], lease["ttl_ms"], granted["store"], tuple(granted["units"]))

    def heartbeat(self, lease: Lease, done: int) -> None:
        """Extend a lease; raises Refused if it was lost."""
        total = len(lease.units)
        self._ask("POST", f"/v1/work/leases/{lease.id}/heartbeat", {"token": lease.token, "done": done, "total": total})

    def commit(self, lease: Lease, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Commit results, all or none."""
        body = {"token": lease.token, "results": list(results)}
        return self._ask("POST", f"/v1/work/leases/{lease.id}/commit", body)

    def release(self, lease: Lease) -> None:
        """Give back what is not done."""
        self._ask("POST", f"/v1/work/leases/{lease.id}/release", {"token": lease.token})

    def pause(self) -> dict[str, Any]:
        """Give out no more work."""
        return self._ask("POST", "/v1/work/pause", {})

    def resume(self) -> dict[str, Any]:
        """Give out work again."""
        return self._ask("POST", "/v1/work/resume", {})

    def run(self, stream: str, *, seal: bool = False) -> dict[str, Any]:
        """Make a stream due now, however little is new in it, and retry its parked work.

        ``seal`` publishes what it holds first.
        """
        return self._ask("POST", "/v1/work/run", {"stream": stream, **({"seal": True} if seal else {})})

    def _send(self, method: str, url: str, arguments: dict[str, Any]) -> httpx2.Response:
        try:
            return self._clients[-1].request(method, url, **arguments)
        except httpx2.ConnectError as reason:
            if not self._ca_file or _DISTRUST not in str(reason):
                raise
        # The certificate may have been replaced, and the file with it. Others may still use the client from before.
        self._clients.append(self._connected())
        if len(self._clients) > _MAX_CLIENTS:
            self._clients.pop(0).close()
        return self._clients[-1].request(method, url, **arguments)

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        arguments: dict[str, Any] = {"content": content, "headers": headers}
        try:
            answer = self._send(method, self._url + path, arguments)
        except (httpx2.HTTPError, OSError) as reason:
            raise Unreachable(f"no server answers on {self._url}: {reason}") from reason
        document = _decode_answer(answer)
        if answer.status_code >= 400:
            error = dict(document.get("error", {}))
            message = error.pop("message", f"the server answers {answer.status_code}")
            raise Refused(answer.status_code, error.pop("code", "error"), message, error)
        return document


def _decode_answer(answer: httpx2.Response) -> dict[str, Any]:
    """The JSON document of an answer, empty for an error without one; raises Unreachable where it is not JSON."""
    try:
        return msgspec.json.decode(answer.content, type=dict[str, Any]) if answer.content else {}
    except msgspec.DecodeError as reason:
        if answer.status_code >= 400:
            return {}
        raise Unreachable(f"what answers on {answer.url} is no server of ours: {reason}") from reason
