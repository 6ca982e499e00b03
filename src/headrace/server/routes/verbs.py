"""Everything that is asked on the hot path, in one table: method and resource, and who answers."""

from __future__ import annotations

from headrace.engine.assembly import Engine
from headrace.engine.runtime.gates import Gates
from headrace.profiles.otel_traces import EXPORT
from headrace.profiles.state_protocol.profile import ACTIVATE, META, WAIT
from headrace.server.http.compression import Encoder
from headrace.server.http.dispatch import Verb
from headrace.server.http.target import BATCH_GET, ENTITY, GET, OBSERVATIONS, PUSH, TRACES
from headrace.server.routes.aggregate import Aggregates
from headrace.server.routes.details import Details
from headrace.server.routes.entities import Entities
from headrace.server.routes.features import Gets
from headrace.server.routes.index_status import IndexStatus
from headrace.server.routes.observations import Observations
from headrace.server.routes.otlp import Exports
from headrace.server.routes.profiles import Profiles
from headrace.server.routes.push import Pushes
from headrace.server.routes.reads import Reads
from headrace.server.routes.routing_keys import RoutingKeys
from headrace.server.routes.schemas import Schemas
from headrace.server.routes.search import Searches
from headrace.server.routes.streams import Streams
from headrace.server.routes.touch import Touches


def table(engine: Engine, gates: Gates) -> dict[tuple[str, str], Verb]:
    """The verbs of a server; "" is the stream itself."""
    streams, schemas = Streams(engine), Schemas(engine)
    reads = Reads(engine, Encoder(gates.read), gates.read)
    details, searches = Details(engine), Searches(engine, gates.search)
    gets, profiles, exports = Gets(engine), Profiles(engine), Exports(engine)
    touches, entities = Touches(engine), Entities(engine)
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
        ("POST", "_aggregate"): Aggregates(engine, gates.search).post,
        ("GET", "_details"): details.get,
        ("GET", "_index_status"): IndexStatus(engine).get,
        ("GET", "_routing_keys"): RoutingKeys(engine, gates.search).get,
        ("POST", PUSH): Pushes(engine).post,
        ("POST", GET): gets.get,
        ("POST", BATCH_GET): gets.batch_get,
        ("POST", OBSERVATIONS): Observations(engine).post,
        ("GET", ENTITY): entities.get,
        ("HEAD", ENTITY): entities.get,
    }
