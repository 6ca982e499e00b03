"""What the adapter relies on inside uvicorn and httptools; a release where this holds can be used.

``make test-deep`` runs this file against the newest release as well.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.server.http import uvicorn_adapter
from headrace.server.http.uvicorn_adapter import CallbackFailed, HotCycle, HttpProtocol, HttpServer, UpgradeOffered

SOURCES = Path(uvicorn_adapter.__file__).parents[1]
WAIT_S = 20.0

Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class Running:
    """A server of the adapter with an application, in this event loop."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.clients: list[asyncio.StreamWriter] = []

    async def connect(self, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.server.bound_address())
        self.clients.append(writer)
        writer.write(first)
        return reader, writer

    async def connection(self) -> HttpProtocol:
        """The server's side of the only connection."""
        await until(lambda: len(self.server.connections()) == 1)
        (made,) = self.server.connections()
        assert isinstance(made, HttpProtocol)
        return made


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(app: Application, protocol: type[HttpProtocol] = HttpProtocol) -> AsyncIterator[Running]:
    ended: list[None] = []
    server = HttpServer(
        app, protocol, tls=None, handshake_s=1, backlog=16, idle_s=60, grace_s=1, on_shutdown=lambda: ended.append(None)
    )
    from headrace.server.main import _listen

    serving = asyncio.create_task(server.serve(sockets=[_listen("127.0.0.1", 0)]))
    await until(lambda: server.started)
    made = Running(server)
    try:
        async with asyncio.timeout(WAIT_S):
            yield made
    finally:
        for client in made.clients:
            client.close()
        server.should_exit = True
        await serving
        assert ended == [None]


