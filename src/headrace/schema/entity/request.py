"""Requests to store entities, and the answers to them.

Requests are read without losing anything silently: no repeated key, no digit of a number. An answer has the outcome of
each entity and the warnings, or every reason of a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from hashlib import sha256
from itertools import islice
from typing import Annotated, Any, Literal, Self, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from headrace import decoding
from headrace.errors import BadRequest, BatchTooLarge, ConstraintViolation, StoreResolutionFailed
from headrace.schema.entity.accept import Refused
from headrace.schema.entity.identity import find_links, find_moments
from headrace.schema.entity.nodes import Definition, Notice
from headrace.schema.entity.sources import CONTENT_PREFIX, SourceName, check_id, identify
from headrace.schema.entries import check_text
from headrace.schema.entries import read as read_exactly
from headrace.types import NonNegativeInt, json_fault, parse_timestamp_us

MAX_ENTITIES = 10_000
MAX_TYPES = 100
#: How deep values may be nested: code that reads them later has as little room on the stack.
MAX_LEVELS = 100
MAX_CHARACTERS = 256

#: The pattern of names and keys that callers choose: any text without control characters.
PRINTABLE = r"^[^\x00-\x1f\x7f]+(?![\s\S])"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_CHARACTERS, pattern=PRINTABLE)]
#: The user an admin acts for; how long the name of a user may be is checked where it is looked up.
UserName = Annotated[str, msgspec.Meta(pattern=PRINTABLE, extra_json_schema={"minLength": 1, "maxLength": 128})]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Score = Annotated[float, msgspec.Meta(ge=0, le=1)]
SourceKind = Literal["sensor", "workflow_state", "llm_summary", "human", "import", "sync"]

Document = TypeVar("Document")
_FIELD = re.compile(r" - at `\$\.?([^`]*)`")
_NAMED = re.compile("`([^`]*)`")
_ENCODE_SORTED = msgspec.json.Encoder(order="sorted").encode
_CONTAINERS = frozenset({dict, list, Decimal})


_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = {"anyOf": [{"format": "date-time"}, {"format": "date"}, {"pattern": "^[0-9]{1,20}$"}]}
Moment = Annotated[str, msgspec.Meta(extra_json_schema=_MOMENT)]


class ObservationOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of observations: for a whole request, or for one entity under ``_meta``."""

    observed_at: Moment | None = None
    #: The name of the source; it is the id of the source, and never remains beside it in options that were read.
    source: SourceName | UnsetType | None = UNSET
    source_id: Name | None = None
    source_priority: Priority | None = None
    observation_source: SourceKind | None = None
    specificity_score: Score | None = None
    idempotency_key: Name | None = None
    strict: bool = False

    @property
    def observed_at_us(self) -> int | None:
        """When the observation was made, if given."""
        return None if self.observed_at is None else parse_observed_at(self.observed_at)

    def identify_source(self, where: str = "") -> Self:
        """The options with the source by its id alone; an error begins with ``where``."""
        if self.source is UNSET:
            return self
        return msgspec.structs.replace(self, source=UNSET, source_id=identify(self.source, self.source_id, where))


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The event of a stream that an observation was made from: it is stored once, whatever it says."""

    stream: Annotated[str, msgspec.Meta(min_length=1, pattern=PRINTABLE)]
    #: The offset after the event.
    offset: Annotated[str, msgspec.Meta(min_length=26, max_length=26, pattern="^[0-9A-Z]+$")]
    #: A name of how the event was made an observation: another mapping makes another one.
    mapping: Name | None = None


class Meta(ObservationOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of one entity; ``target_id`` is the id of the entity that is meant."""

    target_id: Name | None = None
    origin: Origin | None = None


