"""How one version of a schema differs from another, and how far that moves the version.

==============================================================  =====  ===========
change                                                          bump   class
==============================================================  =====  ===========
field removed, type changed                                     major  destructive
field added that is required, field becomes required            major  destructive
converter removed, or others tried before it                    major  destructive
identity rule changed, or the case of a field in it             major  destructive
validator set or changed, constraint tightened, alias removed   major  destructive
names that exist, or constraints, now reject                    major  destructive
field added that is optional, alias added                       minor  additive
converter added, field no longer required                       minor  widening
validator gone, constraint loosened, rejections gone            minor  widening
merge policy or order of source kinds changed                   minor  destructive
other declarations changed: time, references, search            minor  additive
descriptions, warnings, synonyms, metadata                      patch  identical
==============================================================  =====  ===========

A merge policy is a minor change though snapshots may show other values: no observation is lost, and the old policy
can be had back by activating its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.schema.entity.difference import Difference, Site
from headrace.schema.entity.nodes import SOURCE_KINDS, Definition, ReducerConfig, Schema
from headrace.schema.entity.revision import field_differences
from headrace.schema.entity.semver import Bump
from headrace.schema.equality import same

#: Declarations that do something beside the fields, and those that only people read.
_WORKING = (
    *("temporal_fields", "reference_fields", "identity_search_fields"),
    *("duplicate_detection_fields", "duplicate_detection_threshold"),
)
_WORDS = ("query_synonyms", "content_field", "store_warnings", "agent_instructions")


def differences(old: Schema, new: Schema) -> list[Difference]:
    """Every difference that means something; two spellings of the same thing have none."""
    was, now = old.schema_definition, new.schema_definition
    rejects = now.constraint_violation_policy == "reject"
    found = [
        difference
        for name in {**was.fields, **now.fields}
        for difference in field_differences(name, was.fields.get(name), now.fields.get(name), rejects)
    ]
    found += _identity(was, now)
    found += _declarations(was, now)
    found += _reducer(old.reducer_config, new.reducer_config, was.fields.keys() & now.fields.keys())
    if not same(old.metadata, new.metadata):
        found.append(Site(("metadata",)).rewords("metadata_changed", "the metadata is another"))
    return found


def bump_of(found: Iterable[Difference]) -> Bump:
    """How far differences move the version together."""
    return max((difference.bump for difference in found), default=Bump.NONE)


def rekeys(old: Definition, new: Definition) -> bool:
    """Whether what was given for an entity may now make another name, and so another entity."""
    return _rule(old) != _rule(new)


def _rule(definition: Definition) -> object:
    """What decides on names: the rule, and the fields in it that keep their case."""
    rules = definition.alternatives
    kept = sorted({name for names in rules for name in names if definition.fields[name].preserve_case})
    return rules, definition.canonical_name_strict, kept


def _identity(old: Definition, new: Definition) -> Iterator[Difference]:
    site = Site(("schema_definition", "canonical_name_fields"))
    if rekeys(old, new):
        yield site.breaks(
            "identity_changed", "entities are told apart by another rule; those that exist keep their ids"
        )
    elif old.identity_opt_out != new.identity_opt_out:
        yield Site(("schema_definition", "identity_opt_out")).rewords("opt_out_changed", "the rule stays as it was")
    if old.name_collision_policy != new.name_collision_policy:
        place = Site(("schema_definition", "name_collision_policy"))
        yield _tightened(place, "collision_policy_changed", old.name_collision_policy, new.name_collision_policy)


def _tightened(site: Site, what: str, old: str, new: str) -> Difference:
    reason = f"was {old} and is {new}"
    return site.breaks(what, reason) if new == "reject" else site.widens(what, reason)


def _declarations(old: Definition, new: Definition) -> Iterator[Difference]:
    top = ("schema_definition",)
    if old.constraint_violation_policy != new.constraint_violation_policy:
        policies = (old.constraint_violation_policy, new.constraint_violation_policy)
        yield _tightened(Site((*top, "constraint_violation_policy")), "violation_policy_changed", *policies)
    gone, come = ({*one.aliases} - {*other.aliases} for one, other in ((old, new), (new, old)))
    if gone:
        yield Site((*top, "aliases")).breaks("alias_removed", f"{', '.join(sorted(gone))} names this type no longer")
    if come:
        yield Site((*top, "aliases")).adds("alias_added", f"{', '.join(sorted(come))} names this type too")
    for name in _WORKING:
        if getattr(old, name) != getattr(new, name):
            yield Site((*top, name)).adds("declaration_changed", f"{name} says something else")
    for name in _WORDS:
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
