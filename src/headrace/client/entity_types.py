"""Requests about entity types and their answers: versions of schemas, and candidates from fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from headrace.client.answers import Answer
from headrace.client.declared_types import type_values
from headrace.client.requests import Request, check_options, post, segment, with_query

TYPES_PATH = "/v1/entity-types"


class TypeOptions(TypedDict, total=False):
    """Options of a change of an entity type."""

    #: ``global`` is shared, ``user`` the caller's own.
    scope: str | None
    user_id: str | None
    #: Change nothing; return what would change.
    dry_run: bool | None
    force: bool | None


class SchemaVersion(msgspec.Struct, frozen=True):
    """One version of an entity type."""

    schema_id: str
    entity_type: str
    schema_version: str
    scope: str
    active: bool
    schema_definition: dict[str, Any]
    reducer_config: dict[str, Any]
    metadata: dict[str, Any] = {}
    user_id: str | None = None
    base_version: str | None = None
    created_at: str = ""

    def column_types(self) -> dict[str, str]:
        """The type of each field as features have them; "" for arrays and objects, which may hold anything."""
        fields = self.schema_definition.get("fields", {})
        return {name: _column_type(field.get("type"), field.get("validator")) for name, field in fields.items()}

    def type_values(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a snapshot with a ``datetime`` in UTC where the validator is ``iso_datetime``."""
        return type_values(snapshot, self.column_types())


class TypeChange(msgspec.Struct, frozen=True):
    """The result of a change of an entity type; ``plan`` lists the changes one by one."""

    success: bool
    changed: bool
    entity_type: str
    schema_version: str
    scope: str
    active: bool
    plan: dict[str, Any]
    dry_run: bool = False
    schema_id: str | None = None
    previous_version: str | None = None
    user_id: str | None = None
    warnings: list[dict[str, Any]] = []
    bump: str | None = None
    fields_added: list[str] = []
    fields_removed: list[str] = []
    promoted: list[dict[str, Any]] = []
    agreements: list[dict[str, Any]] = []
    migration: dict[str, Any] | None = None
    rekey: dict[str, Any] | None = None


def _column_type(kind: Any, validator: Any) -> str:
    match kind, validator:
        case "number", "integer":
            return "i64"
        case "number", _:
            return "f64"
        case "boolean", _:
            return "bool"
        case "date", "iso_datetime":
            return "datetime"
        case "string" | "date", _:
            return "str"
    return ""


class _Types(msgspec.Struct):
    entity_types: list[SchemaVersion]
    next: str | None = None


class _Versions(msgspec.Struct):
    versions: list[SchemaVersion]
    next: str | None = None


class _File(msgspec.Struct):
    path: str
    content: str


class _Files(msgspec.Struct):
    files: list[_File]


def register(document: Mapping[str, Any], options: TypeOptions) -> Request:
    """POST: a version of a type."""
    check_options(TypeOptions, options)
    return post(TYPES_PATH, {**document, **options}, changes=not options.get("dry_run"))


def change(entity_type: str, verb: str, document: Mapping[str, Any], options: TypeOptions) -> Request:
    """POST: one of the verbs of a type."""
    check_options(TypeOptions, options)
    return post(path(entity_type, verb), {**document, **options}, changes=not options.get("dry_run"))


def read(entity_type: str, what: str = "", **query: str | None) -> Request:
    """GET: a type, or something about it."""
    return Request("GET", with_query(path(entity_type, what), query))


def page(after: str | None) -> Request:
    """GET: one page of the types that are visible to the caller."""
    return Request("GET", with_query(TYPES_PATH, {"after": after}))


def read_types(answer: Answer) -> tuple[Sequence[SchemaVersion], str | None]:
    """A page of types, and where the next one begins."""
    page = answer.decode(_Types)
    return page.entity_types, page.next


def read_versions(answer: Answer) -> tuple[Sequence[SchemaVersion], str | None]:
    """A page of versions, and where the next one begins."""
    page = answer.decode(_Versions)
    return page.versions, page.next


def read_files(answer: Answer) -> dict[str, str]:
    """Every version as a file: its path, and what is in it."""
    return {file.path: file.content for file in answer.decode(_Files).files}


def path(entity_type: str, below: str = "") -> str:
    """The path of a type, or of something below it."""
    return f"{TYPES_PATH}/{segment(entity_type)}" + (f"/{below}" if below else "")
