"""Running the server: opens the parts, listens, and stops gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic
from typing import Any

import uvicorn
from starlette.routing import BaseRoute

from headrace.config import Config
from headrace.engine.engine import Engine
from headrace.engine.gates import Gate
from headrace.engine.tail import Tail
from headrace.server import listing
from headrace.server.app import Front
from headrace.server.auth import Door, refuse_open_bind
from headrace.server.bridge import Bridge
from headrace.server.connection import Connection
from headrace.server.dispatch import Dispatcher
from headrace.server.encoding import Encoder
from headrace.server.reads import Reads
from headrace.server.requestlog import RequestLog
from headrace.server.streams import Streams
from headrace.storage.keys import KeyStore

_TICK_S = 0.25
# With the default of 5 ms the writer's thread and the event loop starve each other.
_SWITCH_INTERVAL_S = 0.0002


class _Uvicorn(uvicorn.Server):
    """Lets parked readers go before it waits for requests in flight."""

    def __init__(self, config: uvicorn.Config, tail: Tail) -> None:
        super().__init__(config)
        self._tail = tail

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._tail.end()
        await super().shutdown(sockets)


class Server:
    """The server of one data directory."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._data_dir = Path(config.storage.data_dir)
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self.keys = KeyStore(self._data_dir / "keys.db")
        refuse_open_bind(config, self.keys)
        self._server: uvicorn.Server | None = None

    async def run(self, ready: Callable[[str], None] | None = None) -> None:
        """Serve until a signal comes; ``ready`` is told the address."""
        engine = await Engine.open(self._config)
        try:
            front, protocol = self._build(engine)
            self._server = _Uvicorn(_uvicorn_config(self._config, front, protocol), engine.tail)
            housekeeping = asyncio.create_task(self._keep_house(engine))
            announcing = asyncio.create_task(self._announce(ready))
            try:
                await self._server.serve()
            finally:
                for task in (housekeeping, announcing):
                    task.cancel()
        finally:
            await engine.close()
            self.keys.close()

    def _build(self, engine: Engine) -> tuple[Front, type[Connection]]:
        config = self._config
        door = Door(config.server, self.keys)
        read_gate = Gate(config.limits.concurrent_reads)
        request_log = RequestLog(engine.counters)
        reads = Reads(engine, Encoder(read_gate))
        dispatcher = Dispatcher(door, Streams(engine), reads, engine.counters)
        bridge = Bridge(dispatcher, read_gate, request_log, config.limits.body_bytes)
        routes: list[BaseRoute] = [*listing.routes(engine)]
        timeout_s = config.server.resolver_timeout_s
        front = Front(routes, bridge, door, request_log, timeout_s=timeout_s)
        protocol = type(
            "Connection",
            (Connection,),
            {
                "dispatcher": dispatcher,
                "request_log": request_log,
                "header_bytes": config.limits.header_bytes,
                "url_bytes": config.limits.url_bytes,
                "max_connections": config.server.max_connections,
            },
        )
        return front, protocol

    async def _announce(self, ready: Callable[[str], None] | None) -> None:
        assert self._server is not None
        while not self._server.started:
            await asyncio.sleep(0.01)
        if ready is not None:
            ready(self.address())

    def address(self) -> str:
        """The address clients use; known once the server listens."""
        assert self._server is not None
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if self._config.server.tls_cert else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def _keep_house(self, engine: Engine) -> None:
        """Time out what waits too long: operations, arriving requests, idle and stalled connections."""
        while True:
            await asyncio.sleep(_TICK_S)
            engine.writer.expire()
            now = monotonic()
            assert self._server is not None
            for connection in list(self._server.server_state.connections):
                if isinstance(connection, Connection):
                    self._check(connection, now)

    def _check(self, connection: Connection, now: float) -> None:
        limits = self._config.server
        if connection.begun_s and now - connection.begun_s > limits.request_timeout_s:
            connection.give_up()
        elif connection.stalled_s and now - connection.stalled_s > limits.write_timeout_s:
            connection.transport.abort()
        elif now - connection.seen_s > limits.idle_timeout_s and connection.is_idle():
            connection.transport.close()


def _uvicorn_config(config: Config, front: Front, protocol: type[Connection]) -> uvicorn.Config:
    server = config.server
    return uvicorn.Config(
        front,
        host=server.host,
        port=server.port,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=server.tls_cert or None,
        ssl_keyfile=server.tls_key or None,
        timeout_keep_alive=int(server.idle_timeout_s),
        timeout_graceful_shutdown=int(server.shutdown_grace_s),
        backlog=4096,
    )


def serve(config: Config, ready: Callable[[str], None] | None = None) -> None:
    """Run the server in this process until it is told to stop."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    server = Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        _run(server.run(ready))


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
