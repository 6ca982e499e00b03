"""The feature registry over HTTP: register, read, history, roll back."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.engine.assembly import Engine
from headrace.engine.features.features import refusal
from headrace.engine.features.proposals import FeatureChange
from headrace.engine.features.registry import DEFAULT_APP, EVENTS, Current, load
from headrace.errors import BadRequest, Conflict, ResetDisabled
from headrace.schema.descriptor import generated
from headrace.schema.descriptor.nodes import Event, Node, Table
from headrace.schema.descriptor.registration import Registration, RegistrationResponse, read_registration
from headrace.schema.problem import RequestProblem
from headrace.server.http import parameters
from headrace.server.http.auth import Principal
from headrace.server.http.parameters import refuse_unknown_parameters
from headrace.server.http.starlette_json import Body, json_response, read_json, require_json
from headrace.storage.journals import FeatureRegistryRow
from headrace.types import rfc3339

Endpoint = Callable[[Request], Awaitable[Response]]
_Version = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]

#: What names of apps look like.
APP = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"
_BODY_BYTES = 4 * 1024 * 1024
_PAGE, MOST_VERSIONS = 100, 1000


class RollbackBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which version to go back to, of which app, and on which terms."""

    version: _Version
    app: Annotated[str, msgspec.Meta(pattern=APP)] | None = None
    force: bool = False
    dry_run: bool = False
    backfill: bool | None = None
    expected_version: _Version | None = None
    cascade: bool = False


def routes(engine: Engine) -> list[Route]:
    """Every route of this file."""
    api = RegistrationRoutes(engine)
    return [
        Route("/v1/register", api.register, methods=["POST"]),
        Route("/v1/registry", api.registry, methods=["GET"]),
        Route("/v1/registry/history", api.history, methods=["GET"]),
        Route("/v1/registry/rollback", api.rollback, methods=["POST"]),
        Route("/v1/ping", api.ping, methods=["POST"]),
        Route("/v1/reset", api.reset, methods=["POST"]),
    ]


