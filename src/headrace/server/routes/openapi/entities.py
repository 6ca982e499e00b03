"""The paths on which entities are read, merged and split."""

from __future__ import annotations

from headrace.reduce.duplicates import LEAST
from headrace.server.routes.entity_lists import FIELD, LISTED, MOST_LISTED, MOST_PAIRS, PAIRS
from headrace.server.routes.entity_relations import MOST_MOVED
from headrace.server.routes.openapi.words import (
    COUNTER,
    MINTED,
    MOMENT,
    OBJECT,
    TEXT,
    USER,
    WHEN,
    Node,
    answer,
    answers,
    closed_record,
    content,
    either,
    operation,
    path,
    query,
    record,
)

ID: Node = {"type": "string", "pattern": "^ent_[0-9a-f]{24}$"}
GIVEN: Node = {"type": "string", "minLength": 1, "maxLength": 256}
TEXTS: Node = {"type": "object", "additionalProperties": TEXT}
EVENT = record(field=TEXT, event_type=TEXT, at=TEXT)
LINK = record("value", field=TEXT, relationship_type=TEXT, target_entity_type=TEXT, target_id=TEXT)
ENTITY: Node = record(
    entity_id=ID,
    entity_type=TEXT,
    canonical_name=TEXT,
    schema_version=TEXT,
    snapshot=OBJECT,
    provenance=TEXTS,
    computed_at=WHEN,
    observation_count=COUNTER,
    last_observation_at=WHEN,
    merged_from={"type": "array", "items": ID},
    events={"type": "array", "items": EVENT},
    links={"type": "array", "items": LINK},
)
_ENTITY: Node = {"$ref": "#/components/schemas/Entity"}
OBSERVED = record(
    id=TEXT,
    kind=TEXT,
    entity_id=ID,
    entity_type=TEXT,
    schema_version=TEXT,
    schema_scope={"enum": ["global", "user"]},
    fields=OBJECT,
    fragments={"type": "array", "items": record("value", key=TEXT, reason=TEXT)},
    observed_at=WHEN,
    ingested_at=WHEN,
    source=either(record(source_id=TEXT, href=TEXT)),
    offset=MINTED,
)
_OBSERVATIONS: Node = {"type": "array", "items": OBSERVED}
_PAIR = record(
    similarity={"type": "number", "minimum": 0, "maximum": 1},
    entities={"type": "array", "items": record(entity_id=ID, canonical_name=TEXT, text=TEXT)},
)
_COVERAGE: Node = {"Headrace-Coverage": {"description": "whether nothing is missing", "schema": {"const": "complete"}}}
_BY_ID = path("id", TEXT, "the id of an entity")
_USER = query("user_id", USER, "whose entities, for an admin")
_TYPE = query("entity_type", GIVEN, "the type of the entities, or another name of it")


def _flag(name: str, text: str) -> Node:
    return query(name, {"enum": ["true", "false"]}, text)


def _limit(default: int, most: int) -> Node:
    number: Node = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    return query("limit", number, "how many at most")


_SEEN = (
    query("as_of", MOMENT, "by what was observed until then"),
    query("at_ingested", MOMENT, "by what was stored until then"),
    query("schema_version", GIVEN, "as this version shows it"),
    query("scope", {"enum": ["global", "user"]}, "whose version that is; the user's own where they have it"),
    _flag("explain", "also how the answer came about"),
    _USER,
)
_LISTING = (
    query("after", GIVEN, "the last entity of the page before"),
    _limit(LISTED, MOST_LISTED),
    query("canonical_name", TEXT, "the name of the entity"),
    query("search", TEXT, "a part of the name"),
    {
        **query("field", TEXTS, f"values of fields: `{FIELD}<name>=<value>`"),
        "style": "form",
        "explode": True,
        "x-headrace-prefix": FIELD,
    },
)


def _related(name: str, text: str, body: Node, **facts: Node) -> Node:
    done = answers("404 409 413 415 429", s200=answer("it is on disk", record(**facts)))
    return {"post": operation(name, text, done, body=content(body))}


