"""The settings of a stream of spans: what is redacted, kept, cut and refused."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace import decoding
from headrace.profiles.definition import Settings, read_counterpart, read_words
from headrace.profiles.otel_traces.span import GROUPS, KEYS
from headrace.query.document_reader import Part

#: What is redacted in any case.
REDACTED_KEYS = (
    "password", "token", "secret", "authorization", "cookie", "apikey", "api_key", "set-cookie", "x-api-key",
)  # fmt: skip
#: Where the request of a span is looked for, where the settings do not say.
REQUEST_IDS = (
    "request.id", "http.request_id", "http.request.header.x_request_id", "http.request.header.x-request-id",
    "http.request.header.x_correlation_id", "http.request.header.x-correlation-id", "correlation.id",
)  # fmt: skip
_MOST = 2**31 - 1
#: What a span is made of cannot be redacted by its name.
_MEMBERS = frozenset(name.lower() for name in (*KEYS, *(member for group in GROUPS.values() for member in group)))


class AttributeLimits(msgspec.Struct, frozen=True, rename="camel"):
    """How much of one span is kept."""

    max_attribute_value_bytes: int = 8192
    max_attributes_per_span: int = 256
    max_events_per_span: int = 128
    max_links_per_span: int = 128
    max_statement_bytes: int = 4096


class OtlpLimits(msgspec.Struct, frozen=True, rename="camel"):
    """How much one export may hold."""

    max_compressed_bytes: int = 4 * 1024 * 1024
    max_decoded_bytes: int = 16 * 1024 * 1024
    max_resource_spans_per_request: int = 1024
    max_scope_spans_per_request: int = 4096
    max_spans_per_request: int = 50_000
    max_any_value_depth: int = 16
    max_array_values_per_any_value: int = 256
    max_kv_list_values_per_any_value: int = 256


class Store(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept beside the members that are derived from it."""

    raw_resource_attributes: bool = True
    raw_span_attributes: bool = True
    raw_events: bool = True
    raw_links: bool = True


class Rules(msgspec.Struct, frozen=True, rename="camel"):
    """All settings, with what holds where nothing was said."""

    redact_keys: tuple[str, ...] = ()
    request_id_attributes: tuple[str, ...] = REQUEST_IDS
    attribute_limits: AttributeLimits = AttributeLimits()
    otlp_limits: OtlpLimits = OtlpLimits()
    store: Store = Store()
    db_statement_mode: str = "drop"
    url_mode: str = "drop_query"
    observability: Any = None


_GROUPS: dict[str, type[msgspec.Struct]] = {
    "attributeLimits": AttributeLimits,
    "otlpLimits": OtlpLimits,
    "store": Store,
}
_CHOICES = {"dbStatementMode": ("drop", "raw"), "urlMode": ("drop_query", "raw")}
_KNOWN = Rules.__struct_encode_fields__


def read(part: Part) -> Settings:
    """The settings that a document gives."""
    if not part.knows(_KNOWN):
        return {}
    settings: Settings = {}
    for name in (name for name in _KNOWN if part[name].is_given):
        member = part[name]
        if name == "redactKeys":
            settings[name] = read_words(member, lowercase=True, refused=_MEMBERS)
        elif name == "requestIdAttributes":
            settings[name] = read_words(member)
        elif name == "observability":
            settings[name] = read_counterpart(member, "eventsStream")
        elif name in _CHOICES:
            settings[name] = member.one_of(_CHOICES[name])
        else:
            settings[name] = _group(member, _GROUPS[name])
    return settings


def _group(part: Part, kind: type[msgspec.Struct]) -> Settings:
    defaults = msgspec.to_builtins(kind())
    if not part.knows(defaults):
        return {}
    settings: Settings = {}
    for name in part.value:
        if isinstance(defaults.get(name), bool):
            settings[name] = part[name].flag()
        elif name in defaults:
            number = part[name].whole()
            if number is not None and not 1 <= number <= _MOST:
                part[name].note(f"must lie between 1 and {_MOST}")
            settings[name] = number
    return settings


def rules_of(settings: Settings) -> Rules:
    """The rules that settings make."""
    return decoding.convert(settings, Rules)
