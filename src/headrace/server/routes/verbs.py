"""Everything that is asked on the hot path, in one table: method and resource, and who answers."""

from __future__ import annotations

from headrace.engine.assembly import Engine
from headrace.engine.runtime.gates import Gates
from headrace.profiles.otel_traces import EXPORT
from headrace.profiles.state_protocol.profile import ACTIVATE, META, WAIT
from headrace.server.http.compression import ReplyCompressor
from headrace.server.http.dispatch import Verb
from headrace.server.http.target import BATCH_GET, ENTITY, GET, OBSERVATIONS, PUSH, TRACES
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
from headrace.server.routes.streams import StreamRoutes
from headrace.server.routes.touch import TouchRoutes


def stream_verbs(engine: Engine, gates: Gates) -> dict[tuple[str, str], Verb]:
    """The verbs of a server; "" is the stream itself."""
    streams, schemas = StreamRoutes(engine), SchemaRoutes(engine)
    reads = ReadRoute(engine, ReplyCompressor(gates.read), gates.read)
    details, searches = DetailsRoute(engine), SearchRoutes(engine, gates.search)
    gets, profiles, exports = FeatureRoutes(engine), ProfileRoutes(engine), OtlpRoutes(engine)
    touches, entities = TouchRoutes(engine), EntityRoute(engine)
    return {
        ("POST", ""): streams.append,
        ("GET", ""): reads.get,
        ("HEAD", ""): streams.head,
        ("PUT", ""): streams.put,
        ("DELETE", ""): streams.delete,
        ("POST", "_retention"): streams.retention,
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
