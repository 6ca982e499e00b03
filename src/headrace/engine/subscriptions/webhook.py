"""Posting to receivers, and only to those that a server may safely call: the home of the HTTP client.

A name is resolved here and the connection goes to the very address that was checked, so a name that changes its
meaning after the check gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import NamedTuple

import httpx2
import msgspec

from headrace import decoding
from headrace.engine.subscriptions.subscription import InvalidRequest

# It would log every address that is called, and those hold secrets.
logging.getLogger("httpx2").setLevel(logging.WARNING)

_MAX_URL = 2048
_MAX_ANSWER = 64 * 1024
_MAX_ADDRESSES = 3
_LOCAL_ADDRESSES = ipaddress.ip_network("127.0.0.0/24")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NUMERIC = re.compile(r"(0x[0-9a-f]*|\d+)", re.ASCII)
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+", re.ASCII)

Resolve = Callable[[str, int], Awaitable[list[str]]]


class LocalTargets(NamedTuple):
    """Which addresses that only this machine or its link can reach webhooks may call."""

    loopback: bool = True
    link_local: bool = False

    def admits(self, address: str) -> bool:
        """Whether an address is one of these."""
        return (self.loopback and _is_loopback(address)) or (self.link_local and _is_link_local(address))


LOOPBACK = LocalTargets()


class WebhookUrlRejected(InvalidRequest):
    """The server will not call this address."""

    code = "WEBHOOK_URL_REJECTED"


class DeliveryFailed(Exception):
    """The receiver did not accept the wake; the message says why."""


class _Done(msgspec.Struct):
    done: bool = False


def check_url(url: str, local: LocalTargets = LOOPBACK) -> None:
    """Refuse addresses that are not https to a public host, or http to this machine where that is allowed."""
    parsed = _parse(url)
    if parsed.userinfo or parsed.fragment:
        raise WebhookUrlRejected("webhook.url has no credentials and no fragment", field="webhook.url")
    host = _host(parsed)
    if parsed.scheme == "http":
        if _is_local_name(host) and not local.loopback:
            raise WebhookUrlRejected(
                "webhooks of this server may not call the machine it runs on; subscriptions.local_webhooks allows it",
                field="webhook.url",
            )
        if not _is_local_name(host) and not (local.link_local and _is_link_local(host)):
            raise WebhookUrlRejected("http is for localhost and 127.0.0.x; others need https", field="webhook.url")
    elif parsed.scheme != "https":
        raise WebhookUrlRejected("webhook.url must use https", field="webhook.url")
    elif host == "localhost" or host.endswith(".localhost"):
        raise WebhookUrlRejected("a webhook on localhost uses http", field="webhook.url")
    elif _is_numeric(host) and not _is_public(host):
        raise WebhookUrlRejected("webhook.url names a private or local address", field="webhook.url")


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in addresses))


class Webhooks:
    """Sends wakes. Follows no redirects, uses no proxy, and reads no more of an answer than it needs."""

    def __init__(self, *, resolve: Resolve = resolve, local: LocalTargets = LOOPBACK) -> None:
        self._resolve = resolve
        self._local = local
        self._client: httpx2.AsyncClient | None = None

    def check(self, url: str) -> None:
        """Refuse an address that would not be called."""
        check_url(url, self._local)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> bool:
        """Deliver a body; returns whether the receiver acknowledged it as done. Raises DeliveryFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._post(_parse(url), body, headers)
        except TimeoutError as reason:
            raise DeliveryFailed(f"no answer within {timeout_s:g} s") from reason
        except (httpx2.HTTPError, OSError, UnicodeError) as reason:
            raise DeliveryFailed(str(reason) or type(reason).__name__) from reason

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _post(self, url: httpx2.URL, body: bytes, headers: Mapping[str, str]) -> bool:
        addresses = await self._safe_addresses(url)
        for last, address in enumerate(addresses, start=1 - len(addresses)):
            try:
                return await self._send(url, address, body, headers)
            except httpx2.ConnectError:
                if not last:
                    raise
        raise DeliveryFailed(f"{url.host} has no address")

    async def _safe_addresses(self, url: httpx2.URL) -> list[str]:
        host = _host(url)
        addresses = await self._resolve(host, url.port or (443 if url.scheme == "https" else 80))
        for address in addresses:
            if not (_is_public(address) if url.scheme == "https" else self._local.admits(address)):
                raise DeliveryFailed(f"{host} resolves to {address}, which webhooks may not call")
        return addresses[:_MAX_ADDRESSES]

    async def _send(self, url: httpx2.URL, address: str, body: bytes, headers: Mapping[str, str]) -> bool:
        request = {
            "host": url.netloc.decode(),
            "accept-encoding": "identity",
            "user-agent": f"headrace/{version('headrace')}",
            **headers,
        }
        name = {"sni_hostname": url.raw_host.decode()}
        pinned = url.copy_with(host=address)
        async with self._http().stream("POST", pinned, content=body, headers=request, extensions=name) as response:
            if not response.is_success:
                raise DeliveryFailed(f"the receiver answered {response.status_code}")
            return _is_done(await _read(response))

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            # A kept connection could be reused for another host name on the same address.
            limits = httpx2.Limits(max_keepalive_connections=0)
            self._client = httpx2.AsyncClient(limits=limits, trust_env=False, timeout=None)
        return self._client


async def _read(response: httpx2.Response) -> bytes:
    """The body of an answer; nothing where it is longer than any answer to a wake."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > _MAX_ANSWER:
            return b""
    return body


def _is_done(body: bytes) -> bool:
    try:
        return decoding.decode(body, _Done).done
    except (msgspec.DecodeError, RecursionError):
        return False


def _parse(url: str) -> httpx2.URL:
    if len(url) > _MAX_URL:
        raise WebhookUrlRejected(f"webhook.url is longer than {_MAX_URL} characters", field="webhook.url")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as reason:
        raise WebhookUrlRejected(f"webhook.url is not a URL: {reason}", field="webhook.url") from reason
    if not _HOST.fullmatch(_host(parsed)) or not 0 < (parsed.port or 443) < 65536:
        raise WebhookUrlRejected("webhook.url names no host that can be called", field="webhook.url")
    return parsed


def _host(url: httpx2.URL) -> str:
    return url.raw_host.decode().lower().rstrip(".")


def _is_local_name(host: str) -> bool:
    return host == "localhost" or (":" not in host and _is_loopback(host))


def _is_numeric(host: str) -> bool:
    """Whether a host is an address, in any spelling that some resolver would take for one."""
    return ":" in host or _NUMERIC.fullmatch(host.rpartition(".")[2]) is not None


def _is_loopback(address: str) -> bool:
    ip = _address(address)
    return ip == ipaddress.IPv6Address("::1") or (ip is not None and ip.version == 4 and ip in _LOCAL_ADDRESSES)


def _is_link_local(address: str) -> bool:
    ip = _address(address)
    return ip is not None and ip.is_link_local


def _is_public(address: str) -> bool:
    ip = _address(address)
    if ip is None or ip.is_multicast:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(str(inner))
        return ip.is_global and not ip.is_reserved and not ip.is_site_local
    return ip.is_global and not ip.is_reserved


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
