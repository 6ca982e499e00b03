"""A definition as it is sent, read: its shape, its fields, and what it declares about them; every problem at once."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.schema.entity.declarations import READERS, check_identity, check_names
from headrace.schema.entity.fields import read_fields
from headrace.schema.entity.nodes import OPT_OUT, Definition, ReducerConfig
from headrace.schema.entity.policies import read_config
from headrace.schema.entity.problem import Notice, Place
from headrace.schema.entity.shape import members

IMPLIED = Notice(
    "IDENTITY_OPT_OUT_IMPLIED",
    f"the definition has no canonical_name_fields: it means identity_opt_out: {OPT_OUT}, and names are guessed",
)


class Read(NamedTuple):
    """A definition with its configuration, and what is worth knowing about them."""

    definition: Definition
    reducer_config: ReducerConfig
    notices: list[Notice]


def read(definition: Any, config: Any, defined: Place, configured: Place) -> Read | None:
    """A definition and its configuration, or None where problems were noted at their places."""
    notices: list[Notice] = []
    if isinstance(definition, dict) and definition.keys() == {"fields"}:
        definition = {**definition, "identity_opt_out": OPT_OUT}
        notices.append(IMPLIED)
    found = members(definition, {"fields": read_fields, **READERS}, defined, required=("fields",))
    names = _names(definition)
    if names is not None:
        check_names(found, names, defined)
    if isinstance(definition, dict):
        check_identity(found, defined)
    reducer = read_config(config, names, configured)
    if defined.problems or reducer is None:
        return None
    made = Definition(**found)
    return Read(made, reducer, [*notices, *_odd(made, reducer)])


def _names(definition: Any) -> list[str] | None:
    """The names that fields were given, even where the fields have problems; None where there are no fields at all."""
    fields = definition.get("fields") if isinstance(definition, dict) else None
    return list(fields) if isinstance(fields, dict) else None


def _odd(definition: Definition, reducer: ReducerConfig) -> list[Notice]:
    """Policies that make lists of what is no array."""
    odd = tuple(
        name
        for name, policy in reducer.merge_policies.items()
        if policy.strategy == "merge_array" and definition.fields[name].type != "array"
    )
    message = "merge_array shows a list, though the type of the field is another"
    return [Notice("MERGE_ARRAY_OF_SCALARS", message, odd)] if odd else []
