"""From a request to the verb that answers it: one place for admission, routing and failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from headrace.engine.assembly import Engine
from headrace.engine.log.catalog import Catalog
from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, CorruptData, HeadraceError, MethodNotAllowed, NotFound, Overloaded, TimedOut
from headrace.server.http import parameters, target
from headrace.server.http.auth import Authenticator, Principal
from headrace.server.http.background import BackgroundRequests, cancel_when_gone, in_thread, partial_answer_s
from headrace.server.http.byte_budgets import BodyBudget, UnsentBudget
from headrace.server.http.exchange import Exchange, Reply, unexpected_failure
from headrace.server.http.metered_exchange import with_quota
from headrace.server.http.request import Request, RequestHead, ResolvedRoute
from headrace.server.http.route import Route
from headrace.server.http.target import Target

if TYPE_CHECKING:
    from headrace.server.http.exchange import Exchange


Verb = Callable[[Request], None]

_TARGETS = 16_384
_TARGET_BYTES = 256
#: Verbs on a stream that another has made.
_FOLLOWING = ("GET", "HEAD", "POST")
_ONCE = (b"stream-", b"producer-", b"content-", b"if-", b"host", b"authorization", b"origin")


class Dispatcher:
    """Answers hot requests, which are those on streams, pushes, gets and observations, whichever way they came in."""

    def __init__(
        self,
        authenticator: Authenticator,
        engine: Engine,
        verbs: Mapping[tuple[str, str], Verb],
        gate: Gate,
        declared: Mapping[tuple[str, str], Route] | None = None,
    ) -> None:
        self.authenticator = authenticator
        self._gate = gate
        self.damage = engine.writer.damage
        self._background = BackgroundRequests(self.damage)
        self._time_s = engine.config.server.resolver_timeout_s
        self.arrivals = BodyBudget(engine.config.limits.arriving_bytes, engine.gates.shortage)
        self.slices = engine.slices
        self.unsent = UnsentBudget(engine.config.limits.unsent_bytes)
        self._targets: dict[bytes, Target] = {}
        self._verbs = verbs
        self._declared = declared or {}
        self._held = engine.log.catalog.held
        self._find = engine.log.find
        self._lookups = StreamLookups(engine.log.catalog, self.handle)

    def handle(
        self, head: RequestHead, body: bytes, exchange: Exchange, until: float = 0.0, looked_up: bool = False
    ) -> None:
        """Answer through the exchange, now or later; never raises. ``until`` is the deadline of a request that runs."""
        try:
            route = head.route
            if route is None or route.generation != self.authenticator.generation:
                route = head.route = self._route(head)
            if self.unsent.held > self.unsent.limit and head.method == "GET":
                raise Overloaded("slow readers hold too much unsent data", retry_after=2)
            if route.follows and not looked_up and (name := route.target.name) not in self._held:
                self._lookups.add(name, (head, body, exchange, until, True))
                return
            route.verb(Request(head, route, body, exchange))
        except HeadraceError as refusal:
            exchange.reply(Reply.failure(refusal))
        except NeedsFetch as cold:
            until = until or monotonic() + self._time_s
            self._background.begin(exchange, self._load_and_retry(cold, head, body, exchange, until))
        except Exception as reason:
            exchange.reply(Reply.failure(unexpected_failure(self.damage, reason, exchange.request_id)))

    async def _load_and_retry(
        self, cold: NeedsFetch, head: RequestHead, body: bytes, exchange: Exchange, until: float
    ) -> None:
        """Load in a thread what is not in memory, then answer; what is loaded too late serves the next request."""
        finding = self._background.spawn(self._run_in_thread(cold.work))
        if cold.deadline is not None:
            until = monotonic() + partial_answer_s(self._time_s)
            cancel_when_gone(exchange, cold.deadline, finding)
        await asyncio.wait({finding}, timeout=until - monotonic())
        if not finding.done():
            finding.add_done_callback(_retrieve)
            if cold.deadline is not None:
                cold.deadline.cancel()
            raise TimedOut("request timed out")
        try:
            finding.result()
        except CorruptData:
            assert head.route is not None
            self._find(head.route.target.name)  # objects of a stream that was deleted meanwhile are not missed
            raise
        self.handle(head, body, exchange, until)

    async def _run_in_thread(self, work: Callable[[], None]) -> None:
        async with self._gate:
            await in_thread(work)

    def _route(self, head: RequestHead) -> ResolvedRoute:
        principal = self.authenticator.admit(head.fields)
        if principal.quota is None:
            return self._find_route(head, principal)
        try:
            route = self._find_route(head, principal)
        except HeadraceError:
            principal.quota.take()
            raise
        return msgspec.structs.replace(route, verb=with_quota(route.verb, principal.quota))

    def _find_route(self, head: RequestHead, principal: Principal) -> ResolvedRoute:
        address = self._targets.get(head.path)
        if address is None:
            address = self._target(head.path)
        verb = self._verbs.get((head.method, address.resource))
        if verb is None or (address.key is not None and head.method != "GET"):
            raise self._no_verb(head.method, address)
        refuse_repeated(head.headers, head.fields)
        if not address.resource.startswith("/"):
            principal.enter(address.name)
        declared = self._declared.get((head.method, address.resource))
        query = parameters.query(head.query, () if declared is None else declared.lists)
        if declared is not None:
            declared.refuse_unknown_parameters(query)
        follows = not address.resource and head.method in _FOLLOWING
        return ResolvedRoute(verb, address, query, principal, self.authenticator.generation, follows)

    def _target(self, path: bytes) -> Target:
        address = target.parse(path)
        if not address.name:
            raise BadRequest("missing stream name", field="name")
        if len(self._targets) >= _TARGETS:
            self._targets.clear()
        if len(path) <= _TARGET_BYTES:
            self._targets[path] = address
        return address

    def _no_verb(self, method: str, address: Target) -> HeadraceError:
        allowed = sorted(verb for verb, resource in self._verbs if resource == address.resource)
        if address.key is not None:
            allowed = ["GET"]
        if not allowed:
            return NotFound(f"there is no {address.resource} here", resource=address.resource)
        allow = ", ".join([*allowed, "OPTIONS"])
        return MethodNotAllowed(f"{method} is not among {allow}", allow=allow)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task that nothing waits for, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def refuse_repeated(raw_headers: list[tuple[bytes, bytes]], fields: dict[bytes, bytes]) -> None:
    """Refuse repeated headers that may occur only once; ``fields`` are the headers by name."""
    if len(fields) == len(raw_headers):
        return
    seen: set[bytes] = set()
    for name, _ in raw_headers:
        if name in seen and name.startswith(_ONCE):
            field = name.decode("latin-1")
            raise BadRequest(f"{field} is given more than once", field=field)
        seen.add(name)


#: A request: its head and its body, the way back, when its time is over, and that its stream was looked up.
WaitingRequest = tuple[RequestHead, bytes, "Exchange", float, bool]


class StreamLookups:
    """Requests whose streams are looked up together, at the end of this turn of the event loop."""

    def __init__(self, catalog: Catalog, go_on: Callable[[RequestHead, bytes, Exchange, float, bool], None]) -> None:
        self._catalog = catalog
        self._go_on = go_on
        self._names: set[str] = set()
        self._waiting: list[WaitingRequest] = []

    def add(self, name: str, request: WaitingRequest) -> None:
        """Handle a request once its stream was looked up."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._fetch_streams)
        self._names.add(name)
        self._waiting.append(request)

    def _fetch_streams(self) -> None:
        names, waiting = self._names, self._waiting
        self._names, self._waiting = set(), []
        try:
            self._catalog.fetch(names)
        finally:  # whatever there was with one of them, each gets to know what became of its own
            for request in waiting:
                self._go_on(*request)
