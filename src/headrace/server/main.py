"""Running the server: opens the parts, listens, and stops gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import socket
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from logging import getLogger
from pathlib import Path
from time import monotonic
from typing import Any

from headrace.config import Config, MiB
from headrace.engine.assembly import Engine
from headrace.engine.runtime import allocators, memory
from headrace.engine.runtime.auto_tune import tune
from headrace.engine.runtime.event_loop import StallWatchdog
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import MemoryMonitor
from headrace.engine.subscriptions.subscription_index import SubscriptionLimits
from headrace.engine.subscriptions.subscriptions import Subscriptions
from headrace.engine.subscriptions.webhook import LocalTargets, Webhooks
from headrace.engine.system_streams import System
from headrace.engine.touch.report import LiveMetrics
from headrace.errors import Unavailable
from headrace.server.http.asgi import AsgiApplication, DispatcherApplication
from headrace.server.http.auth import Authenticator, is_loopback, refuse_open_bind
from headrace.server.http.common_headers import ServerLines
from headrace.server.http.connection import HOT_BODY_BYTES, Connection
from headrace.server.http.dispatch import Dispatcher
from headrace.server.http.head_cache import RequestHeadCache
from headrace.server.http.request_log import RequestLog, configure_logging
from headrace.server.http.route import Access
from headrace.server.http.tls import open_certificate
from headrace.server.http.uvicorn_adapter import HttpServer
from headrace.server.metrics import Metrics
from headrace.server.metrics_stream import MetricsStream
from headrace.server.routes.route_table import ROUTES, hot_routes, hot_verbs, make_resources, starlette_routes
from headrace.server.routes.service import Readiness
from headrace.storage import log_damage
from headrace.storage.files import restrict_process
from headrace.storage.keys import KeyStore
from headrace.storage.lock import make_directory

log = getLogger("headrace.server")

_TICK_S = 0.25
_BACKLOG = 4096
# With the default of 5 ms the writer's thread and the event loop may wait long for each other; with less than this they
# take the interpreter's lock from each other before they are done. Throughput is the same.
_SWITCH_INTERVAL_S = 0.0005
# Requests make no cycles; the collector need not look at every few hundred of their objects. A collection of the young
# stops every thread: one of 5,000 objects for a millisecond, one of 50,000 that survived for about 10.
_GC_THRESHOLDS = (5_000, 10, 2_500)
# Of the files that the system lets a process open, what is kept for others than connections: a quarter, within these.
_MIN_KEPT, _MAX_KEPT = 64, 1024


def _open_keys(path: Path, accept_log_damage: bool) -> KeyStore:
    if accept_log_damage or log_damage.is_accepting(path):
        log_damage.accept_log_damage(path)
    log_damage.refuse_log_damage(path)
    return KeyStore(path)


class Server:
    """The server of one data directory."""

    def __init__(self, config: Config, explicit: Collection[str] = (), *, accept_log_damage: bool = False) -> None:
        self._accept_log_damage = accept_log_damage
        self._limit_bytes = memory.limit_bytes(config.memory)
        if self._limit_bytes is not None:
            config = tune(self._limit_bytes // MiB, config, explicit)
        self._config = config
        data_dir = Path(config.storage.data_dir)
        make_directory(data_dir, config.storage.directory_permissions)
        self._keys = _open_keys(data_dir / "keys.db", accept_log_damage)
        refuse_open_bind(config, self._keys)
        self._certificate = open_certificate(config.server)
        self._authenticator = Authenticator(config.server, self._keys)
        self._server: HttpServer | None = None

    async def run(self, ready: Callable[[str], None] | None = None) -> None:
        """Serve until a signal arrives; calls ``ready`` with the address."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._keys.close)
            engine = await Engine.open(self._config, accept_log_damage=self._accept_log_damage)
            stack.push_async_callback(engine.close)
            system = System.open(
                writer=engine.writer, log=engine.log, connect=engine.connect, notes=self._config.system.registry_log
            )
            stack.push_async_callback(system.close)
            subscriptions = None
            if self._config.subscriptions.enabled:
                subscriptions = await self._subscribe(engine)
                stack.push_async_callback(subscriptions.close)
            await self._serve(engine, system, subscriptions, ready)

    async def _subscribe(self, engine: Engine) -> Subscriptions:
        """Open the subscriptions, whose webhooks end with their keys."""
        config, is_local = self._config.subscriptions, is_loopback(self._config.server.host)
        opened = await Subscriptions.open(
            log=engine.log,
            clock=engine.clock,
            apply=engine.apply,
            webhook_timeout_s=engine.config.subscriptions.webhook_timeout_s,
            limits=SubscriptionLimits(per_key=config.max_per_key, per_prefix=config.max_per_prefix),
            webhooks=Webhooks(local=LocalTargets(is_local or config.local_webhooks, config.local_webhooks)),
            keys=self._keys.living(),
        )
        self._authenticator.on_change.append(opened.set_valid_keys)
        return opened

    async def _serve(
        self,
        engine: Engine,
        system: System,
        subscriptions: Subscriptions | None,
        ready: Callable[[str], None] | None,
    ) -> None:
        gates = engine.gates
        monitor = MemoryMonitor(gates, limit_bytes=self._limit_bytes, caches=engine.account)
        watchdog = StallWatchdog()
        readiness, metrics = Readiness(engine), Metrics(engine, gates, monitor, watchdog)
        resources = make_resources(engine, gates, monitor, readiness, metrics, subscriptions)
        front, protocol = self.build(engine, gates, resources)
        gc.collect()
        gc.freeze()  # what is here now stays, so the collector need not look at it again
        listener = _listen(self._config.server.host, self._config.server.port)
        self._server = self._http_server(front, protocol, lambda: _end_waits(readiness, engine))
        background = [self._enforce_timeouts(engine), self._announce(engine, readiness, ready)]
        if self._config.system.registry_log:
            system.follow_keys(Path(self._config.storage.data_dir) / "keys.db")
        if (interval_s := self._config.system.metrics_interval_s) > 0:
            background.append(MetricsStream(system, metrics.collect, engine.clock).run(interval_s))
        if (interval_s := self._config.system.live_interval_s) > 0:
            background.append(LiveMetrics(system.lived, engine.touches, engine.clock).run(interval_s))
        if self._certificate is not None:
            background.append(self._certificate.watch())
        tasks = [asyncio.create_task(coroutine) for coroutine in background]
        monitor.start()
        watchdog.start()
        try:
            await self._server.serve(sockets=[listener])
        finally:
            watchdog.stop()
            for task in tasks:
                task.cancel()
            await monitor.stop()

    def build(self, engine: Engine, gates: Gates, resources: Sequence[Any]) -> tuple[AsgiApplication, type[Connection]]:
        """The two ways in: the ASGI application, and the connection that answers without it."""
        config, timeout_s = self._config, self._config.server.resolver_timeout_s
        request_log = RequestLog(engine.counters)
        dispatcher = Dispatcher(self._authenticator, engine, hot_verbs(resources), gates.read, hot_routes())
        engine.account.add("arriving_bodies", lambda: dispatcher.arrivals.held)
        engine.account.add("unsent_answers", lambda: dispatcher.unsent.held)
        bridge = DispatcherApplication(
            dispatcher, gates.read, request_log, config.limits.body_bytes, timeout_s=timeout_s
        )
        front = AsgiApplication(
            starlette_routes(resources),
            bridge,
            self._authenticator,
            request_log,
            engine.writer.damage,
            engine.computing,
            timeout_s=timeout_s,
            access=Access(ROUTES),
        )
        settings = {
            "dispatcher": dispatcher,
            "request_log": request_log,
            "server_lines": ServerLines(),
            "head_cache": RequestHeadCache(),
            "header_bytes": config.limits.header_bytes,
            "url_bytes": config.limits.url_bytes,
            "hot_body_bytes": min(HOT_BODY_BYTES, config.limits.body_bytes),
            "max_connections": _connection_limit(config.server.max_connections),
        }
        return front, type("Connection", (Connection,), settings)

    def _http_server(
        self, front: AsgiApplication, protocol: type[Connection], on_shutdown: Callable[[], None]
    ) -> HttpServer:
        server = self._config.server
        return HttpServer(
            front,
            protocol,
            tls=None if self._certificate is None else self._certificate.context,
            handshake_s=server.request_timeout_s,
            backlog=_BACKLOG,
            idle_s=server.idle_timeout_s,
            grace_s=server.shutdown_grace_s,
            on_shutdown=on_shutdown,
        )

    async def _announce(self, engine: Engine, readiness: Readiness, ready: Callable[[str], None] | None) -> None:
        assert self._server is not None
        while not self._server.started:
            await asyncio.sleep(0.01)
        readiness.serving = True
        if ready is not None:
            ready(self.address())
        threading.Thread(target=engine.warm_up, name="headrace-warm", daemon=True).start()

    def address(self) -> str:
        """The address clients use; known once the server listens."""
        assert self._server is not None
        host, port = self._server.bound_address()
        scheme = "https" if self._certificate is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def _enforce_timeouts(self, engine: Engine) -> None:
        """Time out what waits too long: operations, arriving requests, idle and stalled connections."""
        while True:
            await asyncio.sleep(_TICK_S)
            engine.writer.expire()
            self._authenticator.refresh()
            now = monotonic()
            assert self._server is not None
            for connection in self._server.connections():
                if isinstance(connection, Connection):
                    self._enforce_timeouts_of(connection, now)

    def _enforce_timeouts_of(self, connection: Connection, now: float) -> None:
        limits = self._config.server
        if connection.arriving_since_s and now - connection.arriving_since_s > limits.request_timeout_s:
            connection.time_out_request()
        elif connection.is_stalled(now, limits.write_timeout_s):
            connection.transport.abort()
        elif now - connection.last_data_s > limits.idle_timeout_s and connection.is_idle():
            connection.transport.close()


