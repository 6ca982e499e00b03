"""Everything that Headrace relies on inside uvicorn and httptools.

uvicorn has no public way to answer a request without a task, so its protocol class and its server class are extended
here. Other modules import neither library. Of what they inherit from uvicorn they use only the attributes that
:class:`HttpProtocol` lists. ``tests/server/http/test_uvicorn_adapter.py`` states what each of them promises.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

#: What the parser raises: a request asks for another protocol, a callback raised, the bytes are not HTTP.
UpgradeOffered = httptools.HttpParserUpgrade
CallbackFailed = httptools.HttpParserCallbackError
ParserFailed = httptools.HttpParserError
#: A request that ASGI answers.
AsgiCycle = RequestResponseCycle
#: What all connections of a server share: among it the headers of every answer, which are renewed every second.
SharedState = ServerState


class HotCycle:
    """Takes the place of uvicorn's running request, so that pipelined requests queue behind ours."""

    def __init__(self) -> None:
        self.response_complete = True
        self.disconnected = False
        self.keep_alive = True
        self.message_event = asyncio.Event()


class HttpProtocol(HttpToolsProtocol):
    """One client connection, whose requests are answered by ASGI unless a subclass answers them itself."""

    # What subclasses use of uvicorn's attributes:
    transport: asyncio.Transport
    flow: FlowControl
    parser: Any
    server_state: SharedState
    connections: Any
    scheme: Any
    url: bytes
    headers: list[tuple[bytes, bytes]]
    expect_100_continue: bool
    #: The newest request. Where the one before it is not answered yet, the newest waits in the pipeline.
    cycle: Any
    #: Requests that wait for the running one to be answered, with their applications.
    pipeline: deque[tuple[AsgiCycle, Any]]
    timeout_keep_alive_task: asyncio.TimerHandle | None

    #: The oldest request that is not answered, or the one that was answered last.
    running: HotCycle | AsgiCycle | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.running = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the running request of the disconnect; uvicorn notifies only the newest."""
        super().connection_lost(exc)
        if self.running is not None and not self.running.response_complete:
            _disconnect(self.running)

    def is_free(self) -> bool:
        """Whether no request waits for its answer."""
        return self.running is None or self.running.response_complete

    def stop_keep_alive_timer(self) -> None:
        """Stop the timer that closes idle connections."""
        self._unset_keepalive_if_required()

    def renew_parser(self) -> None:
        """Replace the parser with a new one."""
        self.parser = httptools.HttpRequestParser(self)

    def start_asgi(self) -> None:
        """Start the ASGI application for the request whose headers have just arrived."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)  # makes the scope
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        HttpToolsProtocol.on_headers_complete(self)

    def _start_asgi_task(self, cycle: AsgiCycle, app: Any) -> None:
        """uvicorn begins to answer a request, at once or when those before it are answered."""
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def is_newest_answered(self) -> bool:
        """Whether the newest request that went to ASGI has its answer already."""
        return bool(self.cycle.response_complete)

    def abandon_newest(self) -> None:
        """Forget the newest request that went to ASGI, whose rest will not arrive."""
        if self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()
        elif self.running is not None and self.running is self.cycle and not self.running.response_complete:
            _disconnect(self.running)
            self.running = None

    def asgi_scope(self) -> dict[str, Any]:
        """The scope of the running request; empty where ASGI does not answer it."""
        scope: dict[str, Any] = getattr(self.running, "scope", {})
        return scope


def _disconnect(cycle: HotCycle | AsgiCycle) -> None:
    cycle.disconnected = True
    cycle.message_event.set()


class HttpServer(uvicorn.Server):
    """Listens, with a bound on the time of a TLS handshake, and ends gracefully."""

    def __init__(
        self,
        app: Any,
        protocol: type[HttpProtocol],
        *,
        tls: ssl.SSLContext | None,
        handshake_s: float,
        backlog: int,
        idle_s: float,
        grace_s: float,
        on_shutdown: Callable[[], None],
    ) -> None:
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(idle_s),
            timeout_graceful_shutdown=math.ceil(grace_s),
        )
        super().__init__(config)
        self._tls = tls
        self._handshake_s = None if tls is None else handshake_s
        self._backlog = backlog
        self._on_shutdown = on_shutdown

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen here, as uvicorn has no setting for the timeout of a TLS handshake."""
        listening = [await self._listen(listener) for listener in sockets or ()]
        await super().startup([])
        self.servers = listening

    async def _listen(self, listener: socket.socket) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            self._connect,
            sock=listener,
            ssl=self._tls,
            backlog=self._backlog,
            ssl_handshake_timeout=self._handshake_s,
        )

    def _connect(self) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class
        made: asyncio.Protocol = protocol(self.config, self.server_state, self.lifespan.state)
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and wait for requests in flight."""
        # uvicorn would raise the signal again once it has stopped, and the process would not end well.
        self._captured_signals.clear()
        self._on_shutdown()
        await super().shutdown(sockets)

    def connections(self) -> list[Any]:
        """Every open connection."""
        return list(self.server_state.connections)

    def bound_address(self) -> tuple[str, int]:
        """Host and port; known once the server listens."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return host, port
