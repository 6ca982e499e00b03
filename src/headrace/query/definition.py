"""What derived data is made from: a search configuration, with the source of every field in every version.

A definition has hashes. Two definitions with the same hash of a field or a rollup make the same of the same events, so
what one has computed may answer for the other. Hashes are the same in every process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields as members
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from headrace.errors import CorruptData
from headrace.query import search_document
from headrace.query.search import Kind, Rollup, Search, SummaryParts
from headrace.query.tree import Clause, Node
from headrace.schema import pointer as pointers
from headrace.schema.entries import exact_number
from headrace.schema.lens import document as lens_document
from headrace.schema.lens.chain import LensChain
from headrace.schema.lens.ops import Lens, Op
from headrace.schema.lens.pullback import Absent, ConstantSource, Either, Rebuild, Stored, ValueSource, pull_back
from headrace.schema.pointer import Pointer
from headrace.schema.registry import Registry

#: What extraction, postings and panes make of events; whoever changes what they make raises it.
VERSION = 1
#: The same for the kinds of fields of which more has changed.
_KIND_VERSIONS = {Kind.INTEGER: 3, Kind.DATE: 5}

Sources = Mapping[int, ValueSource]


class Definition:
    """What is derived from the events of a stream, as one revision of its registry says; never changed.

    ``sources[field][version]`` is where the values of a field lie in stored events of a version; there are none for
    versions before ``oldest_version``, from which no lens leads on. ``parts`` holds the same for what measures read
    that is no field, by rollup, measure and part.
    """

    def __init__(self, registry: Registry, search: Search) -> None:
        self.search = search
        self.current_version = registry.current_version
        self.oldest_version = registry.oldest_version
        self._lenses = {version: _lens(document) for version, document in registry.lenses.items()}
        self._filled = {
            version: lens_document.fill_defaults(lens, registry.schemas.get(lens.target, True))
            for version, lens in self._lenses.items()
        }
        self._chain = LensChain(self._lenses, registry.schemas)
        self.sources = {name: self._sources(field.pointer) for name, field in search.fields.items()}
        self.parts = {
            (rollup.name, name, part): self._sources(pointer)
            for rollup in search.rollups.values()
            for name, part, pointer in _parts(rollup)
        }

    @classmethod
    def of(cls, registry: Registry) -> Definition | None:
        """The definition of a stream, or None where it has no search configuration."""
        if registry.search is None:
            return None
        search = search_document.parse_search_document(registry.search, current_version=registry.current_version)
        if isinstance(search, list):
            raise CorruptData(f"a stored search cannot be read: {search[0].reason}", pointer=search[0].pointer)
        return cls(registry, search)

    def promote(self, payload: bytes, version: int) -> bytes:
        """A stored event in the newest shape; raises LensFailure where no lens leads there, or one fails."""
        return self._chain.promote(payload, version, self.current_version)

    def document(self, payload: bytes, version: int) -> Any:
        """The same as a value."""
        return decode_exact(self.promote(payload, version))

    def is_contained(self, name: str) -> bool:
        """Whether ``contains:`` may ask a field."""
        return self.search.fields[name].contains or name in self.search.contains_default_fields

    def is_default(self, name: str) -> bool:
        """Whether bare words ask a field."""
        return any(default.field == name for default in self.search.bare_fields())

    def field_hash(self, name: str, through_version: int) -> str:
        """16 hex digits for what is made of a field in events of versions up to this one."""
        field = self.search.fields[name]
        made = {
            "version": _KIND_VERSIONS.get(field.kind, VERSION),
            "kind": field.kind,
            "lowercase": field.lowercase,
            "exact": field.exact,
            "prefix": field.prefix,
            "positions": field.positions,
            "contains": self.is_contained(name),
            "default": field.kind is Kind.KEYWORD and self.is_default(name),
        }
        return _digest([made, self._origins(self.sources[name], through_version)])

    def rollup_hash(self, name: str, through_version: int) -> str:
        """16 hex digits for what is made of a rollup in events of versions up to this one."""
        rollup = self.search.rollups[name]
        used = {field.name: self.field_hash(field.name, through_version) for field in self.search.used_by(rollup)}
        parts = {
            f"{measure}/{part}": self._origins(self.parts[name, measure, part], through_version)
            for measure, part, _ in _parts(rollup)
        }
        made = {
            "version": VERSION,
            "timestamp": rollup.timestamp,
            "intervals": sorted({interval.millis for interval in rollup.intervals}),
            "dimensions": rollup.dimensions,
            "include": self._described(rollup.include),
            "measures": {name: self._described(measure) for name, measure in rollup.measures.items()},
        }
        return _digest([made, used, parts])

    def _sources(self, pointer: Pointer) -> Sources:
        return pull_back(self._filled, pointer, self.current_version)

    def _described(self, value: Any) -> Any:
        """A measure or a query as plain data; with aliases and default fields resolved."""
        if isinstance(value, msgspec.Struct):
            return {"kind": type(value).__name__, **{name: self._described(v) for name, v in _items(value)}}
        if isinstance(value, Node):
            facts = {f.name: self._described(getattr(value, f.name)) for f in members(value) if f.compare}
            if isinstance(value, Clause):
                facts["field"] = sorted({field.name for field in self.search.fields_of(value)})
            return {"kind": type(value).__name__, **facts}
        return [self._described(part) for part in value] if isinstance(value, tuple) else value

    def _origins(self, sources: Sources, through_version: int) -> dict[str, Any]:
        through_version = max(through_version, 1)  # events from before the first schema fit it
        return {str(version): self._origin(sources, version) for version in sources if version <= through_version}

    def _origin(self, sources: Sources, version: int) -> Any:
        """A source as plain data; a rebuild has the lenses up to the next direct source, and no later ones."""
        source = sources[version]
        if not isinstance(source, Rebuild):
            return _plain(source)
        later = next(
            candidate
            for candidate in sorted(sources)
            if candidate > version and not isinstance(sources[candidate], Rebuild)
        )
        way = [_dump_ops(self._filled[step].ops) for step in range(version, later)]
        return ["rebuild", way, _plain(sources[later])]


def decode_exact(payload: bytes) -> Any:
    """An event as a value, its numbers with all their digits: floats only where these say the same, else decimals."""
    try:
        return _EXACT.decode(payload)
    except msgspec.DecodeError:
        return json.loads(payload, parse_float=_number)


def decode_rounded(payload: bytes) -> Any:
    """An event as a value whose numbers are doubles, as most readers of JSON have them."""
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return json.loads(payload)


def _number(text: str) -> float | Decimal:
    try:
        return exact_number(text)
    except InvalidOperation:
        pass  # it has more digits, or a greater exponent, than an append to a stream with a schema may have
    try:
        return Decimal(text)
    except InvalidOperation:
        nearest = float(text)
        is_tiny = not nearest and text.lower().partition("e")[0].strip("-0.")
        return _TINY if is_tiny else nearest


#: Stands for all numbers that are too small for a decimal: it is not whole, and the nearest double is zero.
_TINY = Decimal("1e-1000")
_EXACT = msgspec.json.Decoder(float_hook=_number)


def _lens(document: Any) -> Lens:
    lens = lens_document.parse(document)
    if isinstance(lens, list):
        raise CorruptData(f"a stored lens cannot be read: {lens[0].reason}", pointer=lens[0].pointer)
    return lens


def _parts(rollup: Rollup) -> Iterator[tuple[str, str, Pointer]]:
    """What measures read that is no field: measure, part, pointer."""
    for name, measure in rollup.measures.items():
        if isinstance(measure, SummaryParts):
            yield from ((name, part, pointer) for part, pointer in measure.pointers())


def _items(struct: msgspec.Struct) -> list[tuple[str, Any]]:
    return [(name, getattr(struct, name)) for name in struct.__struct_fields__]


def _plain(source: ValueSource) -> Any:
    match source:
        case Stored(pointer, conversions):
            return ["stored", pointers.text(pointer), _dump_ops(conversions)]
        case ConstantSource(value):
            return ["constant", value]
        case Either(test, present, absent):
            return ["either", pointers.text(test), _plain(present), _plain(absent)]
    assert isinstance(source, Absent), source
    return ["absent"]


def _dump_ops(ops: tuple[Op, ...]) -> Any:
    return lens_document.dump(Lens("", 0, 0, ops))["ops"]


def _digest(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
