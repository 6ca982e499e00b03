"""A load in a process of its own: requests that are ready to be sent, on many connections at once.

It reads a pickled load from standard input and writes how many answers had which status as JSON to standard output.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import resource
import socket
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, cast

import uvloop

_ANSWER_SECONDS, _OPENED_AT_ONCE = 60.0, 200
_BETWEEN_WAKES = 1.0
#: What a slow reader's socket takes without being read.
_SMALL_BUFFER = 4096


@dataclass(frozen=True)
class Load:
    """Requests that the connections send in turn: so many rounds, each after the last is answered.

    Those who ``wait`` are all parked first, then woken by each of ``wakes``; those who are ``slow`` never read.
    """

    requests: list[bytes]
    connections: int = 4
    rounds: int = 1
    kind: Literal["ask", "wait", "slow"] = "ask"
    wakes: list[bytes] = field(default_factory=list)
    #: How long slow readers stay.
    seconds: float = 3.0


async def carry_out(load: Load, port: int) -> Counter[str]:
    """Send everything, and count the answers by status."""
    if load.kind == "slow":
        return await _read_nothing(load, port)
    if load.kind == "wait":
        return await _wait(load, port)
    statuses: Counter[str] = Counter()
    await asyncio.gather(*(_ask(load, number, port, statuses) for number in range(load.connections)))
    return statuses


async def _ask(load: Load, number: int, port: int, statuses: Counter[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for turn in range(load.rounds):
        writer.write(load.requests[(number + turn * load.connections) % len(load.requests)])
        try:
            await writer.drain()
            statuses[await asyncio.wait_for(_answered(reader), _ANSWER_SECONDS)] += 1
        except (OSError, EOFError, ValueError, TimeoutError) as reason:
            statuses[type(reason).__name__] += 1
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


async def _answered(reader: asyncio.StreamReader) -> str:
    """The status of one answer, which is read whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    status, fields = lines[0].split(" ")[1], dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    if fields.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    elif status not in ("204", "304"):
        await reader.readexactly(int(fields.get("content-length", "0")))
    return status


class _Waiter(asyncio.Protocol):
    """One connection that is parked; whatever comes is counted."""

    def __init__(self, request: bytes, came: Counter[str]) -> None:
        self._request, self._came = request, came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._came[data[9:12].decode("latin-1") if data.startswith(b"HTTP/1.1 ") else "more"] += 1


async def _wait(load: Load, port: int) -> Counter[str]:
    came: Counter[str] = Counter()
    loop, left = asyncio.get_running_loop(), load.connections
    transports = []
    while left:
        batch = [
            loop.create_connection(
                lambda at=n: _Waiter(load.requests[at % len(load.requests)], came), "127.0.0.1", port
            )  # type: ignore[misc]
            for n in range(left, max(0, left - _OPENED_AT_ONCE), -1)
        ]
        transports += [transport for transport, _ in await asyncio.gather(*batch)]
        left -= len(batch)
        await asyncio.sleep(0.01)
    await asyncio.sleep(_BETWEEN_WAKES)
    for wake in load.wakes:
        statuses: Counter[str] = Counter()
        await _ask(Load([wake]), 0, port, statuses)
        came.update({f"wake {status}": count for status, count in statuses.items()})
        await asyncio.sleep(_BETWEEN_WAKES)
    for transport in transports:
        transport.abort()
    return came


async def _read_nothing(load: Load, port: int) -> Counter[str]:
    loop, sockets = asyncio.get_running_loop(), []
    for number in range(load.connections):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, load.requests[number % len(load.requests)])
        sockets.append(connection)
    await asyncio.sleep(load.seconds)
    statuses: Counter[str] = Counter()
    for connection in sockets:
        try:
            statuses[connection.recv(12)[9:].decode("latin-1") or "closed"] += 1
        except OSError as reason:
            statuses[type(reason).__name__] += 1
        connection.close()
    return statuses


def main() -> None:
    """Carry out the load that comes on standard input."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    load, port = pickle.load(sys.stdin.buffer)
    json.dump(uvloop.run(carry_out(load, port)), sys.stdout)


if __name__ == "__main__":
    main()