class RegistrationRoutes:
    """One method per verb: reads the request, asks the features, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._features, self._computing = engine.features, engine.computing
        self._catalog = engine.log.catalog
        self._test_mode = engine.config.features.test_mode

    async def ping(self, request: Request) -> Response:
        """POST ``/v1/ping``: which server answers, and which version its registry has."""
        refuse_unknown_parameters(request.query_params)
        document = {"server_version": version("headrace"), "registry_version": self._features.current.version}
        return json_response(document)

    async def reset(self, request: Request) -> Response:
        """POST ``/v1/reset``: remove every node of every app, on a server for tests."""
        refuse_unknown_parameters(request.query_params)
        request.state.principal.require("admin")
        if not self._test_mode:
            raise ResetDisabled("this server keeps what it has; features.test_mode allows a reset")
        everything = FeatureChange(nodes={}, owners={}, apps=None, force=True, cascade=True)
        return await self._carry_out(request, lambda who: self._features.register(everything, who))

    async def register(self, request: Request) -> Response:
        """POST ``/v1/register``: make the nodes of an app what the payload says."""
        refuse_unknown_parameters(request.query_params)
        _require_some(request.state.principal)
        current = self._features.current
        try:
            document = await _read(request, Any)
            registration = await self._computing.run(0, read_registration, document)
        except BadRequest as reason:
            return self._invalid(reason)
        # Forced, an empty registration removes everything of an app; repeated, it has nothing left to do.
        if (
            isinstance(registration, Registration)
            and not (registration.nodes or registration.force)
            and registration.app not in current.apps.values()
        ):
            message = f"there is nothing to register, and the app {registration.app!r} has nothing to remove"
            registration = [RequestProblem("schema_invalid", "descriptors", message)]
        if not isinstance(registration, Registration):
            return _answer(RegistrationResponse("invalid", current.version, errors=registration, refused=True))
        change = FeatureChange.of(registration)
        _require(request.state.principal, current, change)
        if taken := self._hidden_conflicts(request.state.principal, current, change):
            return _answer(RegistrationResponse("conflict", current.version, errors=taken, refused=not change.dry_run))
        return await self._carry_out(request, lambda who: self._features.register(change, who))

    async def rollback(self, request: Request) -> Response:
        """POST ``/v1/registry/rollback``: what an earlier version was, as a change like any other."""
        refuse_unknown_parameters(request.query_params)
        request.state.principal.require("admin")
        try:
            body = await _read(request, RollbackBody)
        except BadRequest as reason:
            return self._invalid(reason)
        change = FeatureChange(
            nodes={},
            owners={},
            apps=None if body.app is None else frozenset([body.app]),
            app=body.app or DEFAULT_APP,
            force=body.force,
            dry_run=body.dry_run,
            backfill=body.backfill,
            expected_version=body.expected_version,
            cascade=body.cascade,
        )
        return await self._carry_out(request, lambda who: self._features.rollback(body.version, change, who))

    def _hidden_conflicts(self, principal: Principal, current: Current, change: FeatureChange) -> list[RequestProblem]:
        """Problems with names in use outside the prefix of the key; nothing else of their owners is disclosed."""
        return [
            RequestProblem("owned_by", f"descriptors[{index}].name", f"the name {name!r} is taken: choose another")
            for index, name in enumerate(change.nodes)
            if self._is_hidden_conflict(principal, current, change, name)
        ]

    def _is_hidden_conflict(self, principal: Principal, current: Current, change: FeatureChange, name: str) -> bool:
        owner = current.apps.get(name)
        if owner is not None:
            return not change.covers(owner) and not principal.covers(EVENTS + current.root_of(name))
        has_stream = not isinstance(change.nodes[name], Table)
        return has_stream and not principal.covers(EVENTS + name) and self._catalog.find(EVENTS + name) is not None

    async def _carry_out(self, request: Request, make: Callable[[str], Awaitable[RegistrationResponse]]) -> Response:
        try:
            return _answer(await make(request.state.principal.user_id))
        except Conflict as reason:
            return _answer(refusal(reason, self._features.current.version))
        except BadRequest as reason:
            return self._invalid(reason)

    def _invalid(self, reason: BadRequest) -> Response:
        problem = RequestProblem("schema_invalid", str(reason.facts.get("field", "")), reason.message)
        return _answer(RegistrationResponse("invalid", self._features.current.version, errors=[problem], refused=True))

    async def registry(self, request: Request) -> Response:
        """GET ``/v1/registry``: every node, as it could be registered again."""
        refuse_unknown_parameters(request.query_params, "app")
        principal: Principal = request.state.principal
        principal.require("read")
        current, app = self._features.current, request.query_params.get("app")
        if app is not None and re.search(APP, app) is None:
            raise BadRequest(f"{app!r} is no name of an app", field="app")
        nodes = {
            name: node
            for name, node in current.nodes.items()
            if app in (None, current.apps[name]) and principal.covers(EVENTS + current.root_of(name))
        }
        return json_response(
            {
                "registry_version": current.version,
                "descriptors": [generated.write_node(node) for node in nodes.values()],
                "apps": {name: current.apps[name] for name in nodes},
                "features": {
                    table: {name: {"life": life.id, "birth": life.birth} for name, life in versions.items()}
                    for table, versions in current.feature_versions.items()
                    if table in nodes
                },
            }
        )

    async def history(self, request: Request) -> Response:
        """GET ``/v1/registry/history``: who changed what, and when."""
        refuse_unknown_parameters(request.query_params, "after", "limit")
        request.state.principal.require("read", EVENTS)
        after = parameters.whole_number(request.query_params.get("after", "0"), "after")
        limit = parameters.whole_number(request.query_params.get("limit", str(_PAGE)), "limit")
        if after >= 2**53:
            raise BadRequest("after is a version", field="after")
        if not 1 <= limit <= MOST_VERSIONS:
            raise BadRequest(f"limit lies between 1 and {MOST_VERSIONS}", field="limit")
        rows = self._features.history(after, limit)
        return json_response(
            {"registry_version": self._features.current.version, "versions": [_version(row) for row in rows]}
        )


def _version(row: FeatureRegistryRow) -> dict[str, Any]:
    plan = load(row).plan
    return {
        "registry_version": row.version,
        "at": rfc3339(row.at_us),
        "who": row.who,
        "app": row.app,
        "action": plan.action,
        "force": plan.force,
        "added": plan.added,
        "removed": plan.removed,
        "changed": plan.changed,
        "plan": {"features": plan.features, "streams": plan.streams},
    }


def _answer(envelope: RegistrationResponse) -> Response:
    return json_response(envelope.body(), status=envelope.http_status)


def _require(principal: Principal, current: Current, change: FeatureChange) -> None:
    """Refuse callers who may not write to every event source concerned; force takes an operator."""
    if change.force:
        principal.require("admin")
    for name in _sources(current, change):
        principal.require("write", EVENTS + name)


def _require_some(principal: Principal) -> None:
    principal.require("write", principal.prefix or None)


def _sources(current: Current, change: FeatureChange) -> set[str]:
    """The event sources that a change makes, changes, removes or builds on."""
    before = {name: node for name, node in current.nodes.items() if change.covers(current.apps[name])}
    nodes: dict[str, Node] = {**current.nodes, **change.nodes}
    sources: set[str] = set()
    for name in {*before, *change.nodes}:
        seen: set[str] = set()
        root, node = name, nodes.get(name)
        while node is not None and not isinstance(node, Event) and node.name not in seen:
            seen.add(node.name)
            root = node.upstream
            node = nodes.get(root)
        if node is None or isinstance(node, Event):
            sources.add(root)  # one that is not there, too: whether it is, is not everybody's business
    return sources


async def _read(request: Request, kind: type[Body]) -> Body:
    require_json(request)
    return await read_json(request, kind, limit=_BODY_BYTES)