class RequestOptions(ObservationOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a whole request."""

    commit: bool = True
    #: The user an admin acts for.
    user_id: UserName | None = None


class StoreRequest(msgspec.Struct, frozen=True):
    """A parsed request; where neither ``source`` nor ``source_id`` is given, the id is derived from the content.

    The content are the entities, except those that name a source of their own.
    """

    entities: list[dict[str, Any]]
    envelope: RequestOptions
    user_id: str
    source_id: str
    digest: bytes

    @property
    def types(self) -> list[str]:
        """The types of the entities as they are spelled, each once."""
        return list(dict.fromkeys(entity["entity_type"] for entity in self.entities))


def read_store_request(body: bytes, user_id: str) -> StoreRequest:
    """The request that a body holds."""
    document = parse_document(body)
    entities = document.pop("entities", None)
    if not isinstance(entities, list) or not entities:
        raise BadRequest("entities is an array of at least one entity", field="entities")
    envelope = convert(document, RequestOptions, "")
    return make_store_request(entities, envelope, envelope.user_id or user_id)


def make_store_request(entities: list[Any], envelope: RequestOptions, user_id: str) -> StoreRequest:
    """The request to store some entities."""
    envelope = envelope.identify_source()
    if len(entities) > MAX_ENTITIES:
        raise BatchTooLarge(f"a request has at most {MAX_ENTITIES} entities", limit=MAX_ENTITIES)
    for number, entity in enumerate(entities):
        _check(number, entity)
    if len({entity["entity_type"] for entity in entities}) > MAX_TYPES:
        raise BatchTooLarge(f"a request has entities of at most {MAX_TYPES} types", limit=MAX_TYPES)
    contents = [entity for entity in entities if not _has_source(entity)]
    digest = sha256(_ENCODE_SORTED(user_id))
    digest.update(_ENCODE_SORTED(contents))
    content_address = CONTENT_PREFIX + digest.hexdigest()
    source_id = envelope.source_id
    check_id(source_id, content_address)
    if len(contents) != len(entities):
        digest.update(_ENCODE_SORTED(entities))
    digest.update(_ENCODE_SORTED(msgspec.structs.replace(envelope, idempotency_key=None, commit=True)))
    return StoreRequest(entities, envelope, user_id, source_id or content_address, digest.digest())


def address_of_contents(entities: list[Any], user_id: str) -> str:
    """The id of the source that has these contents."""
    return CONTENT_PREFIX + sha256(_ENCODE_SORTED(user_id) + _ENCODE_SORTED(entities)).hexdigest()


def _has_source(entity: dict[str, Any]) -> bool:
    """Whether an entity names a source of its own."""
    meta = entity.get("_meta")
    return isinstance(meta, dict) and (meta.get("source_id") is not None or meta.get("source") is not None)


def parse_observed_at(text: str) -> int:
    """The time of an observation, in microseconds since 1970; a date is its first moment in UTC."""
    return parse_timestamp_us(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text, "observed_at")


def convert(value: Any, kind: type[Document], where: str) -> Document:
    """A value converted to a type; an error names the member."""
    try:
        return decoding.convert(value, kind)
    except msgspec.ValidationError as reason:
        message = str(reason)
        match = _FIELD.search(message) or _NAMED.search(message)
        field = match[1] if match else ""
        raise BadRequest(f"{where}{message}", field=field or "body") from reason


def parse_document(body: bytes) -> dict[str, Any]:
    """The JSON object that a body holds, read without losing anything silently."""
    check_text(body)
    try:
        values, failures = read_exactly(body)
    except RecursionError as reason:
        raise BadRequest("the JSON is nested too deeply", field="body") from reason
    except msgspec.DecodeError as reason:
        raise BadRequest(f"the body is not JSON: {json_fault(reason, body)}", field="body") from reason
    if failures:
        raise BadRequest(f"{failures[0].pointer or 'the body'} {failures[0].reason}", field="body")
    if len(values) != 1 or not isinstance(values[0], dict):
        raise BadRequest("the body is one JSON object", field="body")
    document: dict[str, Any] = values[0]
    return document


def _check(number: int, entity: Any) -> None:
    if type(entity) is not dict:
        raise BadRequest(f"entity {number + 1} is no object", field="entities", item=number)
    name = entity.get("entity_type")
    if type(name) is not str or not name:
        raise BadRequest(f"entity {number + 1} has no entity_type", field="entity_type", item=number)
    for key, value in entity.items():
        if type(value) in _CONTAINERS and (reason := find_unstorable_value(value)) is not None:
            raise BadRequest(f"entity {number + 1}: {key!r} {reason}", field=key, item=number)


def find_unstorable_value(value: Any) -> str | None:
    """Why a value cannot be kept as it is: a number in it that no float holds, or too many levels."""
    level = [value]
    for _ in range(MAX_LEVELS):
        next_level: list[Any] = []
        for container in level:
            if type(container) is dict:
                next_level += [member for member in container.values() if type(member) in _CONTAINERS]
            elif type(container) is list:
                next_level += [member for member in container if type(member) in _CONTAINERS]
            elif type(container) is Decimal:
                return "holds a number with more digits than are kept; send it as text"
        if not next_level:
            return None
        level = next_level
    return f"is nested too deeply: there are at most {MAX_LEVELS} levels"


#: How many reasons and warnings an answer holds; the others are counted.
MAX_ISSUES, MAX_WARNINGS = 100, 1_000
VIOLATED = ConstraintViolation.code


ACTIONS = ["created", "updated", "unchanged", "would_create", "would_match_existing"]


class EntityOutcome(msgspec.Struct):
    """The outcome of one entity of a request.

    ``action`` is ``created``, ``updated`` or, where the very same was stored before, ``unchanged``; of a dry run
    ``would_create`` or ``would_match_existing``.
    """

    entity_id: str
    entity_type: str
    action: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ACTIONS})]
    observation_id: str
    schema_version: str
    canonical_name: str
    identity_basis: str
    identity_rule: str
    unknown_fields: list[str]
    required_fields_missing: list[str]
    events: list[dict[str, Any]] | UnsetType = UNSET
    links: list[dict[str, Any]] | UnsetType = UNSET

    def relate(self, definition: Definition, fields: Mapping[str, Any], tenant: str) -> None:
        """Add the dated events and the links that the schema declares."""
        if definition.temporal_fields:
            self.events = [moment._asdict() for moment in find_moments(definition, fields)]
        if definition.reference_fields:
            self.links = [link._asdict() for link in find_links(definition, fields, tenant)]


class WarningAnswer(TypedDict):
    """A notice about entities of a request; ``items`` are their numbers."""

    code: str
    message: str
    fields: list[str]
    entity_type: str
    items: list[NonNegativeInt]


class Warnings:
    """Notices about entities of a request; equal notices are grouped."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, Notice], list[int]] = {}

    def add(self, entity_type: str, item: int, notices: Iterable[Notice]) -> None:
        """Add the notices about one entity."""
        for notice in notices:
            self._items.setdefault((entity_type, notice), []).append(item)

    def dump(self) -> list[WarningAnswer]:
        """The warnings as JSON, each with the indexes of the entities it is about."""
        documents: list[Any] = [
            {**notice.dump(), "entity_type": entity_type, "items": items}
            for (entity_type, notice), items in islice(self._items.items(), MAX_WARNINGS)
        ]
        more = len(self._items) - len(documents)
        if more:
            left_out = Notice("MORE_WARNINGS", f"{more} further warnings are left out")
            documents.append({**left_out.dump(), "entity_type": "", "items": []})
        return documents


class Issue(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an entity of a request is refused, and with it the request."""

    code: str
    message: str
    item: int
    entity_type: str
    field: str | None = None
    constraint: str | None = None
    constraint_value: Any = None
    reason: str | None = None
    hint: dict[str, Any] | None = None


def list_issues(refused: Refused, item: int, entity_type: str) -> list[Issue]:
    """The reasons to refuse one entity."""
    issues = [
        Issue(
            VIOLATED,
            violation.message,
            item,
            entity_type,
            field=violation.field,
            constraint=violation.constraint,
            constraint_value=violation.constraint_value,
        )
        for violation in refused.violations
    ]
    unresolved = refused.unresolved
    if unresolved is not None:
        issues.append(Issue(unresolved.code, unresolved.message, item, entity_type, hint=unresolved.hint))
    return issues


def refusal(issues: list[Issue]) -> BadRequest:
    """The error that refuses a request, with every reason."""
    first = issues[0]
    kind = ConstraintViolation if first.code == VIOLATED else StoreResolutionFailed
    documents = [msgspec.to_builtins(issue) for issue in issues[:MAX_ISSUES]]
    facts: dict[str, Any] = {"item": first.item, "issues": documents, "issues_count": len(issues)}
    if first.field is not None:
        facts |= {"field": first.field, "constraint": first.constraint, "constraint_value": first.constraint_value}
    return kind(f"entity {first.item + 1} ({first.entity_type}) is refused: {first.message}", **facts)


class StoreAnswer(msgspec.Struct):
    """The answer to a request, once everything is on disk or, in a dry run, would be."""

    entities: list[EntityOutcome]
    source_id: str
    unknown_fields_count: int
    store_warnings: list[WarningAnswer]
    #: The name of the source, if it was given one.
    source: str | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


_ENCODE = msgspec.json.Encoder().encode


def encode_answer(answer: StoreAnswer) -> bytes:
    """The answer as it is sent, and remembered for the same request."""
    return _ENCODE(answer)
