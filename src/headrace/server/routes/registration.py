"""The feature registry over HTTP: register, read, history, roll back."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType, field
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.assembly import Engine
from headrace.engine.features.features import refusal
from headrace.engine.features.proposals import FeatureChange
from headrace.engine.features.registry import DEFAULT_APP, EVENTS, Current, load, stream_of
from headrace.errors import BadRequest, Conflict, ResetDisabled
from headrace.schema.descriptor import generated
from headrace.schema.descriptor.nodes import Event, Node, Table
from headrace.schema.descriptor.registration import Registration, RegistrationResponse, read_registration
from headrace.schema.descriptor.validate import resolve_table, result_type
from headrace.schema.problem import RequestProblem
from headrace.server.http import parameters
from headrace.server.http.auth import Principal
from headrace.server.http.openapi import Error
from headrace.server.http.route import ADMIN, ANY_KEY, READ, Answer, Body, Scope, in_query, one_of, route
from headrace.server.http.starlette_json import json_response, read_json
from headrace.server.http.wire import Counter, Object, When, fill
from headrace.server.routes.push import NodeName
from headrace.server.routes.stream_headers import BAD_BODY
from headrace.storage.journals import FeatureRegistryRow
from headrace.types import rfc3339

#: What names of apps look like.
APP = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"
_BODY_BYTES = 4 * 1024 * 1024
_PAGE, _MAX_VERSIONS = 100, 1000


AppName = Annotated[str, Meta(pattern=APP)]
_NamedApp = Annotated[str, Meta(extra_json_schema={"pattern": APP})]


class RegistrationProblem(Struct):
    """What is wrong with a registration, and where in it."""

    code: str
    path: str
    message: str


class FeaturePlan(Struct):
    """What happens to features and streams; what a forced change is refused for without force."""

    features: Sequence[Object]
    streams: Sequence[Object]
    refusals: list[RegistrationProblem] | UnsetType = UNSET


class ChangedNode(Struct):
    """A node that changes."""

    name: str


class RegistrationAnswer(Struct, kw_only=True):
    """What a registration changed, or would change."""

    status: Literal["ok", "conflict", "invalid"]
    registry_version: Counter
    added: list[str]
    removed: list[str]
    changed: list[ChangedNode]
    plan: FeaturePlan


class RegistrationError(Struct):
    """Why a registration is refused: every reason at once."""

    code: str
    message: str
    errors: list[RegistrationProblem]


class RefusedRegistration(Struct, kw_only=True):
    """A registration that is refused, and what it would change."""

    status: Literal["conflict", "invalid"]
    registry_version: Counter
    added: list[str]
    removed: list[str]
    changed: list[ChangedNode]
    plan: FeaturePlan
    error: RegistrationError


class RegistrationBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The nodes of an app; ``schema.descriptor`` reads them, and names everything that is wrong with them."""

    descriptors: list[Object] | UnsetType = UNSET
    nodes: list[Object] | UnsetType = UNSET
    app: _NamedApp | UnsetType = UNSET
    force: bool = False
    dry_run: bool = False
    backfill: bool | None = None
    expected_version: Counter | None = None
    cascade: bool = False


class NodeDescriptor(Struct):
    """A node as it could be registered again; what else it has depends on its kind."""

    kind: Literal["event", "derivation", "table"]
    name: NodeName


class FeatureStart(Struct):
    """The version of a feature, and the sequence number of the first event that it includes."""

    version_id: str = field(name="life")
    start_seq: Counter = field(name="birth")


class TableTypes(Struct):
    """The types of a table: `str`, `i64`, `f64`, `bool`, `bytes`, `datetime`, and lists, maps and structs of them."""

    key: dict[str, str]
    features: dict[str, str]


class FeatureRegistryAnswer(Struct, kw_only=True):
    """What is registered."""

    registry_version: Counter
    descriptors: list[NodeDescriptor]
    apps: dict[str, _NamedApp]
    features: dict[str, dict[str, FeatureStart]]
    types: dict[str, TableTypes]


