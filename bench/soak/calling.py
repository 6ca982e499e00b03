"""A connection that stays open: one HTTP request at a time, and answers that are streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

SLOWEST_ANSWER_S = 90.0
_LIMIT = 32 * 1024 * 1024


class Answer(NamedTuple):
    """A whole answer; names of headers are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as a value."""
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """The code of an error, or nothing."""
        if self.status < 400:
            return ""
        try:
            return str(self.json()["error"]["code"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return ""


class Caller:
    """Asks a server on this machine; a connection that was closed while nobody used it is opened again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """The answer to one request, whatever its status; a body that is no bytes is sent as JSON."""
        content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(SLOWEST_ANSWER_S):
                reader = await self._send(method, path, content, headers or {})
                status, received = await _head(reader)
                found = b"" if method == "HEAD" or status in (204, 304) else await _body(reader, received)
        except BaseException:
            await self.close()
            raise
        if received.get("connection") == "close":
            await self.close()
        return Answer(status, received, found)

    async def stream(self, path: str) -> AsyncGenerator[tuple[int, bytes]]:
        """The status of an answer with every chunk of its body, until it ends."""
        try:
            reader = await self._send("GET", path, b"", {})
            status, headers = await _head(reader)
            if headers.get("transfer-encoding") != "chunked":
                yield status, await _body(reader, headers)
                return
            while chunk := await _chunk(reader):
                yield status, chunk
        finally:
            await self.close()

    async def close(self) -> None:
        """Hang up."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _send(self, method: str, path: str, content: bytes, headers: dict[str, str]) -> asyncio.StreamReader:
        if self._reader is None or self._reader.at_eof():
            await self.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=_LIMIT)
        assert self._writer is not None
        fields = {"Host": "127.0.0.1", "Content-Type": "application/json", **headers}
        if content or method in ("POST", "PUT"):
            fields["Content-Length"] = str(len(content))
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + content)
        return self._reader


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return int(first.split(" ", 2)[1]), {name.lower(): value.strip() for name, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    parts = []
    while part := await _chunk(reader):
        parts.append(part)
    return b"".join(parts)


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    return (await reader.readexactly(size + 2))[:-2]
