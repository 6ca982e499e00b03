"""Versions of entity schemas: their numbers, and how far the differences between two schemas move them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from headrace.deadline import check_deadline
from headrace.schema import pointer
from headrace.schema.canonical import same, value_text
from headrace.schema.change import Change, Classification
from headrace.schema.entity.nodes import SOURCE_KINDS, Constraints, Definition, Field, ReducerConfig, Schema

_SYNTAX = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})(?:\.(0|[1-9][0-9]{0,8}))?")


class Bump(IntEnum):
    """How far a change moves the version."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3


class Version(NamedTuple):
    """A version; the order of versions is that of their numbers."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    def bumped(self, bump: Bump) -> Version:
        """The next version of this kind."""
        if bump is Bump.MAJOR:
            return Version(self.major + 1, 0)
        if bump is Bump.MINOR:
            return Version(self.major, self.minor + 1)
        return self._replace(patch=self.patch + 1) if bump is Bump.PATCH else self


def parse_version(text: object) -> Version | None:
    """The version that ``1.2`` or ``1.2.3`` means, or None where it is none."""
    match = _SYNTAX.fullmatch(text) if isinstance(text, str) else None
    return Version(*(int(part or 0) for part in match.groups())) if match else None


def distance(old: Version, new: Version) -> Bump:
    """What kind of step leads from one version to a later one."""
    if new <= old:
        return Bump.NONE
    if new.major > old.major:
        return Bump.MAJOR
    return Bump.MINOR if new.minor > old.minor else Bump.PATCH


def next_free_version(base: Version, bump: Bump, taken: Collection[Version] = ()) -> Version:
    """The first version after a base, by steps of this kind, that nobody has taken."""
    version = base.bumped(bump)
    while version in taken and bump is not Bump.NONE:
        version = version.bumped(bump)
    return version


class Difference(NamedTuple):
    """A change, and how far it alone moves the version."""

    change: Change
    bump: Bump


class Site(NamedTuple):
    """The path of a difference in a schema; each method makes a difference of one class and bump."""

    path: pointer.Pointer

    def breaks(self, what: str, reason: str) -> Difference:
        """Something that worked may not work any more."""
        return self._difference(what, Classification.DESTRUCTIVE, reason, Bump.MAJOR)

    def shifts(self, what: str, reason: str) -> Difference:
        """Snapshots may show other values; nothing is lost."""
        return self._difference(what, Classification.DESTRUCTIVE, reason, Bump.MINOR)

    def widens(self, what: str, reason: str) -> Difference:
        """More is accepted than before."""
        return self._difference(what, Classification.WIDENING, reason, Bump.MINOR)

    def adds(self, what: str, reason: str) -> Difference:
        """Something is new, or does more."""
        return self._difference(what, Classification.ADDITIVE, reason, Bump.MINOR)

    def rewords(self, what: str, reason: str) -> Difference:
        """Only people see the difference."""
        return self._difference(what, Classification.IDENTICAL, reason, Bump.PATCH)

    def _difference(self, what: str, classification: Classification, reason: str, bump: Bump) -> Difference:
        return Difference(Change(pointer.text(self.path), what, classification, reason), bump)


def field_differences(name: str, old: Field | None, new: Field | None, rejects: bool) -> Iterator[Difference]:
    """Every difference of a field, which may be missing on one side; ``rejects`` tells whether violations reject."""
    check_deadline()
    site = Site(("schema_definition", "fields", name))
    if old is None and new is not None:
        yield _added(site, name, new)
    elif new is None:
        yield site.breaks("field_removed", f"{name} is hidden; its observations stay, and it can be added again")
    elif old is not None and old != new:
        yield from _revised(site, name, old, new, rejects)


def _added(site: Site, name: str, new: Field) -> Difference:
    if new.required:
        return site.breaks("required_field_added", f"{name} is new and required, and no entity has it")
    return site.adds("field_added", f"{name} is new")


def _revised(site: Site, name: str, old: Field, new: Field, rejects: bool) -> Iterator[Difference]:
    if old.type != new.type:
        yield site.breaks("type_changed", f"{name} was a {old.type} and is a {new.type}")
    if new.required and not old.required:
        yield site.breaks("field_required", f"{name} becomes required")
    if old.required and not new.required:
        yield site.widens("field_optional", f"{name} is no longer required")
    yield from _converters(site, name, old, new)
    yield from _validator(site, name, old, new)
    yield from _constraints(site, name, old.constraints, new.constraints, rejects)
    if old.preserve_case != new.preserve_case:
        yield site.rewords("case_changed", f"{name} {'keeps' if new.preserve_case else 'loses'} its case in names")
    if (old.description, old.sensitivity_class) != (new.description, new.sensitivity_class):
        yield site.rewords("description_changed", f"{name} is described otherwise")


def _converters(site: Site, name: str, old: Field, new: Field) -> Iterator[Difference]:
    was, now = old.converters, new.converters
    if was == now:
        return
    if now[: len(was)] == was:
        added = ", ".join(converter.function for converter in now[len(was) :])
        yield site.widens("converter_added", f"{name} takes what {added} converts")
    elif all(converter in now for converter in was):
        yield site.breaks("converters_reordered", f"{name} tries other converters first")
    else:
        gone = ", ".join(converter.function for converter in was if converter not in now)
        yield site.breaks("converter_removed", f"{name} no longer takes what {gone} converts")


def _validator(site: Site, name: str, old: Field, new: Field) -> Iterator[Difference]:
    if old.validator == new.validator:
        return
    if new.validator is None:
        yield site.widens("validator_removed", f"{name} takes more than {old.validator} accepts")
    else:
        yield site.breaks("validator_changed", f"{name} takes only what {new.validator} accepts")


def _constraints(
    site: Site, name: str, old: Constraints | None, new: Constraints | None, rejects: bool
) -> Iterator[Difference]:
    was, now = old or Constraints(), new or Constraints()
    if same_limits(was, now):
        return
    if _looser(was, now):
        yield site.widens("constraint_loosened", f"{name} takes values that it did not")
    elif rejects:
        yield site.breaks("constraint_tightened", f"{name} rejects values that it took")
    else:
        yield site.adds("constraint_tightened", f"{name} warns of values that it took")


def same_limits(old: Constraints, new: Constraints) -> bool:
    """Whether two constraints are equal, in whatever order and spelling."""
    return same(_plain(old), _plain(new))


def _plain(limits: Constraints) -> list[object]:
    enum, banned = (sorted({*map(value_text, values)}) for values in (limits.enum, limits.banned))
    return [limits.min, limits.max, enum, limits.pattern, banned]


def _looser(old: Constraints, new: Constraints) -> bool:
    """Whether every value that was allowed still is."""
    return (
        (new.min is None or (old.min is not None and new.min <= old.min))
        and (new.max is None or (old.max is not None and new.max >= old.max))
        and (not new.enum or (bool(old.enum) and set(old.enum) <= set(new.enum)))
        and new.pattern in (None, old.pattern)
        and set(new.banned) <= set(old.banned)
    )


#: Declarations with an effect, and those that only people read.
_EFFECTIVE = (
    *("temporal_fields", "reference_fields", "identity_search_fields"),
    *("duplicate_detection_fields", "duplicate_detection_threshold"),
)
_DESCRIPTIVE = ("query_synonyms", "content_field", "store_warnings", "agent_instructions")


def differences(old: Schema, new: Schema) -> list[Difference]:
    """Every difference in meaning; two spellings of the same schema have none."""
    was, now = old.schema_definition, new.schema_definition
    rejects = now.constraint_violation_policy == "reject"
    all_differences = [
        difference
        for name in {**was.fields, **now.fields}
        for difference in field_differences(name, was.fields.get(name), now.fields.get(name), rejects)
    ]
    all_differences += _identity(was, now)
    all_differences += _declarations(was, now)
    all_differences += _reducer(old.reducer_config, new.reducer_config, was.fields.keys() & now.fields.keys())
    if not same(old.metadata, new.metadata):
        all_differences.append(Site(("metadata",)).rewords("metadata_changed", "the metadata is another"))
    return all_differences


def bump_of(all_differences: Iterable[Difference]) -> Bump:
    """How far differences move the version together."""
    return max((difference.bump for difference in all_differences), default=Bump.NONE)


def changes_identity(old: Definition, new: Definition) -> bool:
    """Whether the same values may now give another canonical name, and so another entity."""
    return _rule(old) != _rule(new)


def _rule(definition: Definition) -> object:
    """What names depend on: the rules, strictness, and the fields that keep their case."""
    rules = definition.alternatives
    kept = sorted({name for names in rules for name in names if definition.fields[name].preserve_case})
    return rules, definition.canonical_name_strict, kept


def _identity(old: Definition, new: Definition) -> Iterator[Difference]:
    site = Site(("schema_definition", "canonical_name_fields"))
    if changes_identity(old, new):
        yield site.breaks(
            "identity_changed", "entities are told apart by another rule; those that exist keep their ids"
        )
    elif old.identity_opt_out != new.identity_opt_out:
        yield Site(("schema_definition", "identity_opt_out")).rewords("opt_out_changed", "the rule stays as it was")
    if old.name_collision_policy != new.name_collision_policy:
        policy_site = Site(("schema_definition", "name_collision_policy"))
        yield _tightened(policy_site, "collision_policy_changed", old.name_collision_policy, new.name_collision_policy)


def _tightened(site: Site, what: str, old: str, new: str) -> Difference:
    reason = f"was {old} and is {new}"
    return site.breaks(what, reason) if new == "reject" else site.widens(what, reason)


def _declarations(old: Definition, new: Definition) -> Iterator[Difference]:
    top = ("schema_definition",)
    if old.constraint_violation_policy != new.constraint_violation_policy:
        policies = (old.constraint_violation_policy, new.constraint_violation_policy)
        yield _tightened(Site((*top, "constraint_violation_policy")), "violation_policy_changed", *policies)
    removed, added = ({*left.aliases} - {*right.aliases} for left, right in ((old, new), (new, old)))
    if removed:
        yield Site((*top, "aliases")).breaks("alias_removed", f"{', '.join(sorted(removed))} names this type no longer")
    if added:
        yield Site((*top, "aliases")).adds("alias_added", f"{', '.join(sorted(added))} names this type too")
    for name in _EFFECTIVE:
        if getattr(old, name) != getattr(new, name):
            yield Site((*top, name)).adds("declaration_changed", f"{name} says something else")
    for name in _DESCRIPTIVE:
        if getattr(old, name) != getattr(new, name):
            yield Site((*top, name)).rewords("wording_changed", f"{name} says something else")


def _reducer(old: ReducerConfig, new: ReducerConfig, shared: Iterable[str]) -> Iterator[Difference]:
    for name in sorted(shared):
        was, now = old.policy(name), new.policy(name)
        if was != now:
            reason = f"{name} was merged by {was.strategy}/{was.tie_breaker}, now by {now.strategy}/{now.tie_breaker}"
            yield Site(("reducer_config", "merge_policies", name)).shifts("policy_changed", reason)
    was_kinds, now_kinds = (config.observation_source_priority or SOURCE_KINDS for config in (old, new))
    if was_kinds != now_kinds:
        site = Site(("reducer_config", "observation_source_priority"))
        yield site.shifts("source_priority_changed", "kinds of sources rank otherwise")
    if old.source_priorities != new.source_priorities:
        site = Site(("reducer_config", "source_priorities"))
        yield site.shifts("source_priority_changed", "sources have other priorities")
