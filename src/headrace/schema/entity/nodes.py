"""The schema of an entity type as frozen values: fields, declarations about them, and merge policies.

Members are named as on the wire, where those with defaults are left out.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import msgspec

Type = Literal["string", "number", "date", "boolean", "array", "object"]
TYPES: tuple[Type, ...] = get_args(Type)
Strategy = Literal["last_write", "highest_priority", "most_specific", "merge_array"]
TieBreaker = Literal["observed_at", "source_priority"]
Collision = Literal["merge", "warn", "reject"]
Scope = Literal["global", "user"]

#: Where an observation comes from; of two that are equal otherwise, the earlier kind wins.
SOURCE_KINDS = ("sensor", "workflow_state", "llm_summary", "human", "import", "sync")
#: The only way to do without an identity rule.
OPT_OUT: Literal["heuristic_canonical_name"] = "heuristic_canonical_name"


class Converter(msgspec.Struct, frozen=True, rename={"from_type": "from", "to_type": "to"}):
    """A function by name that makes a value of another type one of the field's type."""

    from_type: Type
    to_type: Type
    function: str
    deterministic: Literal[True] = True


class Constraints(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits on a value beyond its type."""

    min: int | float | None = None
    max: int | float | None = None
    enum: tuple[str | int | float, ...] = ()
    pattern: str | None = None
    banned: tuple[str | int | float, ...] = ()


class Field(msgspec.Struct, frozen=True, omit_defaults=True, rename={"preserve_case": "preserveCase"}):
    """A field of an entity type."""

    type: Type
    required: bool = False
    validator: str | None = None
    preserve_case: bool = False
    description: str | None = None
    converters: tuple[Converter, ...] = ()
    constraints: Constraints | None = None
    sensitivity_class: Literal["public", "internal", "sensitive", "restricted"] | None = None


class Composite(msgspec.Struct, frozen=True):
    """Fields that identify an entity together."""

    composite: tuple[str, ...]


class TemporalField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field whose value dates an event in the life of the entity."""

    field: str
    event_type: str | None = None


class ReferenceField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field whose value names another entity."""

    field: str
    target_entity_type: str
    relationship_type: str | None = None
    resolve_target: bool = False


class StoreWarning(msgspec.Struct, frozen=True):
    """A warning for entities without any of some fields."""

    code: str
    fields: tuple[str, ...]
    message: str


class Definition(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The fields of an entity type, what identifies an entity of it, and declarations about its fields."""

    fields: dict[str, Field]
    canonical_name_fields: tuple[str | Composite, ...] = ()
    identity_opt_out: Literal["heuristic_canonical_name"] | None = None
    canonical_name_strict: bool = False
    name_collision_policy: Collision = "merge"
    temporal_fields: tuple[TemporalField, ...] = ()
    reference_fields: tuple[ReferenceField, ...] = ()
    aliases: tuple[str, ...] = ()
    query_synonyms: tuple[str, ...] = ()
    identity_search_fields: tuple[str, ...] = ()
    content_field: str | None = None
    store_warnings: tuple[StoreWarning, ...] = ()
    constraint_violation_policy: Literal["reject", "warn"] = "reject"
    duplicate_detection_fields: tuple[str, ...] = ()
    duplicate_detection_threshold: float = 0.85
    agent_instructions: str | None = None

    @property
    def alternatives(self) -> tuple[tuple[str, ...], ...]:
        """The identity rules, the preferred one first; a list of mere names is one rule that needs them all."""
        rules = self.canonical_name_fields
        if not any(isinstance(rule, Composite) for rule in rules):
            names = tuple(rule for rule in rules if isinstance(rule, str))
            return (names,) if names else ()
        return tuple(rule.composite if isinstance(rule, Composite) else (rule,) for rule in rules)

    def dump(self) -> dict[str, Any]:
        """The definition as a JSON object."""
        return _document(self)


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the observations of a field become one value."""

    strategy: Strategy
    tie_breaker: TieBreaker = "observed_at"


DEFAULT_POLICY = Policy("last_write")


class ReducerConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The merge policies of a schema; a field without one has the default."""

    merge_policies: dict[str, Policy]
    observation_source_priority: tuple[str, ...] = ()
    #: The priorities of sources by their names, which count instead of those that came with observations.
    source_priorities: dict[str, int] = {}

    def policy(self, field: str) -> Policy:
        """The policy of a field."""
        return self.merge_policies.get(field, DEFAULT_POLICY)

    def dump(self) -> dict[str, Any]:
        """The configuration as a JSON object."""
        return _document(self)


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """One version of an entity type, global or of one user.

    ``base_version`` is the global version that a user's schema was made from: a field of that version which is missing
    here was removed by the user. A schema without it applies over whatever is global.
    """

    entity_type: str
    schema_version: str
    schema_definition: Definition
    reducer_config: ReducerConfig
    scope: Scope = "global"
    user_id: str | None = None
    metadata: dict[str, Any] = {}
    base_version: str | None = None

    def dump(self) -> dict[str, Any]:
        """The schema as a JSON object."""
        return _document(self)


def _document(node: msgspec.Struct) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(node))
    return document


class Notice(NamedTuple):
    """A remark on something that was accepted: a stable code, a sentence, and the fields it is about."""

    code: str
    message: str
    fields: tuple[str, ...] = ()
    #: The constraint that a value violates, and its value; empty where it is about none.
    constraint: str = ""
    constraint_value: Any = None

    def dump(self) -> dict[str, Any]:
        """The notice as a JSON object."""
        document = {"code": self.code, "message": self.message, "fields": list(self.fields)}
        if self.constraint:
            document |= {"constraint": self.constraint, "constraint_value": self.constraint_value}
        return document
