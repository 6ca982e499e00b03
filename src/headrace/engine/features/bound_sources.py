"""Event sources that are bound to streams which are there already: what may be bound, and to which schema version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from headrace.engine.features.proposals import FeatureChange, FeatureProposal
from headrace.engine.features.registry import EVENTS, Current
from headrace.engine.log.stream import Head, Stream
from headrace.engine.registry.schemas import Schemas
from headrace.schema import pointer as pointers
from headrace.schema.descriptor.bound_fields import StreamBinding, follow_fields, never_holds, pointer_of
from headrace.schema.descriptor.diff import same_definition
from headrace.schema.descriptor.nodes import Event, Node
from headrace.schema.problem import RequestProblem
from headrace.schema.registry import Registry
from headrace.storage.streams import LIVE
from headrace.types import RESERVED

#: What the names of the streams of observations begin with, whose events are of all users.
_OBSERVATIONS = "entities/"

#: Returns the stream of a name, deleted ones included; None where there is none.
FindStream = Callable[[str], Stream | None]


def bound_events(nodes: Mapping[str, Node]) -> dict[str, Event]:
    """The sources that are bound to streams."""
    return {name: node for name, node in nodes.items() if isinstance(node, Event) and node.stream is not None}


def find_bound_streams(proposal: FeatureProposal, find: FindStream) -> dict[str, Stream]:
    """The streams of the bound sources that are there, by name of the source."""
    streams = {name: find(event.stream or "") for name, event in bound_events(proposal.nodes).items()}
    return {name: stream for name, stream in streams.items() if stream is not None and stream.head.state == LIVE}


def with_followed_pointers(base: Current, change: FeatureChange, find: FindStream) -> FeatureChange:
    """The change with the pointers that are registered, where it has them as lenses have moved them since."""
    nodes = dict(change.nodes)
    for name, event in bound_events(change.nodes).items():
        old, binding = base.nodes.get(name), base.document.sources.get(name)
        stream = find(event.stream or "")
        if binding is None or stream is None or not isinstance(old, Event) or old.stream != event.stream:
            continue
        if stream.incarnation == binding.incarnation:
            nodes[name] = _unmoved(Schemas.registry(stream), old, event, binding)
    return msgspec.structs.replace(change, nodes=nodes)


def _unmoved(registry: Registry, old: Event, new: Event, binding: StreamBinding) -> Event:
    paths = follow_fields(registry, old, binding.versions)
    schema = {
        name: msgspec.structs.replace(field, pointer=old.schema[name].pointer)
        if name in paths and paths[name].at(registry.current_version) == pointer_of(name, field)
        else field
        for name, field in new.schema.items()
    }
    return msgspec.structs.replace(new, schema=schema)


def find_rebound(proposal: FeatureProposal, streams: Mapping[str, Stream]) -> list[str]:
    """The sources whose stream was deleted and made anew since they were bound."""
    base = proposal.base
    return [
        name
        for name, event in bound_events(proposal.nodes).items()
        if (binding := base.document.sources.get(name)) is not None
        and base.document.stream_of(name) == event.stream
        and proposal.change.covers(proposal.apps[name])
        and name in streams
        and streams[name].incarnation != binding.incarnation
    ]


def rebinding_problems(proposal: FeatureProposal, rebound: list[str]) -> Iterator[RequestProblem]:
    """Why sources are not bound to another stream of the same name, unless that is forced."""
    for name in () if proposal.change.force else rebound:
        stream = proposal.nodes[name].stream  # type: ignore[union-attr]
        message = f"the stream {stream!r} was deleted and made anew: with force, features begin with its events"
        yield RequestProblem("source_gone", proposal.change.path_of(name) + ".stream", message)


def binding_problems(proposal: FeatureProposal, streams: Mapping[str, Stream]) -> Iterator[RequestProblem]:
    """Why sources that are new, or have changed, cannot be bound."""
    for name, event in bound_events(proposal.nodes).items():
        if name in proposal.base.nodes and same_definition(proposal.base.nodes[name], event):
            continue
        path = proposal.change.path_of(name)
        stream, refusal = streams.get(name), _refusal(name, event.stream or "", streams.get(name))
        if refusal is not None:
            code, reason = refusal
            yield RequestProblem(code, path + ".stream", reason)
        elif stream is not None:
            yield from _field_problems(event, Schemas.registry(stream), path)


def _refusal(name: str, wanted: str, stream: Stream | None) -> tuple[str, str] | None:
    """The code and the reason why a source cannot be bound to a stream."""
    unsupported = "stream_not_supported"
    if wanted.startswith(_OBSERVATIONS):
        return unsupported, f"{wanted!r} has observations of all users: features are not computed from them"
    if wanted.startswith(RESERVED):
        return unsupported, f"{wanted!r} belongs to the server: features are not computed from its streams"
    if wanted == EVENTS + name:
        return unsupported, f"{wanted!r} is the stream of a source that events are pushed to: leave out stream"
    if stream is None:
        return "unknown_stream", f"there is no stream {wanted!r}"
    if not stream.is_json:
        return unsupported, f"{wanted!r} holds {stream.media_type}, and features are computed from JSON events"
    return None


def _field_problems(event: Event, registry: Registry, path: str) -> Iterator[RequestProblem]:
    """The fields that no event of the stream can have."""
    for name, field in event.schema.items():
        pointer = pointer_of(name, field)
        if never_holds(registry, pointer, field.type):
            message = f"no event of {event.stream!r} has a {field.type} at {pointers.text(pointer)}"
            yield RequestProblem("unknown_field_reference", f"{path}.schema.{name}", message)


def bind(proposal: FeatureProposal, name: str, stream: Stream, head: Head) -> StreamBinding:
    """How a source is bound to its stream: pointers that it had before keep the version that they are read in."""
    event, base = proposal.nodes[name], proposal.base
    assert isinstance(event, Event)
    version = 0 if head.registry is None else head.registry.version
    versions = dict.fromkeys(event.schema, version)
    now = base.nodes.get(name), base.document.sources.get(name)
    for old, binding in (proposal.change.earlier.get(name, (None, None)), now):
        if isinstance(old, Event) and binding is not None and old.stream == event.stream:
            is_same = binding.incarnation == stream.incarnation
            versions |= _kept_versions(old, event, binding) if is_same else {}
    return StreamBinding(stream.incarnation, versions)


def _kept_versions(old: Event, new: Event, binding: StreamBinding) -> dict[str, int]:
    return {
        name: binding.versions[name]
        for name, field in new.schema.items()
        if name in old.schema and old.schema[name].pointer == field.pointer
    }
