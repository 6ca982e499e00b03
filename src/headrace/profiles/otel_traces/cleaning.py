"""What is taken out of a span before it is stored: what is listed, what databases were told, and what is too much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from headrace.profiles.otel_traces.rules import REDACTED_KEYS, Rules
from headrace.profiles.otel_traces.span import ADDRESSES, QUERIES, STATEMENTS
from headrace.profiles.redaction import REDACTED, Redactor

_USER = re.compile("^([A-Za-z][A-Za-z0-9+.-]*://)[^/]*@")
_END = re.compile("[?#]")


class Cleaner:
    """The rules of one stream."""

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
        """Redact, and cut long texts, in every set of attributes; ``paths`` and ``dropped`` say what was done."""
        found: list[str] = []
        for base, attributes in _sets(span):
            if not self._redactor.is_clean(attributes):
                self._redactor.redact(attributes, found, base)
            found += (f"{base}{name}" for name in self._hidden(attributes))
            dropped["values"] += self._cut(attributes)
        known = set(paths)
        paths += [path for path in dict.fromkeys(found) if path not in known]

    def derived(self, group: str, name: str, value: Any) -> Any:
        """A member that was derived from attributes, or given beside them, under the same rules."""
        if not isinstance(value, str):
            return value
        if (group, name) == ("db", "statement"):
            if not self._keeps_statements:
                return None
            return _short(value, self._limits.max_statement_bytes)
        if group == "http" and name in {"path", "url"} and not self._keeps_queries:
            value = _plain(value)
        return _short(value, self._limits.max_attribute_value_bytes)

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
        for kept, name, most in (
            (events, "events", limits.max_events_per_span),
            (links, "links", limits.max_links_per_span),
        ):
            dropped[name] += max(0, len(kept) - most)
            del kept[most:]

    def _hidden(self, attributes: dict[str, Any]) -> Iterator[str]:
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

    def _cut(self, value: Any) -> int:
        """Cut texts that are too long, at any depth; answers how many there were."""
        most, cuts, waiting = self._limits.max_attribute_value_bytes, 0, [value]
        while waiting:
            holder = waiting.pop()
            for name, member in holder.items() if isinstance(holder, dict) else enumerate(holder):
                if isinstance(member, str):
                    if len(member) * 4 > most and (short := _short(member, most)) != member:
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
        for number, one in enumerate(span[name]):
            yield f"{name}.{number}.attributes.", one["attributes"]


def _plain(address: str) -> str:
    """An address without a query, a fragment, and whoever was named before its host."""
    return _USER.sub(r"\1", _END.split(address, maxsplit=1)[0])


def _short(text: str, most: int) -> str:
    spelled = text.encode()
    return text if len(spelled) <= most else spelled[:most].decode(errors="ignore")
