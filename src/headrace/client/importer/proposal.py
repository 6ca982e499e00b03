"""From facts to a proposal: a JSON Schema that admits every row, search fields, and a rollup over time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.client.importer.facts import FieldFacts, iterate_fields, json_pointer

#: In this order, so that equal facts give equal documents.
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
#: Names that people give to the moment of an event, best first.
_TIMESTAMP_NAMES = (
    *("timestamp", "event_time", "time", "ts", "at", "occurred_at", "created_at", "created", "datetime", "date"),
)
#: Strings that are longer, or that mostly have spaces, are searched by words.
_LONGEST_KEYWORD = 100
#: A keyword with at most so many values in a sample is a dimension of the rollup.
_MAX_GROUPS, _MAX_DIMENSIONS, _MAX_MEASURES = 50, 3, 8
#: The server takes no more search fields.
MAX_FIELDS = 200
_IDENTIFIER = re.compile(r"(^|_)(id|uuid|key|code|status|year|zip)$", re.IGNORECASE)
_NAME = re.compile(r"[^A-Za-z0-9_]+")
ROLLUP = "overview"
INTERVALS = ("1m", "1h", "1d")


class ProposedField(msgspec.Struct, frozen=True):
    """One field for people to look at: its types, how it is searched, and how often it has no value."""

    pointer: str
    types: tuple[str, ...]
    search: str | None
    missing: int


class Proposal(msgspec.Struct, frozen=True):
    """What a stream of these rows would be."""

    rows: int
    schema: dict[str, Any]
    search: dict[str, Any] | None
    fields: tuple[ProposedField, ...]
    notes: tuple[str, ...]


def propose(facts: FieldFacts, *, timestamp: str | None = None, is_open: bool = False) -> Proposal:
    """The schema, search fields and rollup that fit the facts; ``timestamp`` names the primary timestamp's field."""
    fields = _SearchFields(facts, timestamp)
    notes = list(fields.notes)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **json_schema(facts, is_open=is_open)}
    described = tuple(_describe(facts, fields.kinds))
    return Proposal(facts.count, schema, fields.document(), described, tuple(notes))


def json_schema(facts: FieldFacts, *, is_open: bool = False) -> dict[str, Any]:
    """The narrowest schema of types, members and elements that admits every value."""
    types = [name for name in _TYPES if facts.types[name]]
    if "number" in types and "integer" in types:
        types.remove("integer")  # a number may be whole
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types} if types else {}
    if facts.rfc3339 and facts.rfc3339 == facts.types["string"]:
        schema["format"] = "date-time"
    elif facts.dates and facts.dates == facts.types["string"]:
        schema["format"] = "date"
    if facts.types["object"] and not facts.is_map:
        objects = facts.types["object"]
        schema["properties"] = {name: json_schema(member, is_open=is_open) for name, member in facts.members.items()}
        required = [name for name, member in facts.members.items() if member.count == objects]
        if required:
            schema["required"] = required
        if not is_open:
            schema["additionalProperties"] = False
    if facts.types["array"]:
        if facts.items is not None and facts.items.count:
            schema["items"] = json_schema(facts.items, is_open=is_open)
        elif not is_open:
            schema["maxItems"] = 0
    return schema


