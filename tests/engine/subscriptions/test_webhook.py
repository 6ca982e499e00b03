"""Which addresses are called, and how an answer is read: real sockets, and names that resolve as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.engine.subscriptions.webhook import DeliveryFailed, Webhooks, WebhookUrlRejected, check_url


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example/in",
        "https://hooks.example:8443/in?a=b",
        "https://93.184.216.34/in",
        "https://[2606:2800:220:1::1]/in",
        "https://bücher.example/in",
        "http://localhost/in",
        "http://LOCALHOST:8080/in",
        "http://127.0.0.1:9/in",
        "http://127.0.0.77/in",
    ],
)
def test_public_https_and_local_http_are_taken(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example",
        "ftp://hooks.example/",
        "https:///nothing",
        "https://user:pass@hooks.example/",
        "https://hooks.example/#part",
        "https://hooks.example:99999/",
        "https://a b.example/",
        "https://" + "a" * 3000,
        "http://hooks.example/",
        "http://10.0.0.1/hook",
        "http://127.1.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://[::1]/",
        "http://localhost.example/",
        "https://localhost/",
        "https://a.localhost/",
        "https://127.0.0.1/",
        "https://10.1.2.3/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest",
        "https://100.64.0.1/",
        "https://0.0.0.0/",
        "https://0x7f.1/",
        "https://017700000001/",
        "https://224.0.0.1/",
        "https://255.255.255.255/",
        "https://[::1]/",
        "https://[::]/",
        "https://[fe80::1]/",
        "https://[fc00::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[64:ff9b::a00:1]/",
        "https://[2002:a00:1::]/",
    ],
)
def test_addresses_that_a_server_must_not_call_are_refused(url: str) -> None:
    with pytest.raises(WebhookUrlRejected):
        check_url(url)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that sends these bytes to everyone; answers its port and what it was sent."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()


async def post(url: str, resolve: Callable[[str, int], Awaitable[list[str]]] | None = None) -> bool:
    webhooks = Webhooks() if resolve is None else Webhooks(resolve=resolve)
    try:
        return await webhooks.post(url, b"{}", {"content-type": "application/json"}, timeout_s=5)
    finally:
        await webhooks.close()


def ok(body: bytes, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + extra + b"content-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("answer", "done"),
    [
        (ok(b'{"done": true}'), True),
        (ok(b'{"done": true, "more": 1}'), True),
        (ok(b'{"done": false}'), False),
        (ok(b'{"done": "yes"}'), False),
        (ok(b"{}"), False),
        (ok(b""), False),
        (ok(b"not json"), False),
        (ok(b"[" * 50_000), False),
        (ok(b'{"done": true}' + b" " * 70_000), False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False),
    ],
)
async def test_only_a_plain_done_counts_as_done(answer: bytes, done: bool) -> None:
    async with answering(answer) as (port, _):
        assert await post(f"http://127.0.0.1:{port}/") is done


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", "the receiver answered 500"),
        (b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", "the receiver answered 404"),
        (b"HTTP/1.1 307 No\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "the receiver answered 307"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ncut", None),
        (b"nonsense\r\n\r\n", None),
        (b"", None),
    ],
)
async def test_everything_else_is_a_failure_and_redirects_are_not_followed(answer: bytes, reason: str | None) -> None:
    async with answering(answer) as (port, heads):
        with pytest.raises(DeliveryFailed, match=reason):
            await post(f"http://127.0.0.1:{port}/")
        assert len(heads) == 1


async def test_a_slow_receiver_is_given_up() -> None:
    hung = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hung.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    webhooks = Webhooks()
    with pytest.raises(DeliveryFailed, match=r"no answer within 0\.05 s"):
        await webhooks.post(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", b"", {}, timeout_s=0.05)
    hung.set()
    await webhooks.close()
    server.close()


async def test_a_refused_connection_is_a_failure() -> None:
    with pytest.raises(DeliveryFailed):
        await post("http://127.0.0.1:1/")


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "::ffff:192.168.0.1"])
async def test_a_public_name_that_resolves_to_a_private_address_is_not_called(address: str) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        assert host == "hooks.example"
        assert port == 443
        return ["93.184.216.34", address]

    with pytest.raises(DeliveryFailed, match="which webhooks may not call"):
        await post("https://hooks.example/", resolve)


async def test_localhost_that_resolves_elsewhere_is_not_called() -> None:
    async def resolve(_: str, __: int) -> list[str]:
        return ["93.184.216.34"]

    with pytest.raises(DeliveryFailed, match="which webhooks may not call"):
        await post("http://localhost/", resolve)


async def test_the_checked_address_is_called_under_the_name_that_was_given() -> None:
    async def resolve(_: str, __: int) -> list[str]:
        return ["127.0.0.1"]

    async with answering(ok(b"{}")) as (port, heads):
        assert await post(f"http://localhost:{port}/path?q=1", resolve) is False
        lines = heads[0].decode().lower().split("\r\n")
        assert lines[0] == "post /path?q=1 http/1.1"
        assert lines.count(f"host: localhost:{port}") == 1


async def test_the_next_address_is_tried_when_one_refuses() -> None:
    async def resolve(_: str, __: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]

    async with answering(ok(b"{}")) as (port, heads):
        await post(f"http://localhost:{port}/", resolve)
        assert len(heads) == 1


async def test_a_name_without_an_address_is_a_failure() -> None:
    async def resolve(_: str, __: int) -> list[str]:
        return []

    with pytest.raises(DeliveryFailed, match="has no address"):
        await post("https://hooks.example/", resolve)
