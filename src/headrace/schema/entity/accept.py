"""Accept an entity: split its members into fields and fragments, check constraints, and find its identity.

Nothing is lost in a split: ``rejoin_fragments(fields, fragments)`` returns exactly the members that were split. Unknown
and missing members only give notices. An entity is refused if it breaks a constraint whose policy is to reject, or if
its identity cannot be resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from headrace.schema.entity.identity import Identity, Resolver, Unresolved, missing_identity_fields
from headrace.schema.entity.nodes import Definition, Field, Notice, Schema, Type
from headrace.schema.entity.values import PLAIN, UNFIT, VALIDATORS, ConstraintChecker, Violation, convert_value

Reason = Literal["unknown_field", "converted_value_original"]


class Fragment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value outside the fields: one that fits no field, or the original of one that was converted."""

    key: str
    value: Any
    reason: Reason
    converted_to: Type | None = None


class Split(NamedTuple):
    """The values that conform to the schema, an explicit null among them, and the others."""

    fields: dict[str, Any]
    fragments: tuple[Fragment, ...]


class Splitter:
    """A definition, compiled once to split many entities."""

    def __init__(self, definition: Definition) -> None:
        self._fields = definition.fields
        #: The Python types of values that fit a field without conversion or validator.
        self._plain = {
            name: PLAIN[field.type]
            for name, field in definition.fields.items()
            if field.type in PLAIN and field.validator is None
        }
        self._validators = {
            name: VALIDATORS[field.validator].accepts
            for name, field in definition.fields.items()
            if field.validator is not None
        }

    def split(self, members: Mapping[str, Any]) -> Split:
        """What fits, converted where that makes it fit, and the fragments."""
        fields: dict[str, Any] = {}
        fragments = []
        plain = self._plain
        for key, value in members.items():
            if type(value) is plain.get(key):
                fields[key] = value
                continue
            field = self._fields.get(key)
            converted = UNFIT if field is None else value if value is None else self._convert(key, field, value)
            if converted is UNFIT:
                fragments.append(Fragment(key, value, "unknown_field"))
                continue
            fields[key] = converted
            if converted is not value:
                fragments.append(Fragment(key, value, "converted_value_original", field.type if field else None))
        return Split(fields, tuple(fragments))

    def _convert(self, key: str, field: Field, value: Any) -> Any:
        """The value as the field holds it, or UNFIT."""
        converted = convert_value(field, value)
        accepts = self._validators.get(key)
        return UNFIT if converted is UNFIT or (accepts is not None and not accepts(converted)) else converted

    def explain_fragment(self, fragment: Fragment) -> tuple[str, str]:
        """Why the value of a fragment is not among the fields: a code and a sentence."""
        field = self._fields.get(fragment.key)
        if field is None:
            return "UNKNOWN_FIELD", f"there is no field {fragment.key!r}; the value is kept as a fragment"
        if field.validator is None or convert_value(field, fragment.value) is UNFIT:
            return "UNKNOWN_FIELD", f"{fragment.key!r} takes a {field.type}; the value is kept as a fragment"
        wanted = VALIDATORS[field.validator].description
        return "VALIDATOR_FAILED", f"{fragment.key!r} takes {wanted}; the value is kept as a fragment"


def rejoin_fragments(fields: Mapping[str, Any], fragments: Iterable[Fragment]) -> dict[str, Any]:
    """The members that were split into these fields and fragments."""
    return {**fields, **{fragment.key: fragment.value for fragment in fragments}}


class Accepted(NamedTuple):
    """The fields, fragments and identity of an accepted entity, and notices about it."""

    fields: dict[str, Any]
    fragments: tuple[Fragment, ...]
    identity: Identity
    notices: list[Notice]

    @property
    def unknown_fields(self) -> list[str]:
        """The members that fit no field."""
        return [fragment.key for fragment in self.fragments if fragment.reason == "unknown_field"]


class Refused(NamedTuple):
    """Why an entity was refused."""

    violations: list[Violation]
    unresolved: Unresolved | None


class Acceptor:
    """A schema, compiled once to accept many entities."""

    def __init__(self, schema: Schema) -> None:
        self._type, self._definition, self._config = schema.entity_type, schema.schema_definition, schema.reducer_config
        self._splitter = Splitter(self._definition)
        self._resolver = Resolver(self._definition, self._type)
        self._constraints = ConstraintChecker(self._definition)
        self._required = [name for name, field in self._definition.fields.items() if field.required]
        self._may_lack_fields = bool(
            self._required or self._definition.content_field or self._definition.store_warnings
        )

    def accept(
        self, members: Mapping[str, Any], tenant: str, target_id: str | None = None, prioritised: bool = False
    ) -> Accepted | Refused:
        """Accept or refuse an entity; ``prioritised`` tells whether it came with a source priority."""
        fields, fragments = self._splitter.split(members)
        violations = self._constraints.violations(fields)
        identity: Identity | Unresolved
        if target_id is not None:
            identity = Identity(target_id, "", "target_id", "")
        else:
            identity = self._resolver.resolve(fields, members, tenant)
        if (violations and self._constraints.rejects) or isinstance(identity, Unresolved):
            return Refused(
                violations if self._constraints.rejects else [], identity if isinstance(identity, Unresolved) else None
            )
        notices = list(self._unknown_field_notices(fragments)) if fragments else []
        if self._may_lack_fields or identity.basis.startswith("heuristic"):
            notices += self._missing_field_notices(fields, identity)
        notices += [violation.notice() for violation in violations]
        if prioritised:
            notices += self._ignored_priority_notices(fields)
        return Accepted(fields, fragments, identity, notices)

    def missing_required_fields(self, fields: Mapping[str, Any]) -> list[str]:
        """The required fields that have no value."""
        return [name for name in self._required if fields.get(name) is None]

    def _unknown_field_notices(self, fragments: tuple[Fragment, ...]) -> Iterator[Notice]:
        for fragment in fragments:
            if fragment.reason == "unknown_field":
                code, message = self._splitter.explain_fragment(fragment)
                yield Notice(code, message, (fragment.key,))

    def _missing_field_notices(self, fields: Mapping[str, Any], identity: Identity) -> Iterator[Notice]:
        """Notices about fields that should have a value."""
        definition = self._definition
        if lacking := self.missing_required_fields(fields):
            yield Notice("MISSING_REQUIRED_FIELD", "required fields have no value", tuple(lacking))
        if identity.basis.startswith("heuristic") and (parts := missing_identity_fields(definition, fields)):
            yield Notice("MISSING_IDENTITY_FIELDS", f"the name was guessed from {identity.rule}", parts)
        if definition.content_field is not None and fields.get(definition.content_field) is None:
            yield Notice("MISSING_CONTENT_FIELD", "there is no content", (definition.content_field,))
        for warning in definition.store_warnings:
            if all(fields.get(name) is None for name in warning.fields):
                yield Notice(warning.code, warning.message, warning.fields)

    def _ignored_priority_notices(self, fields: Mapping[str, Any]) -> Iterator[Notice]:
        names = tuple(name for name in fields if self._config.policy(name).strategy == "last_write")
        if names:
            message = "source_priority does not count for fields whose policy is last_write: the latest value wins"
            yield Notice("SOURCE_PRIORITY_IGNORED", message, names)
