"""What a search field reads of the value that it is bound to, for following it through a lens."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.deadline import check_deadline
from headrace.errors import CorruptData
from headrace.query import search_document
from headrace.query.search import Field, Kind, Rollup, Search, SummaryParts
from headrace.query.values import NOT_MILLISECONDS, canonical
from headrace.schema import pointer as pointers
from headrace.schema.apply import CarriedSearch
from headrace.schema.change import Change, Classification
from headrace.schema.containment.scalars import highest, lowest
from headrace.schema.lens.carry import Carried, CarryEffect, Reader, ValueReader, may_read
from headrace.schema.lens.chain import Crossings
from headrace.schema.lens.conversions import DATE_TIME, list_finite_values
from headrace.schema.lens.ops import Convert, Lens
from headrace.schema.lens.pullback import Stored, pull_back
from headrace.schema.plan import ValueImpact
from headrace.schema.pointer import Pointer
from headrace.schema.registry import Registry
from headrace.schema.shape.edit import value_at
from headrace.schema.shape.model import INTEGRAL, Alternative, Boolean, Number, Text
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root

#: Years before it have a text in RFC 3339 that is no date.
_YEAR_ONE_MS = -62_135_596_800_000
#: Kinds whose values have the same text in either case. Upper case makes an S of the long s (U+017F).
_CASELESS = {
    "lowercase": {Kind.INTEGER, Kind.FLOAT, Kind.DATE, Kind.BOOL},
    "uppercase": {Kind.INTEGER, Kind.FLOAT, Kind.DATE},
}


class FieldReader(Reader, frozen=True):
    """Reads the values of a search field."""

    kind: Kind
    lowercase: bool

    @classmethod
    def of(cls, field: Field) -> FieldReader:
        """The reader of a field."""
        return cls(field.kind, field.lowercase)

    def values(self, value: Any) -> list[Any]:
        """The canonical values, in order; what is inside objects is none."""
        if isinstance(value, list):
            return [reading for element in value for reading in self.values(element)]
        reading = canonical(self._field, value)
        return [] if reading is None else [(type(reading), reading)]

    def reads(self, alternative: Alternative) -> bool:
        """Whether some value of one kind is a value of the field."""
        match alternative:
            case Boolean():
                return self.kind is Kind.BOOL
            case Number() | Text() if (finite_values := list_finite_values(alternative)) is not None:
                return any(map(self.values, finite_values))
            case Number():
                return self._reads_number(alternative)
            case Text():
                return self._reads_text(alternative)
        return False

    def _reads_number(self, number: Number) -> bool:
        if self.kind is not Kind.INTEGER:
            return self.kind in {Kind.FLOAT, Kind.DATE}
        low, high = lowest(number), highest(number)
        if low is None or high is None:
            return True
        return math.ceil(low.value) <= math.floor(high.value)

    def _reads_text(self, text: Text) -> bool:
        if self.kind in {Kind.KEYWORD, Kind.TEXT}:
            return True
        if DATE_TIME in text.formats:
            return self.kind is Kind.DATE
        return text.high != 0

    def keeps_all(self, op: Convert, alternative: Alternative) -> bool:
        """Whether the field has the same values before and after a conversion of values too many to list."""
        if super().keeps_all(op, alternative) or (
            isinstance(alternative, Text) and self.kind in _CASELESS.get(op.forward.builtin or "", ())
        ):
            return True
        if not isinstance(alternative, Number) or alternative.integer < INTEGRAL:
            return False
        low = lowest(alternative)
        match op.forward.builtin, self.kind:
            case "int_to_string", Kind.INTEGER | Kind.FLOAT | Kind.BOOL:
                return True
            case "int_to_string", Kind.DATE:
                return not any(_has_digits(alternative, count) for count in NOT_MILLISECONDS)
            case "unix_millis_to_rfc3339", Kind.BOOL:
                return True
            case "unix_millis_to_rfc3339", Kind.DATE:
                return low is not None and low.value >= _YEAR_ONE_MS
        return False

    @property
    def _field(self) -> Field:
        return Field(name="", kind=self.kind, bindings=(), lowercase=self.lowercase)


def _has_digits(number: Number, count: int) -> bool:
    """Whether a range of whole numbers reaches into the positive ones of so many digits."""
    low, high = lowest(number), highest(number)
    return (low is None or low.value < 10**count) and (high is None or high.value >= 10 ** (count - 1))


VALUE_READER = ValueReader()


def carry_search(old: Registry, wanted: Any, new: Registry, crossings: Crossings) -> CarriedSearch:
    """The search configuration that a change leads to, from the valid one that it asks for.

    Bindings that ``old`` has keep their meaning: the newest is read in the shape of its current version. A binding that
    comes with the change is read in the shape of the version that it names. One for the newest version is taken as is.
    """
    return _SearchCarrier(old, wanted, new, crossings).result()


def parse_stored(search: Any, version: int) -> Search:
    """A stored search configuration."""
    parsed = search_document.parse_search_document(search, current_version=version)
    if isinstance(parsed, list):
        raise CorruptData(f"a stored search cannot be read: {parsed[0].reason}", pointer=parsed[0].pointer)
    return parsed


class _SearchCarrier:
    """One search configuration on its way to the newest version."""

    def __init__(self, old: Registry, wanted: Any, new: Registry, crossings: Crossings) -> None:
        self._old, self._new, self._crossings = old, new, crossings
        self._document = copy.deepcopy(wanted)
        self._search = parse_stored(wanted, new.current_version)
        self._stored = None if old.search is None else parse_stored(old.search, old.current_version)
        self._changes: list[Change] = []
        self._effects: dict[str, Carried] = {}

    def result(self) -> CarriedSearch:
        for name, field in self._search.fields.items():
            self._carry_field(name, field)
        impact = [self._impact(("search", "fields", name), each) for name, each in self._effects.items()]
        impact += [each for rollup in self._search.rollups.values() for each in self._carry_rollup(rollup)]
        self._note_primary_timestamp()
        return CarriedSearch(self._document, tuple(self._changes), tuple(impact))

    @property
    def _advances(self) -> bool:
        return self._new.current_version > self._old.current_version

    def _carry_field(self, name: str, field: Field) -> None:
        check_deadline()
        prior = None if self._stored is None else self._stored.fields.get(name)
        reader = FieldReader.of(field)
        newest = field.bindings[-1]
        last = Carried(newest.pointer)
        if newest.version < self._new.current_version:
            is_stored = prior is not None and prior.bindings == field.bindings
            first = self._old.current_version if is_stored else max(newest.version, self._new.oldest_version)
            for version in range(first, self._new.current_version):
                before, last = last, self._crossings[version].carry(last.pointer, reader)
                if last.pointer != before.pointer:
                    self._bind(name, version + 1, before.pointer, last.pointer)
        if not self._advances or prior is None or FieldReader.of(prior) != reader:
            return
        crossing = self._crossings[self._old.current_version]
        if crossing.carry(prior.pointer, reader) != last:
            last = crossing.compare(prior.pointer, last.pointer, reader)
        if last.effect is not None:
            self._effects[name] = last

    def _bind(self, name: str, version: int, before: Pointer, after: Pointer) -> None:
        where = pointers.text(after)
        self._document["fields"][name]["bindings"].append({"version": version, "jsonPointer": where})
        self._note_move(("search", "fields", name, "bindings"), version, before, after)

    def _note_move(self, path: Pointer, version: int, before: Pointer, after: Pointer) -> None:
        shown = pointers.text(before) or "the event"
        reason = f"{'.'.join(path[:3])} follows its data: {shown} is {pointers.text(after)} from version {version} on"
        self._changes.append(Change(pointers.text(path), "binding_moved", Classification.ADDITIVE, reason))

    def _carry_rollup(self, rollup: Rollup) -> Iterator[ValueImpact]:
        prior = None if self._stored is None else self._stored.rollups.get(rollup.name)
        if prior is None:
            return
        parts = list(self._carry_parts(rollup, prior))
        if not self._advances:
            return
        measured = {name for measure in rollup.measures.values() for name in measure.fields} | {rollup.timestamp}
        carried_fields = {field.name: self._effects.get(field.name) for field in self._search.used_by(rollup)}
        effects = {name: effect for name, effect in carried_fields.items() if effect is not None}
        lost = any(effect.effect is CarryEffect.LOST and name in measured for name, effect in effects.items())
        causes = [*effects.values(), *parts]
        if causes:
            lost = lost or any(cause.effect is CarryEffect.LOST for cause in causes[len(effects) :])
            cause = Carried((), CarryEffect.LOST if lost else CarryEffect.CHANGED, causes[0].op)
            yield self._impact(("search", "rollups", rollup.name), cause)

    def _carry_parts(self, rollup: Rollup, prior: Rollup) -> Iterator[Carried]:
        """Move the pointers of summaries that events hold; those whose values change or are lost."""
        for name, measure in rollup.measures.items():
            before = prior.measures.get(name)
            if not isinstance(measure, SummaryParts) or not isinstance(before, SummaryParts):
                continue
            stored = dict(before.pointers())
            for part, pointer in measure.pointers():
                if part in stored:
                    path = ("search", "rollups", rollup.name, "measures", name, f"{part}JsonPointer")
                    carried = self._carry_part(path, stored[part], pointer)
                    if carried.effect is not None:
                        yield carried

    def _carry_part(self, path: Pointer, stored: Pointer, pointer: Pointer) -> Carried:
        """Move one pointer of a summary; one that names where the stored one was in an earlier version means that."""
        start = stored if pointer == stored or self._was_at(pointer, stored) else pointer
        carried = Carried(start)
        if self._advances:
            crossing = self._crossings[self._old.current_version]
            follows = start == stored
            carried = crossing.carry(start, VALUE_READER) if follows else crossing.compare(stored, start, VALUE_READER)
            if carried.pointer != start:
                self._note_move(path, self._new.current_version, start, carried.pointer)
        _, _, rollup, _, measure, key = path
        self._document["rollups"][rollup]["measures"][measure][key] = pointers.text(carried.pointer)
        return carried

    def _was_at(self, pointer: Pointer, stored: Pointer) -> bool:
        """Whether a pointer leads to nothing now, and led to what the stored one leads to in an earlier version."""
        old = self._old
        if may_read(value_at(shape_of(Root(old.current_schema).source), pointer), VALUE_READER):
            return False
        versions = range(old.oldest_version, old.current_version)
        lenses = {version: Lens("", version, version + 1, self._crossings[version].ops) for version in versions}
        sources = pull_back(lenses, stored, old.current_version)
        return any(isinstance(source, Stored) and source.pointer == pointer for source in sources.values())

    def _impact(self, path: Pointer, carried: Carried) -> ValueImpact:
        assert carried.effect is not None, "only what changes has an impact"
        version = self._new.current_version
        what = "has no values any more" if carried.effect is CarryEffect.LOST else "has other values"
        return ValueImpact(
            subject=pointers.text(path),
            effect=carried.effect,
            from_version=version,
            reason=f"{'.'.join(path)} {what} from version {version} on",
            op=f"/lens{carried.op}" if carried.op else None,
        )

    def _note_primary_timestamp(self) -> None:
        name = self._search.primary_timestamp
        if name in self._effects and self._effects[name].effect is CarryEffect.LOST:
            reason = f"the primary timestamp {name} has no values any more: no event has a time"
            path = "/search/primaryTimestampField"
            self._changes.append(Change(path, "primary_timestamp_lost", Classification.DESTRUCTIVE, reason))


class EmptiedField(NamedTuple):
    """A field that an earlier change left without values, from which version on, and the binding that mends it."""

    field: str
    from_version: int
    version: int
    pointer: str

    def dump(self) -> dict[str, Any]:
        """The finding as a JSON object."""
        binding = {"version": self.version, "jsonPointer": self.pointer}
        return {"field": self.field, "from_version": self.from_version, "binding": binding}


def emptied_fields(registry: Registry) -> list[EmptiedField]:
    """The fields whose values a lens moved away from their binding."""
    if registry.search is None or not registry.lenses:
        return []
    crossings = Crossings(registry)
    search = parse_stored(registry.search, registry.current_version)
    findings = (_find_emptied(registry, field, crossings) for field in search.fields.values())
    return [finding for finding in findings if finding is not None]


def _find_emptied(registry: Registry, field: Field, crossings: Crossings) -> EmptiedField | None:
    newest, reader = field.bindings[-1], FieldReader.of(field)
    since = None
    where = newest.pointer
    for version in range(max(newest.version, registry.oldest_version), registry.current_version):
        carried = crossings[version].carry(where, reader)
        if since is None:
            if carried.pointer == where or carried.effect is CarryEffect.LOST:
                continue
            if crossings[version].compare(where, where, reader).effect is not CarryEffect.LOST:
                continue
            since = version + 1
        elif carried.effect is CarryEffect.LOST:
            return None
        where = carried.pointer
    if since is None or where == newest.pointer:
        return None
    return EmptiedField(field.name, since, registry.current_version, pointers.text(where))
