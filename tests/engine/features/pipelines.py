"""Registering in an engine: descriptors as they are sent, and what the registry makes of them."""

from __future__ import annotations

from typing import Any

from headrace.engine.features.proposals import FeatureChange
from headrace.schema.descriptor.registration import Registration, RegistrationResponse, read_registration
from support.engine_rig import Rig

Payload = dict[str, Any]


def event(name: str = "Txn", schema: Payload | None = None, **settings: Any) -> Payload:
    """An event source."""
    fields = {"user": "str", "amount": "f64"} if schema is None else schema
    return {"kind": "event", "name": name, "schema": fields, **settings}


def table(name: str = "Users", upstream: str = "Txn", **features: Payload) -> Payload:
    """A table by user."""
    agg = features or {"count": {"op": "count", "params": {}}}
    return {"kind": "table", "name": name, "key": ["user"], "upstreams": [upstream], "agg": agg}


def asked(*descriptors: Payload, **terms: Any) -> FeatureChange:
    """A change as a payload asks for it."""
    given = read_registration({"descriptors": list(descriptors), **terms})
    assert isinstance(given, Registration), given
    return FeatureChange.of(given)


def register(rig: Rig, *descriptors: Payload, **terms: Any) -> RegistrationResponse:
    """Register in an engine, as somebody."""
    return rig.run(rig.engine.features.register(asked(*descriptors, **terms), "somebody"))


def registered(rig: Rig, *descriptors: Payload, **terms: Any) -> RegistrationResponse:
    """The same where it must succeed."""
    envelope = register(rig, *descriptors, **terms)
    assert (envelope.status, envelope.errors) == ("ok", []), envelope
    return envelope