class _SearchFields:
    """Which fields can be searched, as which kind, and which of them a rollup measures and groups by."""

    def __init__(self, facts: FieldFacts, timestamp: str | None) -> None:
        self.notes: list[str] = []
        self.facts: dict[str, FieldFacts] = {}
        #: The search kind of each field, by its JSON Pointer.
        self.kinds: dict[str, str] = {}
        for path, field in iterate_fields(facts):
            if (kind := _search_kind(field)) is not None and len(self.kinds) < MAX_FIELDS:
                self.kinds[json_pointer(path)] = kind
                self.facts[json_pointer(path)] = field
        self._names = _names(self.kinds)
        self._timestamp = self._choose_timestamp(facts, timestamp)

    def document(self) -> dict[str, Any] | None:
        """The search document; None where no field can be searched."""
        if not self.kinds:
            self.notes.append("no field can be searched")
            return None
        fields = {self._names[pointer]: _search_field(pointer, kind) for pointer, kind in self.kinds.items()}
        document: dict[str, Any] = {"primaryTimestampField": "event_time", "fields": fields}
        if self._timestamp is None:
            # Every search has a primary timestamp: this one has no value in any row.
            fields["event_time"] = _search_field("/event_time", "date")
            self.notes.append(
                "no field holds a moment in every row: searches answer in the order of appending, no rollup"
            )
            return document
        document["primaryTimestampField"] = self._names[self._timestamp]
        document["rollups"] = {ROLLUP: self._rollup()}
        return document

    def _choose_timestamp(self, facts: FieldFacts, wanted: str | None) -> str | None:
        dates = [pointer for pointer, kind in self.kinds.items() if kind == "date"]
        if wanted is not None:
            pointer = wanted if wanted.startswith("/") else f"/{wanted}"
            if pointer not in dates:
                raise ValueError(f"{wanted} is no field of moments; those are: {', '.join(dates) or 'none'}")
            return pointer
        total = facts.types["object"]
        always = [pointer for pointer in dates if self.facts[pointer].types["string"] == total]
        ranked = sorted(always, key=lambda pointer: (self._rank_timestamp(pointer), always.index(pointer)))
        return ranked[0] if ranked else None

    def _rank_timestamp(self, pointer: str) -> tuple[int, int]:
        """Moments before dates; usual names first."""
        name = pointer.rpartition("/")[2].lower()
        rank = _TIMESTAMP_NAMES.index(name) if name in _TIMESTAMP_NAMES else len(_TIMESTAMP_NAMES)
        return int(bool(self.facts[pointer].dates)), rank

    def _rollup(self) -> dict[str, Any]:
        dimensions = [pointer for pointer in self.kinds if self._is_dimension(pointer)][:_MAX_DIMENSIONS]
        numbers = [pointer for pointer in self.kinds if self._is_measure(pointer)][:_MAX_MEASURES]
        measures: dict[str, Any] = {"count": {"kind": "count"}}
        measures |= {
            self._names[pointer]: {"kind": "quantiles", "field": self._names[pointer]}
            for pointer in numbers
            if self._names[pointer] != "count"
        }
        names = [self._names[pointer] for pointer in dimensions]
        return {"dimensions": names, "intervals": list(INTERVALS), "measures": measures}

    def _is_dimension(self, pointer: str) -> bool:
        facts = self.facts[pointer]
        return self.kinds[pointer] == "keyword" and not facts.types["array"] and facts.distinct <= _MAX_GROUPS

    def _is_measure(self, pointer: str) -> bool:
        name = pointer.rpartition("/")[2]
        is_number = self.kinds[pointer] in ("integer", "float") and not self.facts[pointer].types["array"]
        return is_number and _IDENTIFIER.search(name) is None


def _search_kind(facts: FieldFacts) -> str | None:
    """The kind that holds every value of a field; None where there is none. Elements of an array are values."""
    values = facts.items if facts.items is not None and facts.types["array"] else facts
    types = {name for name in (*facts.types, *values.types) if name not in ("null", "array")}
    if types == {"string"}:
        strings = values.types["string"]
        if values.date_times + values.dates == strings:
            return "date"
        return "text" if _is_prose(values) else "keyword"
    if types == {"integer"}:
        return "integer"
    if types and types <= {"integer", "number"}:
        return "float"
    return "bool" if types == {"boolean"} else None


def _is_prose(facts: FieldFacts) -> bool:
    return facts.max_length > _LONGEST_KEYWORD or (
        facts.with_spaces * 2 > facts.sampled and facts.distinct > _MAX_GROUPS
    )


def _search_field(pointer: str, kind: str) -> dict[str, Any]:
    bound = {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}]}
    if kind == "text":
        return {**bound, "analyzer": "unicode_word_v1", "positions": True}
    if kind == "keyword":
        return {**bound, "exact": True, "prefix": True, "sortable": True, "aggregatable": True}
    if kind == "bool":
        return {**bound, "exact": True, "column": True}
    return {**bound, "exact": True, "column": True, "sortable": True, "aggregatable": True}


def _names(pointers: Mapping[str, str]) -> dict[str, str]:
    """A name for each field: its path with dots, as far as names may hold it."""
    names: dict[str, str] = {}
    taken = {"event_time"} - {"/event_time"}
    for pointer in pointers:
        path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        base = ".".join(filter(None, (_NAME.sub("_", part).strip("_") for part in path)))[:60] or "field"
        name, number = base, 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        names[pointer] = name
        taken.add(name)
    return names


def _describe(facts: FieldFacts, kinds: Mapping[str, str]) -> Iterator[ProposedField]:
    parents = {"": facts.types["object"]}
    for path, field in iterate_fields(facts):
        pointer = json_pointer(path)
        parents[pointer] = field.types["object"]
        missing = parents[json_pointer(path[:-1])] - field.count + field.types["null"]
        schema = json_schema(field)
        types = schema.get("type", [])
        names = (types,) if isinstance(types, str) else tuple(name for name in types if name != "null")
        yield ProposedField(pointer, tuple(schema.get("format", name) if name == "string" else name for name in names),
                            kinds.get(pointer), missing)  # fmt: skip
