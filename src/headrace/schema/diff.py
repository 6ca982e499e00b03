"""The changes between two JSON Schemas, each classified.

Rules classify each change; containment overrules them. Where it proves that every event that was valid stays
valid, no change is breaking; where it does not, at least one is. Where all changes are identical, both schemas are
proven to admit the same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from headrace.deadline import check_deadline
from headrace.schema import keyword_changes, pointer
from headrace.schema.canonical import same
from headrace.schema.change import Change, Classification, worst
from headrace.schema.containment import find_schema_gaps
from headrace.schema.document import Validator
from headrace.schema.keyword_changes import Finding, Node, SchemaLocation, SchemaPair, describe_change
from headrace.schema.shape.source import Root, Source

MAX_CHANGES = 1000

_RULES = (
    keyword_changes.compare_types,
    keyword_changes.compare_choices,
    keyword_changes.compare_bounds,
    keyword_changes.compare_constraints,
    keyword_changes.compare_properties,
    keyword_changes.compare_other_members,
    keyword_changes.compare_elements,
    keyword_changes.compare_alternatives,
)
_RULED = {
    *("type", "enum", "const", *keyword_changes.LOWER, *keyword_changes.UPPER, *keyword_changes.CONSTRAINTS),
    *("properties", "required", "additionalProperties", "patternProperties", "prefixItems", "items", "anyOf", "allOf"),
}
#: Keywords that assert nothing themselves but change the meaning of others.
_NAMING = {"$schema", "$id", "id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"}
#: Compared where they are used.
_DEFINITIONS = {"$defs", "definitions"}


def diff(old: Any, new: Any) -> tuple[Change, ...]:
    """Every change from one valid schema to another; none where they are the same JSON value."""
    if same(old, new):
        return ()
    unproven = find_schema_gaps(old, new, judge)
    changes = tuple(_SchemaComparison(old, new).changes(proven=not unproven))
    if unproven and not worst(changes).breaking:
        changes += tuple(
            SchemaLocation(gap.pointer, gap.keyword).change("not_contained", Classification.DESTRUCTIVE, gap.reason)
            for gap in unproven
        )
    elif worst(changes) is Classification.IDENTICAL:
        changes = changes or (_rewritten_change(),)
        if find_schema_gaps(new, old, judge):
            changes += (SchemaLocation().change("more_allowed", Classification.WIDENING, "may be more than before"),)
    return _limit_changes(changes)


def _rewritten_change() -> Change:
    return SchemaLocation().change("annotation_changed", Classification.IDENTICAL, "the schema is written differently")


def _limit_changes(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """All changes or, where they are very many, the worst of them and how many more there are."""
    if len(changes) <= MAX_CHANGES:
        return changes
    ranked = sorted(changes, key=lambda change: not change.classification.breaking)
    kept, left = ranked[:MAX_CHANGES], ranked[MAX_CHANGES:]
    return (*kept, Change("", "more_changes", worst(left), f"the event: and {len(left)} more changes", ""))


def judge(schema: Any) -> Callable[[Any], bool]:
    """An oracle for single values: a validator of the schema."""
    return Validator(schema).accepts


class _SchemaComparison:
    """Compares two schema documents by the rules, location by location.

    A definition that is used several times is compared where it is met first.
    """

    def __init__(self, old: Any, new: Any) -> None:
        self._old, self._new = Root(old), Root(new)
        self._followed: set[tuple[int, int]] = set()

    def changes(self, *, proven: bool) -> Iterator[Change]:
        pending = [SchemaPair(self._old.schema, self._new.schema, SchemaLocation(proven=proven))]
        while pending:
            check_deadline()
            findings = list(self._findings(pending.pop()))
            yield from (finding for finding in findings if isinstance(finding, Change))
            pending.extend(reversed([finding for finding in findings if isinstance(finding, SchemaPair)]))

    def _findings(self, pair: SchemaPair) -> Iterator[Finding]:
        """The findings at one location, without descending."""
        old, new = self._old.keywords(pair.old), self._new.keywords(pair.new)
        targets = self._targets(pair, old.pop("$ref", None), new.pop("$ref", None))
        if targets is not None:
            yield from self._once(targets)
            if targets.old is pair.old or targets.new is pair.new:
                return
        if pair.old is False or pair.new is False:
            yield from _compare_false_schemas(*pair)
            return
        for rule in _RULES:
            yield from rule(old, new, pair.location)
        for keyword in {**new, **old}:
            if keyword not in _RULED and not _agree(keyword, old, new):
                yield pair.location.changed(keyword, old, new)
        yield from self._annotations(pair)

    def _targets(self, pair: SchemaPair, before: Any, after: Any) -> SchemaPair | None:
        """The schemas to compare instead where a side is a reference."""
        old = self._old.resolve(before)
        new = self._new.resolve(after)
        if old is None and new is None:
            return None
        steps = pointer.parse(unquote(after[1:])) if new is not None else None
        location = pair.location if steps is None else pair.location._replace(schema=steps)
        return SchemaPair(_schema(old, pair.old), _schema(new, pair.new), location)

    def _once(self, targets: SchemaPair) -> Iterator[SchemaPair]:
        key = id(targets.old), id(targets.new)
        if key not in self._followed:
            self._followed.add(key)
            yield targets

    def _annotations(self, pair: SchemaPair) -> Iterator[Change]:
        """Changes of keywords that assert nothing."""
        old, new = (side if isinstance(side, dict) else {} for side in pair[:2])
        asserting = {*self._old.keywords(old), *self._new.keywords(new), "$ref", *_DEFINITIONS}
        for keyword in {**new, **old}:
            if keyword in asserting or _agree(keyword, old, new):
                continue
            if keyword in _NAMING:
                yield pair.location.changed(keyword, old, new)
            else:
                reason = f"{describe_change(keyword, old, new)}, which no event is held to"
                yield pair.location.change("annotation_changed", Classification.IDENTICAL, reason, keyword)


def _schema(source: Source | None, otherwise: Any) -> Any:
    return otherwise if source is None else source.schema


def _agree(keyword: str, old: Node, new: Node) -> bool:
    return keyword in old and keyword in new and same(old[keyword], new[keyword])


def _compare_false_schemas(old: Any, new: Any, location: SchemaLocation) -> Iterator[Change]:
    if old is False and new is not False:
        yield location.change("schema_opened", Classification.WIDENING, "nothing was allowed here, now something is")
    elif new is False and old is not False:
        yield location.change("schema_closed", Classification.DESTRUCTIVE, "nothing is allowed here any more")