class FeatureVersionAnswer(Struct, kw_only=True):
    """A version of the registry: who changed what, and when."""

    registry_version: Counter
    at: When
    who: str
    app: str
    action: Annotated[str, Meta(extra_json_schema={"enum": ["register", "rollback", "recovery"]})]
    force: bool
    added: Sequence[str]
    removed: Sequence[str]
    changed: Sequence[ChangedNode]
    plan: FeaturePlan


class FeatureHistoryAnswer(Struct):
    """Versions of the registry in order."""

    registry_version: Counter
    versions: list[FeatureVersionAnswer]


class PingAnswer(Struct):
    """Which server answers, and which version its registry has."""

    server_version: str
    registry_version: Counter


class RollbackBody(Struct, forbid_unknown_fields=True):
    """Which version to go back to, of which app, and on which terms."""

    version: Counter
    app: AppName | None = None
    force: bool = False
    dry_run: bool = False
    backfill: bool | None = None
    expected_version: Counter | None = None
    cascade: bool = False


_CHANGES = {
    200: Answer("what changed, or would change", RegistrationAnswer),
    400: Answer("a value is wrong; `field` says which", one_of(RefusedRegistration, Error)),
    409: Answer("the state of the thing forbids it", one_of(RefusedRegistration, Error)),
}
_RECORDED = "features_registered"


