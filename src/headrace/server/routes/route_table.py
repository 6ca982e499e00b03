"""Every route of the server: the verbs of the hot path in one table, and the routes that Starlette serves."""

from __future__ import annotations

from starlette.routing import BaseRoute

from headrace.engine.assembly import Engine
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import MemoryMonitor
from headrace.engine.subscriptions.subscriptions import Subscriptions
from headrace.profiles.otel_traces.profile import EXPORT
from headrace.profiles.state_protocol.profile import ACTIVATE, META, WAIT
from headrace.server.http.compression import ReplyCompressor
from headrace.server.http.dispatch import Verb
from headrace.server.http.target import BATCH_GET, ENTITY, GET, OBSERVATIONS, PUSH, TRACES
from headrace.server.metrics import Metrics
from headrace.server.routes import (
    enhancement,
    entity_lists,
    entity_relations,
    entity_types,
    erasures,
    feature_tables,
    observations,
    observe,
    registration,
    service,
    streams,
    work,
)
from headrace.server.routes.details import DetailsRoute
from headrace.server.routes.entities import EntityRoute
from headrace.server.routes.features import FeatureRoutes
from headrace.server.routes.index_status import IndexStatusRoute
from headrace.server.routes.observations import ObservationRoute
from headrace.server.routes.otlp import OtlpRoutes
from headrace.server.routes.profiles import ProfileRoutes
from headrace.server.routes.push import PushRoute
from headrace.server.routes.reads import ReadRoute
from headrace.server.routes.routing_keys import RoutingKeysRoute
from headrace.server.routes.schemas import SchemaRoutes
from headrace.server.routes.search import AggregateRoute, SearchRoutes
from headrace.server.routes.service import Readiness
from headrace.server.routes.streams import StreamRoutes
from headrace.server.routes.subscriptions import routes as subscription_routes
from headrace.server.routes.touch import TouchRoutes


def hot_verbs(engine: Engine, gates: Gates) -> dict[tuple[str, str], Verb]:
    """The verbs of a server; "" is the stream itself."""
    stream, schemas = StreamRoutes(engine), SchemaRoutes(engine)
    reads = ReadRoute(engine, ReplyCompressor(gates.read), gates.read)
    details, searches = DetailsRoute(engine), SearchRoutes(engine, gates.search)
    gets, profiles, exports = FeatureRoutes(engine), ProfileRoutes(engine), OtlpRoutes(engine)
    touches, entities = TouchRoutes(engine), EntityRoute(engine)
    return {
        ("POST", ""): stream.append,
        ("GET", ""): reads.get,
        ("HEAD", ""): stream.head,
        ("PUT", ""): stream.put,
        ("DELETE", ""): stream.delete,
        ("POST", "_retention"): stream.retention,
        ("GET", "_schema"): schemas.get,
        ("POST", "_schema"): schemas.post,
        ("GET", "_schema/history"): schemas.history,
        ("GET", "_schema/verifications"): schemas.verification,
        ("GET", "_profile"): profiles.get,
        ("POST", "_profile"): profiles.post,
        ("GET", META): touches.meta,
        ("POST", ACTIVATE): touches.activate,
        ("POST", WAIT): touches.wait,
        ("POST", EXPORT): exports.post,
        ("POST", TRACES): exports.traces,
        ("GET", "_search"): searches.get,
        ("POST", "_search"): searches.post,
        ("POST", "_aggregate"): AggregateRoute(engine, gates.search).post,
        ("GET", "_details"): details.get,
        ("GET", "_index_status"): IndexStatusRoute(engine).get,
        ("GET", "_routing_keys"): RoutingKeysRoute(engine, gates.search).get,
        ("POST", PUSH): PushRoute(engine).post,
        ("POST", GET): gets.get,
        ("POST", BATCH_GET): gets.batch_get,
        ("POST", OBSERVATIONS): ObservationRoute(engine).post,
        ("GET", ENTITY): entities.get,
        ("HEAD", ENTITY): entities.get,
    }


def starlette_routes(
    engine: Engine,
    gates: Gates,
    monitor: MemoryMonitor,
    readiness: Readiness,
    metrics: Metrics,
    subscriptions: Subscriptions | None,
) -> list[BaseRoute]:
    """Every route but those of the hot path."""
    routes: list[BaseRoute] = [*streams.routes(engine), *service.routes(engine, gates, monitor, readiness, metrics)]
    routes += [*work.routes(engine), *observe.routes(engine, gates.search)]
    routes += [*registration.routes(engine), *feature_tables.routes(engine)]
    routes += [*observations.routes(engine)]
    routes += [*entity_lists.routes(engine), *entity_relations.routes(engine)]
    routes += [*entity_types.routes(engine), *enhancement.routes(engine), *erasures.routes(engine)]
    if subscriptions is not None:
        routes += subscription_routes(subscriptions)
    return routes