_PREDICATE = closed_record(
    observation_ids=either({"type": "array", "minItems": 1, "maxItems": MOST_MOVED, "items": GIVEN}),
    source_id=either(GIVEN),
    fields=OBJECT,
    observed_from=either(MOMENT),
    observed_until=either(MOMENT),
)
_FOR: dict[str, Node] = {"user_id": either(USER)}
_PAIRED: dict[str, Node] = {"from_entity_id": ID, "to_entity_id": ID}
_MOVED: dict[str, Node] = {"entity_id": ID, "to_entity_id": ID, "observations": {"type": "array", "items": TEXT}}

ENTITY_PATHS: Node = {
    "/v1/entities": {
        "get": operation(
            "list_entities",
            "the entities of a user, in the order in which they came",
            answers(
                "404",
                s200=answer(
                    "a page",
                    record(entities={"type": "array", "items": _ENTITY}, after=either(ID)),
                    _COVERAGE,
                ),
            ),
            _TYPE,
            *_LISTING,
            _USER,
        )
    },
    "/v1/entities/{id}": {
        "parameters": [_BY_ID],
        "get": operation(
            "get_entity",
            "an entity as it is now or was, with the observations that its values are from",
            answers("404", s200=answer("the entity", _ENTITY, _COVERAGE)),
            *_SEEN,
        ),
    },
    "/v1/entities/{id}/observations": {
        "parameters": [_BY_ID],
        "get": operation(
            "list_observations",
            "what was observed of an entity",
            answers(
                "404", s200=answer("a page", record(entity_id=ID, observations=_OBSERVATIONS, after=either(MINTED)))
            ),
            query("after", TEXT, "the last offset of the page before"),
            _limit(LISTED, MOST_LISTED),
            query("order", {"enum": ["newest", "oldest"]}, "which come first; the newest by default"),
            _USER,
        ),
    },
    "/v1/entities/{id}/provenance/{field}": {
        "parameters": [_BY_ID, path("field", TEXT, "a field of the entity")],
        "get": operation(
            "get_provenance",
            "the observations that a value is from, and their sources",
            answers(
                "404",
                s200=answer(
                    "the value",
                    record(
                        "value",
                        entity_id=ID,
                        entity_type=TEXT,
                        schema_version=TEXT,
                        field=TEXT,
                        observations=_OBSERVATIONS,
                    ),
                ),
            ),
            *_SEEN,
        ),
    },
    "/v1/entities/duplicates": {
        "get": operation(
            "list_duplicates",
            "pairs of entities that may be the same, the most similar first",
            answers(
                "404",
                s200=answer(
                    "the pairs",
                    record(
                        "threshold fields",
                        entity_type=TEXT,
                        compared=COUNTER,
                        duplicates={"type": "array", "items": _PAIR},
                    ),
                ),
            ),
            {**_TYPE, "required": True},
            query("threshold", {"type": "number", "minimum": LEAST, "maximum": 1}, "how similar at least"),
            _limit(PAIRS, MOST_PAIRS),
            _USER,
        )
    },
    "/v1/entities/merge": _related(
        "merge_entities",
        "an entity is another one: they are told of together",
        closed_record("from_entity_id to_entity_id", from_entity_id=GIVEN, to_entity_id=GIVEN, **_FOR),
        **_PAIRED,
        merge_id=TEXT,
        merged_at=WHEN,
    ),
    "/v1/entities/merge/undo": _related(
        "undo_merge",
        "an entity that was merged is one of its own",
        closed_record("from_entity_id", from_entity_id=GIVEN, **_FOR),
        **_PAIRED,
        undo_id=TEXT,
        undone_at=WHEN,
    ),
    "/v1/entities/split": _related(
        "split_entity",
        "some observations of an entity are about another",
        closed_record(
            "entity_id predicate",
            entity_id=GIVEN,
            predicate=_PREDICATE,
            to_entity_id=either(GIVEN),
            to_canonical_name=either(GIVEN),
            **_FOR,
        ),
        **_MOVED,
        split_id=TEXT,
        split_at=WHEN,
    ),
    "/v1/entities/split/undo": _related(
        "undo_split",
        "observations that were moved are about the entities that they came from",
        closed_record("entity_id split_id", entity_id=GIVEN, split_id=GIVEN, **_FOR),
        **_MOVED,
        split_id=TEXT,
        undo_id=TEXT,
        undone_at=WHEN,
    ),
}