class RegistrationRoutes:
    """One method per verb: reads the request, asks the features, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._features, self._computing = engine.features, engine.computing
        self._catalog = engine.log.catalog
        self._test_mode = engine.config.features.test_mode

    @route(
        "POST",
        "/v1/ping",
        "ping",
        "Which server answers, and which version its registry has",
        ANY_KEY,
        {200: Answer("both", PingAnswer)},
    )
    async def ping(self, request: Request) -> Response:
        """POST ``/v1/ping``: which server answers, and which version its registry has."""
        return json_response(PingAnswer(version("headrace"), self._features.current.version))

    @route(
        "POST",
        "/v1/reset",
        "reset_features",
        "Remove every node of every app, on a server for tests",
        ADMIN,
        {200: Answer("what was removed", RegistrationAnswer)},
        fails=(ResetDisabled, Conflict),
        recorded_as=_RECORDED,
    )
    async def reset(self, request: Request) -> Response:
        """POST ``/v1/reset``: remove every node of every app, on a server for tests."""
        if not self._test_mode:
            raise ResetDisabled("this server keeps what it has; features.test_mode allows a reset")
        everything = FeatureChange(nodes={}, owners={}, apps=None, force=True, cascade=True)
        return await self._carry_out(request, lambda who: self._features.register(everything, who))

    @route(
        "POST",
        "/v1/register",
        "register_features",
        "[Make the nodes of an app](#features) what the payload says",
        Scope("write", "write on the event sources, admin with `force`"),
        _CHANGES,
        fails=(Conflict, *BAD_BODY),
        body=Body(RegistrationBody, _BODY_BYTES),
        recorded_as=_RECORDED,
    )
    async def register(self, request: Request) -> Response:
        """POST ``/v1/register``: make the nodes of an app what the payload says."""
        _require_some(request.state.principal)
        current = self._features.current
        try:
            document = await read_json(request, Any)
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

    @route(
        "POST",
        "/v1/registry/rollback",
        "rollback_features",
        "Change the registry back to what an earlier version was",
        ADMIN,
        _CHANGES,
        fails=(Conflict, *BAD_BODY),
        body=Body(RollbackBody, _BODY_BYTES),
        recorded_as=_RECORDED,
    )
    async def rollback(self, request: Request) -> Response:
        """POST ``/v1/registry/rollback``: what an earlier version was, as a change like any other."""
        try:
            body = await read_json(request, RollbackBody)
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
            return not change.covers(owner) and not principal.covers(current.stream_behind(name))
        node = change.nodes[name]
        has_stream = not isinstance(node, Table) and not (isinstance(node, Event) and node.stream is not None)
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

    @route(
        "GET",
        "/v1/registry",
        "get_feature_registry",
        "Every node, as it could be registered again",
        READ,
        {200: Answer("the registry", FeatureRegistryAnswer)},
        parameters=(in_query("app", _NamedApp, "nodes of this app only"),),
    )
    async def registry(self, request: Request) -> Response:
        """GET ``/v1/registry``: every node, as it could be registered again."""
        principal: Principal = request.state.principal
        principal.require("read")
        current, app = self._features.current, request.query_params.get("app")
        if app is not None and re.search(APP, app) is None:
            raise BadRequest(f"{app!r} is no name of an app", field="app")
        nodes = {
            name: node
            for name, node in current.nodes.items()
            if app in (None, current.apps[name]) and principal.covers(current.stream_behind(name))
        }
        answer = FeatureRegistryAnswer(
            registry_version=current.version,
            descriptors=[cast(NodeDescriptor, generated.write_node(node)) for node in nodes.values()],
            apps={name: current.apps[name] for name in nodes},
            features={
                table: {name: FeatureStart(version.id, version.birth) for name, version in versions.items()}
                for table, versions in current.feature_versions.items()
                if table in nodes
            },
            types={name: _table_types(current, name) for name, node in nodes.items() if isinstance(node, Table)},
        )
        return json_response(answer)

    @route(
        "GET",
        "/v1/registry/history",
        "get_feature_history",
        "Who changed what, and when",
        READ,
        {200: Answer("versions in order", FeatureHistoryAnswer)},
        parameters=(
            in_query("after", Counter, "versions after this one"),
            in_query("limit", Annotated[int, Meta(ge=1, le=_MAX_VERSIONS)], "versions at most"),
        ),
    )
    async def history(self, request: Request) -> Response:
        """GET ``/v1/registry/history``: who changed what, and when."""
        request.state.principal.require("read", EVENTS)
        after = parameters.non_negative_integer(request.query_params.get("after", "0"), "after")
        limit = parameters.non_negative_integer(request.query_params.get("limit", str(_PAGE)), "limit")
        if after >= 2**53:
            raise BadRequest("after is a version", field="after")
        if not 1 <= limit <= _MAX_VERSIONS:
            raise BadRequest(f"limit lies between 1 and {_MAX_VERSIONS}", field="limit")
        rows = self._features.history(after, limit)
        return json_response(FeatureHistoryAnswer(self._features.current.version, [_version(row) for row in rows]))


def _version(row: FeatureRegistryRow) -> FeatureVersionAnswer:
    plan = load(row).plan
    return FeatureVersionAnswer(
        registry_version=row.version,
        at=rfc3339(row.at_us),
        who=row.who,
        app=row.app,
        action=plan.action,
        force=plan.force,
        added=plan.added,
        removed=plan.removed,
        changed=cast(tuple[ChangedNode, ...], plan.changed),
        plan=FeaturePlan(plan.features, plan.streams),
    )


def _table_types(current: Current, name: str) -> TableTypes:
    resolved = resolve_table(current.nodes, name)
    features = resolved.table.features.items()
    return TableTypes(
        dict(zip(resolved.table.key, resolved.key_types, strict=True)),
        {name: result_type(feature, resolved.types) for name, feature in features},
    )


def _answer(envelope: RegistrationResponse) -> Response:
    kind = RefusedRegistration if envelope.refused else RegistrationAnswer
    return json_response(fill(kind, envelope.body()), status=envelope.http_status)


def _require(principal: Principal, current: Current, change: FeatureChange) -> None:
    """Refuse callers who may not write to every event source concerned, or not read the streams of others.

    Force takes an operator.
    """
    if change.force:
        principal.require("admin")
    for name in _sources(current, change):
        for nodes in (current.nodes, change.nodes):
            stream = stream_of(nodes, name)
            if name in nodes or name not in current.nodes:
                principal.require("write" if stream == EVENTS + name else "read", stream)


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