async def hello(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer the path, once the whole body has come."""
    more = True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        more = message["more_body"]
    await answer(send, scope["raw_path"])


async def answer(send: Any, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def get(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: h", *lines, "", ""]).encode()


async def body_of(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
    return head, await reader.readexactly(int(fields.get("content-length", "0")))


# -- names


def test_every_attribute_that_is_relied_upon_is_there() -> None:
    async def look() -> set[str]:
        async with running(hello) as server:
            reader, _ = await server.connect(get("/"))
            await body_of(reader)
            return set(vars(await server.connection()))

    assert set(HttpProtocol.__annotations__) <= asyncio.run(look())


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (HttpToolsProtocol, "__init__", ["config", "server_state", "app_state", "_loop"]),
        (HttpToolsProtocol, "connection_made", ["transport"]),
        (HttpToolsProtocol, "connection_lost", ["exc"]),
        (HttpToolsProtocol, "eof_received", []),
        (HttpToolsProtocol, "data_received", ["data"]),
        (HttpToolsProtocol, "pause_writing", []),
        (HttpToolsProtocol, "resume_writing", []),
        (HttpToolsProtocol, "shutdown", []),
        (HttpToolsProtocol, "on_message_begin", []),
        (HttpToolsProtocol, "on_url", ["url"]),
        (HttpToolsProtocol, "on_header", ["name", "value"]),
        (HttpToolsProtocol, "on_headers_complete", []),
        (HttpToolsProtocol, "on_body", ["body"]),
        (HttpToolsProtocol, "on_message_complete", []),
        (HttpToolsProtocol, "on_response_complete", []),
        (HttpToolsProtocol, "_start_asgi_task", ["cycle", "app"]),
        (HttpToolsProtocol, "_unset_keepalive_if_required", []),
        (uvicorn.Server, "__init__", ["config"]),
        (uvicorn.Server, "startup", ["sockets"]),
        (uvicorn.Server, "serve", ["sockets"]),
        (uvicorn.Server, "shutdown", ["sockets"]),
    ],
)
def test_every_method_that_is_called_or_replaced_takes_what_it_took(
    owner: type, name: str, parameters: list[str]
) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters)[1:] == parameters


def test_a_request_of_ours_has_every_attribute_that_uvicorn_reads_of_the_running_one() -> None:
    source = inspect.getsource(HttpToolsProtocol)
    read = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "cycle"
    }
    # A body is read only of requests that ASGI answers.
    assert read - {"body", "more_body"} <= set(vars(HotCycle()))
    assert set(vars(HotCycle())) <= set(inspect.getsource(RequestResponseCycle.__init__).replace("self.", " ").split())


def test_modules_use_only_listed_attributes_of_uvicorn() -> None:
    """Whoever needs another attribute of uvicorn's lists it in the adapter, and states here what it promises."""
    inherited = set(dir(HttpToolsProtocol)) | _assigned(HttpToolsProtocol)
    ours = set(HttpProtocol.__annotations__) | set(vars(HttpProtocol))
    protocol = {name for name in dir(asyncio.Protocol) if not name.startswith("__")} | {"__init__"}
    callbacks = {name for name in inherited if name.startswith("on_")}
    for module in ("http/connection.py",):
        tree = ast.parse((SOURCES / module).read_text())
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        surplus = (used | defined) & inherited - ours - protocol - callbacks - {"shutdown"}
        assert not surplus, f"{module} uses {surplus} of uvicorn, which the adapter does not list"


def test_no_other_module_of_the_server_uses_a_private_name_of_a_library() -> None:
    """Of asyncio, Starlette, uvloop and every other library alike: what begins with _ is ours, or in the adapter."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCES.rglob("*.py")}
    ours = {
        name
        for tree in trees.values()
        for node in ast.walk(tree)
        for name in (
            [node.name] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else [node.attr] if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            else [node.target.id] if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            else [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else []
        )
    }  # fmt: skip
    for path, tree in trees.items():
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        private = {name for name in used if name.startswith("_") and not name.startswith("__")}
        private -= {"_replace", "_asdict"}  # these of named tuples are public
        allowed = {"_captured_signals", "_unset_keepalive_if_required", "_start_asgi_task"}
        assert private - ours <= (allowed if path.name == "uvicorn_adapter.py" else set()), path.name


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):  # super()
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "super", "connection")


def _assigned(owner: type) -> set[str]:
    tree = ast.parse(inspect.getsource(owner))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
    }


# -- requests that ASGI answers


def test_a_request_reaches_the_application_with_its_address_and_its_headers() -> None:
    seen: list[dict[str, Any]] = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen.append(scope)
        await hello(scope, receive, send)

    async def ask() -> bytes:
        async with running(app) as server:
            reader, _ = await server.connect(get("/a%20b?x=1", "X-Mixed: Value"))
            return (await body_of(reader))[1]

    assert asyncio.run(ask()) == b"/a%20b"
    (scope,) = seen
    assert scope["method"] == "GET"
    assert scope["path"] == "/a b"
    assert scope["raw_path"] == b"/a%20b"
    assert scope["query_string"] == b"x=1"
    assert scope["headers"] == [(b"host", b"h"), (b"x-mixed", b"Value")]
    assert scope["type"] == "http"
    assert scope["scheme"] == "http"
    assert scope["http_version"] == "1.1"
    assert scope["state"] == {}


class Gathering(HttpProtocol):
    """Decides after the headers who answers, as the hot path does."""

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        self.start_asgi()


def test_a_request_whose_headers_were_gathered_by_us_can_be_handed_to_asgi() -> None:
    async def ask() -> list[bytes]:
        async with running(hello, Gathering) as server:
            reader, writer = await server.connect(get("/one"))
            first = (await body_of(reader))[1]
            writer.write(b"POST /two HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
            proceed = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"abc")
            return [first, proceed, (await body_of(reader))[1]]

    assert asyncio.run(ask()) == [b"/one", b"HTTP/1.1 100 Continue\r\n\r\n", b"/two"]


def test_a_second_request_waits_in_the_pipeline_until_the_first_is_answered() -> None:
    go = asyncio.Event()
    begun: list[bytes] = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        begun.append(scope["raw_path"])
        await go.wait()
        await answer(send, scope["raw_path"])

    async def ask() -> None:
        async with running(app) as server:
            reader, _ = await server.connect(get("/1") + get("/2") + get("/3"))
            connection = await server.connection()
            await until(lambda: len(connection.pipeline) == 2)
            assert begun == [b"/1"]
            assert connection.running is not None
            assert connection.asgi_scope()["raw_path"] == b"/1"
            assert connection.cycle.scope["raw_path"] == b"/3"
            assert connection.pipeline[0][0] is connection.cycle, "the newest is at the left"
            assert connection.flow.read_paused
            assert not connection.is_free()
            connection.abandon_newest()
            go.set()
            assert [(await body_of(reader))[1] for _ in range(2)] == [b"/1", b"/2"]
            await until(connection.is_free)
            assert begun == [b"/1", b"/2"]
            assert not connection.flow.read_paused

    asyncio.run(ask())


def test_the_application_learns_that_the_client_is_gone() -> None:
    seen: list[str] = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        seen.append((await receive())["type"])

    async def ask(leave: Callable[[HttpProtocol, asyncio.StreamWriter], None]) -> None:
        async with running(app) as server:
            _, writer = await server.connect(get("/"))
            connection = await server.connection()
            await until(lambda: not connection.is_free())
            leave(connection, writer)
            await until(lambda: len(seen) > 0)

    asyncio.run(ask(lambda connection, writer: writer.transport.abort()))
    seen.clear()
    asyncio.run(ask(lambda connection, writer: connection.abandon_newest()))
    assert seen == ["http.disconnect"]


# -- requests that we answer


class Hot(HttpProtocol):
    """Answers paths that begin with /hot itself, when it is told to."""

    def on_headers_complete(self) -> None:
        if self.url.startswith(b"/hot"):
            self.cycle = self.running = cycle = HotCycle()
            cycle.response_complete = False
        else:
            HttpToolsProtocol.on_headers_complete(self)

    def on_message_complete(self) -> None:
        if not isinstance(self.cycle, HotCycle):
            super().on_message_complete()

    def respond(self) -> None:
        assert isinstance(self.running, HotCycle)
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhot")
        self.running.response_complete = True
        self.on_response_complete()


def test_a_request_behind_one_of_ours_waits_for_our_answer() -> None:
    async def ask() -> list[bytes]:
        async with running(hello, Hot) as server:
            reader, _ = await server.connect(get("/hot") + get("/cold"))
            connection = await server.connection()
            assert isinstance(connection, Hot)
            await until(lambda: len(connection.pipeline) == 1)
            assert connection.asgi_scope() == {}
            connection.respond()
            return [(await body_of(reader))[1] for _ in range(2)]

    assert asyncio.run(ask()) == [b"hot", b"/cold"]


def test_a_client_that_leaves_our_request_wakes_it() -> None:
    async def ask() -> bool:
        async with running(hello, Hot) as server:
            _, writer = await server.connect(get("/hot"))
            connection = await server.connection()
            await until(lambda: isinstance(connection.running, HotCycle))
            cycle = connection.running
            assert cycle is not None
            writer.transport.abort()
            await until(lambda: cycle.disconnected)
            return cycle.message_event.is_set() and connection not in server.server.connections()

    assert asyncio.run(ask())


def test_an_idle_connection_has_a_timer_that_can_be_stopped() -> None:
    async def ask() -> None:
        async with running(hello, Hot) as server:
            reader, _ = await server.connect(get("/hot"))
            connection = await server.connection()
            assert isinstance(connection, Hot)
            await until(lambda: connection.running is not None)
            assert connection.timeout_keep_alive_task is None
            connection.respond()
            await body_of(reader)
            timer = connection.timeout_keep_alive_task
            assert timer is not None
            connection.stop_keep_alive_timer()
            assert timer.cancelled() and connection.timeout_keep_alive_task is None

    asyncio.run(ask())


def test_flow_says_whether_the_client_takes_what_is_written() -> None:
    async def ask() -> list[bool]:
        async with running(hello) as server:
            await server.connect()
            flow = (await server.connection()).flow
            states = [flow.write_paused]
            for change in (flow.pause_writing, flow.resume_writing):
                change()
                states.append(flow.write_paused)
            return states

    assert asyncio.run(ask()) == [False, True, False]


# -- the parser


class Refusing(HttpProtocol):
    """Keeps what the parser raises."""

    raised: list[BaseException]

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (CallbackFailed, UpgradeOffered) as reason:
            self.raised.append(reason)
            self.transport.close()

    def on_url(self, url: bytes) -> None:
        if url == b"/refused":
            raise ValueError("no")
        super().on_url(url)


@pytest.mark.parametrize(
    "request_bytes", [get("/refused"), get("/", "Connection: upgrade", "Upgrade: other") + b"rest"]
)
def test_the_parser_says_why_it_stops(request_bytes: bytes) -> None:
    raised: list[BaseException] = []

    async def ask() -> None:
        protocol = type("Protocol", (Refusing,), {"raised": raised})
        async with running(hello, protocol) as server:
            await server.connect(request_bytes)
            await until(lambda: len(raised) > 0)

    asyncio.run(ask())
    (reason,) = raised
    if isinstance(reason, UpgradeOffered):
        assert request_bytes[reason.args[0] :] == b"rest"
    else:
        assert isinstance(reason, CallbackFailed)
        assert isinstance(reason.__context__ or reason.__cause__, ValueError)


# -- the server


def test_every_answer_has_a_date_that_is_renewed_as_another_list() -> None:
    async def ask() -> None:
        async with running(hello) as server:
            state = server.server.server_state
            first = state.default_headers
            assert [name for name, _ in first] == [b"date"]
            await until(lambda: state.default_headers is not first)
            reader, _ = await server.connect(get("/"))
            head, _ = await body_of(reader)
            assert "date: " in head and "server: " not in head

    asyncio.run(ask())


def test_a_request_in_flight_is_answered_at_shutdown() -> None:
    async def ask() -> str:
        go = asyncio.Event()

        async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await go.wait()
            await answer(send, b"")

        async with running(app) as server:
            reader, _ = await server.connect(get("/"))
            connection = await server.connection()
            await until(lambda: not connection.is_free())
            server.server.should_exit = True
            await until(lambda: not connection.cycle.keep_alive)
            go.set()
            return (await body_of(reader))[0]

    assert "connection: close" in asyncio.run(ask())


def test_a_signal_ends_the_server_and_is_not_raised_again() -> None:
    """It would end the process before its data is closed."""

    async def ask() -> None:
        async with running(hello) as server:
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: server.server.should_exit)

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(ask())
    assert signal.getsignal(signal.SIGTERM) is before
