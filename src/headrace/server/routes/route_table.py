"""Every route of the server, as the classes of its verbs declare them, and what dispatch is compiled from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import starlette.routing
from starlette.convertors import PathConvertor, StringConvertor, register_url_convertor

from headrace.engine.assembly import Engine
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import MemoryMonitor
from headrace.engine.subscriptions.subscriptions import Subscriptions
from headrace.server.http import openapi, target
from headrace.server.http.compression import ReplyCompressor
from headrace.server.http.dispatch import Verb
from headrace.server.http.openapi import Node
from headrace.server.http.route import Route, routes_of
from headrace.server.http.starlette_json import endpoint
from headrace.server.metrics import Metrics
from headrace.server.routes.details import DetailsRoute
from headrace.server.routes.enhancement import EnhancementRoutes
from headrace.server.routes.entities import EntityRoute
from headrace.server.routes.entity_lists import EntityListRoutes
from headrace.server.routes.entity_relations import EntityRelationRoutes
from headrace.server.routes.entity_types import EntityTypeRoutes
from headrace.server.routes.erasures import ErasureRoutes
from headrace.server.routes.feature_tables import FeatureTableRoutes
from headrace.server.routes.features import FeatureRoutes
from headrace.server.routes.index_status import IndexStatusRoute
from headrace.server.routes.observations import ObservationDecisionRoutes, ObservationRoute, SourceRoute
from headrace.server.routes.observe import Observer
from headrace.server.routes.otlp import OtlpRoutes
from headrace.server.routes.profiles import ProfileRoutes
from headrace.server.routes.push import PushRoute
from headrace.server.routes.read_plans import ReadPlanRoutes
from headrace.server.routes.reads import ReadRoute
from headrace.server.routes.registration import RegistrationRoutes
from headrace.server.routes.routing_keys import RoutingKeysRoute
from headrace.server.routes.schemas import SchemaRoutes
from headrace.server.routes.seal import SealRoute
from headrace.server.routes.search import AggregateRoute, SearchRoutes
from headrace.server.routes.service import Readiness, ServiceRoutes
from headrace.server.routes.stream_list import StreamListRoutes
from headrace.server.routes.streams import StreamRoutes
from headrace.server.routes.subscriptions import SubscriptionRoutes
from headrace.server.routes.touch import TouchRoutes
from headrace.server.routes.work import WorkRoutes

#: The classes whose methods are verbs, in the order in which pages list their routes.
OWNERS: tuple[type, ...] = (
    StreamRoutes, SealRoute, ReadRoute, ReadPlanRoutes, SchemaRoutes, DetailsRoute, SearchRoutes, AggregateRoute,
    RoutingKeysRoute, IndexStatusRoute, ProfileRoutes, OtlpRoutes, Observer, TouchRoutes, StreamListRoutes,
    SubscriptionRoutes, ServiceRoutes, RegistrationRoutes, PushRoute, FeatureRoutes, FeatureTableRoutes, WorkRoutes,
    EntityTypeRoutes, EnhancementRoutes, ObservationRoute, SourceRoute, EntityListRoutes, EntityRoute,
    ObservationDecisionRoutes, ErasureRoutes, EntityRelationRoutes,
)  # fmt: skip
ROUTES: tuple[Route, ...] = tuple(route for owner in OWNERS for route in routes_of(owner))


class EntityIdConvertor(StringConvertor):
    """What may be the id of an entity: none of the words that have addresses of their own there, with other verbs."""

    regex = "(?!(?:duplicates|merge|split)$)[^/]+"


class MultilinePathConvertor(PathConvertor):
    """The rest of a path, which may hold line breaks: Starlette's own pattern ends at the first one."""

    regex = "(?s:.*)"


register_url_convertor("entity", EntityIdConvertor())
register_url_convertor("path", MultilinePathConvertor())


def declared(*, subscriptions: bool = True) -> list[Route]:
    """Every route, with those of subscriptions where they are served."""
    return [route for route in ROUTES if subscriptions or not route.path.startswith(target.RESERVED_PATH)]


def openapi_document(*, subscriptions: bool = True) -> Node:
    """The OpenAPI document of the server."""
    return openapi.make_document(declared(subscriptions=subscriptions))


def make_resources(
    engine: Engine,
    gates: Gates,
    monitor: MemoryMonitor,
    readiness: Readiness,
    metrics: Metrics,
    subscriptions: Subscriptions | None,
) -> list[Any]:
    """What has the verbs of a server."""
    document = openapi_document(subscriptions=subscriptions is not None)
    resources = [
        StreamRoutes(engine),
        ReadRoute(engine, ReplyCompressor(gates.read), gates.read),
        ReadPlanRoutes(engine, gates.read),
        SearchRoutes(engine, gates.search),
        AggregateRoute(engine, gates.search),
        RoutingKeysRoute(engine, gates.search),
        Observer(engine, gates.search),
        ServiceRoutes(engine, gates, monitor, readiness, metrics, document),
        *([] if subscriptions is None else [SubscriptionRoutes(subscriptions)]),
    ]
    made = {type(resource) for resource in resources} | {SubscriptionRoutes}
    return resources + [owner(engine) for owner in OWNERS if owner not in made]


def _bound(resources: Iterable[Any]) -> Iterator[tuple[Route, Any]]:
    for resource in resources:
        for route in routes_of(type(resource)):
            yield route, route.verb.__get__(resource)


def hot_routes() -> dict[tuple[str, str], Route]:
    """The routes that are answered on the hot path, by method and resource; "" is the stream itself."""
    routes = {(route.method, target.resource_of(route.address)): route for route in ROUTES if route.is_hot}
    # An entity is described as it is read, without its body.
    return {**routes, ("HEAD", target.ENTITY): routes["GET", target.ENTITY]}


def hot_verbs(resources: Iterable[Any]) -> dict[tuple[str, str], Verb]:
    """The verbs of these routes."""
    verbs = {route.name: verb for route, verb in _bound(resources)}
    return {key: verbs[route.name] for key, route in hot_routes().items()}


def starlette_routes(resources: Iterable[Any]) -> list[starlette.routing.BaseRoute]:
    """Every other route; those without parts come first, since a part may be any word."""
    cold = [(route, verb) for route, verb in _bound(resources) if not route.is_hot]
    return [
        starlette.routing.Route(route.path, endpoint(route, verb), methods=[route.method])
        for route, verb in sorted(cold, key=lambda pair: "{" in pair[0].path)
    ]
