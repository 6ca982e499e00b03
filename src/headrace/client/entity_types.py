"""Entity types on the wire: versions of their schemas, what fragments speak for, and what the answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.requests import Request, ask, known, segment, with_query

TYPES_PATH = "/v1/entity-types"


class TypeOptions(TypedDict, total=False):
    """What may be said with a change of an entity type."""

    #: ``global`` is everybody's, ``user`` the caller's own.
    scope: str | None
    user_id: str | None
    #: Change nothing, and say what would change.
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


class TypeChange(msgspec.Struct, frozen=True):
    """What a change of an entity type did, or would do; ``plan`` says it change by change."""

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
    known(TypeOptions, options)
    return ask(TYPES_PATH, {**document, **options}, changes=not options.get("dry_run"))


def change(entity_type: str, verb: str, document: Mapping[str, Any], options: TypeOptions) -> Request:
    """POST: one of the verbs of a type."""
    known(TypeOptions, options)
    return ask(path(entity_type, verb), {**document, **options}, changes=not options.get("dry_run"))


def look(entity_type: str, what: str = "", **query: str | None) -> Request:
    """GET: a type, or something about it."""
    return Request("GET", with_query(path(entity_type, what), query))


def page(after: str | None) -> Request:
    """GET: one page of the types that the caller sees."""
    return Request("GET", with_query(TYPES_PATH, {"after": after}))


def changed(answer: Answer) -> TypeChange:
    """What a change did, or would do."""
    return answers.decoded(answer.checked().body, TypeChange)


def version(answer: Answer) -> SchemaVersion:
    """The version that was asked for."""
    return answers.decoded(answer.checked().body, SchemaVersion)


def types(answer: Answer) -> tuple[Sequence[SchemaVersion], str | None]:
    """A page of types, and where the next one begins."""
    page = answers.decoded(answer.checked().body, _Types)
    return page.entity_types, page.next


def versions(answer: Answer) -> tuple[Sequence[SchemaVersion], str | None]:
    """A page of versions, and where the next one begins."""
    page = answers.decoded(answer.checked().body, _Versions)
    return page.versions, page.next


def files(answer: Answer) -> dict[str, str]:
    """Every version as a file: its path, and what is in it."""
    return {file.path: file.content for file in answers.decoded(answer.checked().body, _Files).files}


def told(answer: Answer) -> dict[str, Any]:
    """An answer as it is."""
    return answers.decoded(answer.checked().body, dict[str, Any])


def path(entity_type: str, below: str = "") -> str:
    """The path of a type, or of something below it."""
    return f"{TYPES_PATH}/{segment(entity_type)}" + (f"/{below}" if below else "")
