"""The settings of a stream of spans, and how its attributes are redacted and cut by them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace import decoding
from headrace.profiles.definition import Settings, read_counterpart, read_words
from headrace.profiles.otel_traces.span import ADDRESSES, GROUPS, KEYS, QUERIES, STATEMENTS
from headrace.profiles.redaction import REDACTED, Redactor
from headrace.query.document_reader import Part

#: What is redacted in any case.
REDACTED_KEYS = (
    "password", "token", "secret", "authorization", "cookie", "apikey", "api_key", "set-cookie", "x-api-key",
)  # fmt: skip
#: The attributes with the request id of a span, unless the settings name others.
REQUEST_IDS = (
    "request.id", "http.request_id", "http.request.header.x_request_id", "http.request.header.x-request-id",
    "http.request.header.x_correlation_id", "http.request.header.x-correlation-id", "correlation.id",
)  # fmt: skip
_MAX_SETTING = 2**31 - 1
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
    """Which raw members are stored beside those that are derived from them."""

    raw_resource_attributes: bool = True
    raw_span_attributes: bool = True
    raw_events: bool = True
    raw_links: bool = True


class Rules(msgspec.Struct, frozen=True, rename="camel"):
    """All settings, with their defaults."""

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
_RULE_NAMES = Rules.__struct_encode_fields__


def read_settings(part: Part) -> Settings:
    """The settings that a document gives."""
    if not part.knows(_RULE_NAMES):
        return {}
    settings: Settings = {}
    for name in (name for name in _RULE_NAMES if part[name].is_present):
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
            number = part[name].integer()
            if number is not None and not 1 <= number <= _MAX_SETTING:
                part[name].note(f"must lie between 1 and {_MAX_SETTING}")
            settings[name] = number
    return settings


def rules_of(settings: Settings) -> Rules:
    """The rules that settings make."""
    return decoding.convert(settings, Rules)


_USER = re.compile("^([A-Za-z][A-Za-z0-9+.-]*://)[^/]*@")
_END = re.compile("[?#]")


class Cleaner:
    """Redacts and cuts the attributes of spans by the rules of one stream."""

    def __init__(self, rules: Rules) -> None:
        self._keys = frozenset((*REDACTED_KEYS, *rules.redact_keys))
        self._redactor = Redactor(self.listed)
        self._limits = rules.attribute_limits
        self._keeps_statements = rules.db_statement_mode == "raw"
        self._keeps_queries = rules.url_mode == "raw"

    def listed(self, name: str) -> bool:
        """Whether a key is listed, as a whole or by its last part."""
        lowered = name.lower()
        return lowered in self._keys or lowered.rpartition(".")[2] in self._keys

    def clean(self, span: dict[str, Any], paths: list[str], dropped: dict[str, int]) -> None:
        """Redact, and cut long texts, in every set of attributes; ``paths`` and ``dropped`` record what was done."""
        redacted_paths: list[str] = []
        for base, attributes in _sets(span):
            if not self._redactor.is_clean(attributes):
                self._redactor.redact(attributes, redacted_paths, base)
            redacted_paths += (f"{base}{name}" for name in self._redact_statements(attributes))
            dropped["values"] += self._cut_texts(attributes)
        earlier_paths = set(paths)
        paths += [path for path in dict.fromkeys(redacted_paths) if path not in earlier_paths]

    def derived(self, group: str, name: str, value: Any) -> Any:
        """A member that was derived from attributes, or given beside them, under the same rules."""
        if not isinstance(value, str):
            return value
        if (group, name) == ("db", "statement"):
            if not self._keeps_statements:
                return None
            return _shorten(value, self._limits.max_statement_bytes)
        if group == "http" and name in {"path", "url"} and not self._keeps_queries:
            value = _plain(value)
        return _shorten(value, self._limits.max_attribute_value_bytes)

    def limit(
        self,
        attributes: dict[str, Any],
        events: list[dict[str, Any]],
        links: list[dict[str, Any]],
        dropped: dict[str, int],
    ) -> None:
        """Leave out what is more than may be kept, and count it."""
        limits = self._limits
        for name in list(attributes)[limits.max_attributes_per_span :]:
            del attributes[name]
            dropped["attributes"] += 1
        for kept, name, limit in (
            (events, "events", limits.max_events_per_span),
            (links, "links", limits.max_links_per_span),
        ):
            dropped[name] += max(0, len(kept) - limit)
            del kept[limit:]

    def _redact_statements(self, attributes: dict[str, Any]) -> Iterator[str]:
        """Take out statements and queries, where they are not to be kept."""
        if not self._keeps_statements:
            for name in STATEMENTS:
                if attributes.get(name) is not None:
                    attributes[name] = REDACTED
                    yield name
        if not self._keeps_queries:
            for name in QUERIES:
                if attributes.get(name) is not None:
                    attributes[name] = REDACTED
                    yield name
            for name in ADDRESSES:
                address = attributes.get(name)
                if isinstance(address, str) and (plain := _plain(address)) != address:
                    attributes[name] = plain
                    yield name

    def _cut_texts(self, value: Any) -> int:
        """Cut texts that are too long, at any depth; answers how many there were."""
        max_bytes, cuts, waiting = self._limits.max_attribute_value_bytes, 0, [value]
        while waiting:
            holder = waiting.pop()
            for name, member in holder.items() if isinstance(holder, dict) else enumerate(holder):
                if isinstance(member, str):
                    if len(member) * 4 > max_bytes and (short := _shorten(member, max_bytes)) != member:
                        holder[name] = short
                        cuts += 1
                elif isinstance(member, dict | list):
                    waiting.append(member)
        return cuts


def _sets(span: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every set of attributes of a span, and the path to it."""
    yield "attributes.", span["attributes"]
    yield "resource.attributes.", span["resource"]["attributes"]
    yield "instrumentationScope.attributes.", span["instrumentationScope"]["attributes"]
    for name in ("events", "links"):
        for number, member in enumerate(span[name]):
            yield f"{name}.{number}.attributes.", member["attributes"]


def _plain(address: str) -> str:
    """An address without its query, its fragment and the user information before its host."""
    return _USER.sub(r"\1", _END.split(address, maxsplit=1)[0])


def _shorten(text: str, limit: int) -> str:
    spelled = text.encode()
    return text if len(spelled) <= limit else spelled[:limit].decode(errors="ignore")
