"""A definition without the declarations about fields that are gone."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.schema.entity.nodes import OPT_OUT, Composite, Definition, ReducerConfig
from headrace.schema.entity.problem import Notice


def pruned(definition: Definition) -> tuple[Definition, list[Notice]]:
    """The definition with declarations only about fields it has, and what that changes about names."""
    names = definition.fields
    kept: dict[str, Any] = {
        "canonical_name_fields": _rules(definition),
        "temporal_fields": tuple(declared for declared in definition.temporal_fields if declared.field in names),
        "reference_fields": tuple(declared for declared in definition.reference_fields if declared.field in names),
        "store_warnings": tuple(
            msgspec.structs.replace(warning, fields=left)
            for warning in definition.store_warnings
            if (left := tuple(name for name in warning.fields if name in names))
        ),
    }
    for option in ("identity_search_fields", "duplicate_detection_fields"):
        kept[option] = tuple(name for name in getattr(definition, option) if name in names)
    if definition.content_field not in names:
        kept["content_field"] = None
    cut = msgspec.structs.replace(definition, **kept)
    return identifiable(cut, cut.canonical_name_fields != definition.canonical_name_fields)


def identifiable(definition: Definition, changed: bool = True) -> tuple[Definition, list[Notice]]:
    """The definition with an identity that is coherent: without a rule, names are guessed."""
    if definition.canonical_name_fields:
        rules = " or ".join(" and ".join(names) for names in definition.alternatives)
        return definition, [Notice("IDENTITY_RULE_CHANGED", f"entities are told apart by {rules}")] if changed else []
    guessed = msgspec.structs.replace(
        definition,
        identity_opt_out=OPT_OUT,
        canonical_name_strict=False,
        name_collision_policy="merge",
    )
    if guessed == definition:
        return definition, []
    return guessed, [Notice("IDENTITY_OPT_OUT_IMPLIED", "there is no identity rule any more, and names are guessed")]


def pruned_config(config: ReducerConfig, definition: Definition) -> ReducerConfig:
    """The configuration with policies only of fields that there are."""
    kept = {name: policy for name, policy in config.merge_policies.items() if name in definition.fields}
    return msgspec.structs.replace(config, merge_policies=kept)


def _rules(definition: Definition) -> tuple[str | Composite, ...]:
    """The identity rules with the fields that are left; a rule of which none is left is gone."""
    found: list[str | Composite] = []
    for rule in definition.canonical_name_fields:
        if isinstance(rule, Composite):
            left = tuple(name for name in rule.composite if name in definition.fields)
            found += [Composite(left)] if left else []
        elif rule in definition.fields:
            found.append(rule)
    return tuple(found)
