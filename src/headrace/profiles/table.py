"""The table of all profiles, and the way from a document or a stored text to one of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from headrace.errors import CorruptData
from headrace.profiles.definition import API_VERSION, Definition, Profile, read_no_settings
from headrace.profiles.evlog.profile import EVLOG
from headrace.profiles.metrics import METRICS
from headrace.profiles.otel_traces.profile import OTEL_TRACES
from headrace.profiles.state_protocol.profile import STATE_PROTOCOL
from headrace.query.document_reader import Part
from headrace.schema.problem import Problem

GENERIC = Definition(name="generic", read=read_no_settings, hook=lambda settings: None, needs_json=False)


PROFILES: dict[str, Definition] = {each.name: each for each in (GENERIC, EVLOG, METRICS, STATE_PROTOCOL, OTEL_TRACES)}

_LOADED = 1024


def read(body: Any) -> Profile | list[Problem]:
    """The profile that a request asks for, or everything that is wrong with the request."""
    part = Part(body)
    if not part.knows(("apiVersion", "profile")):
        return part.problems
    if part["apiVersion"].is_present and part["apiVersion"].value != API_VERSION:
        part["apiVersion"].note(f"must be {API_VERSION}")
    profile = part["profile"]
    kind = profile["kind"].one_of(PROFILES) if profile.is_object() else None
    if kind is None:
        return part.problems
    definition = PROFILES[kind]
    inner = Part({name: value for name, value in profile.value.items() if name != "kind"}, profile.at, part.problems)
    settings = definition.read(inner)
    return part.problems or Profile(definition, settings)


@lru_cache(maxsize=_LOADED)
def load(text: str) -> Profile:
    """The profile that was stored so; streams with the same one share it."""
    document = msgspec.json.decode(text) if text.startswith("{") else {"kind": text}
    profile = read({"profile": document})
    if isinstance(profile, list):
        raise CorruptData(f"a stored profile cannot be read: {profile[0].reason}", pointer=profile[0].pointer)
    return profile