def _end_waits(readiness: Readiness, engine: Engine) -> None:
    """End the waits of parked readers before the server waits for requests in flight."""
    readiness.serving = False
    engine.tail.end()


def _listen(host: str, port: int) -> socket.socket:
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[4][:2], family=address[0], backlog=_BACKLOG)
    except OSError as reason:
        raise Unavailable(
            f"cannot listen on {host}:{port}, {_error_text(reason)}; choose another port with --port",
            reason="cannot_listen",
        ) from reason


def _error_text(reason: OSError) -> str:
    """The error text of the operating system, without the address that Python repeats."""
    return (reason.strerror or str(reason)).partition(" (while")[0].lower()


def _connection_limit(connections: int) -> int:
    """As many connections as wanted, or as many as there are files for; says so where these are fewer."""
    files = _allow_files(connections + _MAX_KEPT)
    fitting = fitting_connections(connections, files)
    if fitting < connections:
        message = "the system allows this process %d open files: at most %d connections are served, not %d"
        log.warning(message, files, fitting, connections)
    return fitting


def fitting_connections(wanted: int, files: int) -> int:
    """How many of these connections a process serves that may open so many files, and needs some for its data."""
    kept = min(max(files // 4, _MIN_KEPT), _MAX_KEPT)
    return min(wanted, max(files - kept, 1))


def _allow_files(wanted: int) -> int:
    """Raise the limit of open files towards what is wanted, as far as the system lets us; answers what it then is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < reachable:
        with contextlib.suppress(OSError, ValueError):  # some systems have a limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            return reachable
    return soft


def serve(
    config: Config,
    ready: Callable[[str], None] | None = None,
    *,
    explicit: Collection[str] = (),
    accept_log_damage: bool = False,
) -> None:
    """Run the server in this process until a signal stops it; auto-tune does not change the ``explicit`` settings."""
    configure_logging()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_GC_THRESHOLDS)
    allocators.configure()
    restrict_process()
    server = Server(config, explicit, accept_log_damage=accept_log_damage)
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
