"""The canonical name of an entity, the id that follows from it, and the ids of entities that it refers to.

The name comes from the schema's rule: the first alternative whose fields are all there. Where no rule applies, and
the schema is not strict, it comes from the members that names usually have, looked for in an order that does not
depend on how the JSON was spelled. The id is a hash of the tenant and the name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from headrace.schema.canonical import value_text
from headrace.schema.entity.nodes import Definition, Notice
from headrace.schema.entity.values import decimal
from headrace.schema.problem import RequestProblem

#: The id of an entity in a document; it is not checked where the document is decoded.
EntityId = Annotated[
    str, msgspec.Meta(extra_json_schema={"pattern": "^ent_[0-9a-f]{24}$"}, examples=["ent_" + 24 * "0"])
]

_HONORIFICS = frozenset({"mr", "mrs", "ms", "miss", "mx", "dr", "prof", "professor", "sir", "dame"})
_SUFFIXES = frozenset(
    {"inc", "incorporated", "llc", "llp", "lp", "ltd", "limited", "corp", "corporation", "co", "company", "plc"}
    | {"gmbh", "ag", "kg", "sa", "sas", "sarl", "srl", "spa", "bv", "nv", "ab", "oy", "as", "aps", "pty"}
)


class _Blanks(dict[int, str | int]):
    """Punctuation and symbols become blanks; each character is looked up once."""

    def __missing__(self, code: int) -> str | int:
        category = unicodedata.category(chr(code))
        self[code] = replacement = " " if category[0] in "PS" else code
        return replacement


_BLANKS = _Blanks()


def name_part(value: Any, preserve_case: bool = False) -> str | None:
    """The text that a value adds to a name, or None where it is empty."""
    if value is None:
        return None
    if isinstance(value, str):
        return normalise_name(value, preserve_case) or None
    if isinstance(value, bool):
        return "true" if value else "false"
    return decimal(value) if isinstance(value, int | float) else value_text(value)


def normalise_name(text: str, preserve_case: bool = False) -> str:
    """The normalised spelling of a text; it never holds a vertical bar."""
    composed = text if text.isascii() else unicodedata.normalize("NFKC", text)
    words = composed.replace("|", " ").split()
    if not preserve_case:
        words = [word.lower() for word in words]
    if len(words) <= 1:
        return "".join(words)
    return " ".join(_strip_titles_and_suffixes(" ".join(words).translate(_BLANKS).split())) or " ".join(words)


def _strip_titles_and_suffixes(words: list[str]) -> list[str]:
    """The words without honorifics in front and suffixes behind; the last word that is left stays."""
    while len(words) > 1 and words[0].lower() in _HONORIFICS:
        words = words[1:]
    while len(words) > 1 and words[-1].lower() in _SUFFIXES:
        words = words[:-1]
    return words


#: Longer names are cut where they are shown; the id is that of the whole name.
MAX_CHARACTERS = 1_000

UNRESOLVED = "ERR_CANONICAL_NAME_UNRESOLVED"
REFUSED = "ERR_MERGE_REFUSED"

Basis = Literal["schema_rule", "schema_lookup", "heuristic_name", "heuristic_fallback", "target_id"]

_NAMES = ("canonical_name", "name", "full_name", "title", "email", "url")
_IDS = ("message_id", "turn_key", "thread_id", "external_id", "source_id", "id", "uuid", "company_id")
#: Words that many entities share.
_SHARED = frozenset(
    {
        "true",
        "false",
        "yes",
        "no",
        "none",
        "null",
        "unknown",
        "n/a",
        "other",
        "active",
        "inactive",
        "enabled",
        "disabled",
    }
    | {"open", "closed", "new", "done", "todo", "pending", "draft", "sent", "paid", "unpaid", "approved", "rejected"}
    | {"completed", "cancelled", "canceled", "failed", "in_progress", "archived", "deleted"}
)


class Identity(NamedTuple):
    """The id and the name of an entity, with the basis and the fields that they come from."""

    entity_id: str
    canonical_name: str
    basis: Basis
    rule: str


class Unresolved(NamedTuple):
    """An identity that cannot be resolved, with a hint which fields are needed."""

    message: str
    hint: dict[str, Any]
    code: str = UNRESOLVED


def entity_id(tenant: str, canonical_name: str) -> str:
    """The id of an entity; tenants never share one."""
    digest = sha256(f"{len(tenant)}:{tenant}:{canonical_name}".encode("utf-8", "surrogatepass")).hexdigest()
    return "ent_" + digest[:24]


class Resolver:
    """The identity rules of a type, compiled once to name many entities."""

    def __init__(self, definition: Definition, entity_type: str) -> None:
        self._definition, self._type = definition, entity_type
        #: Each rule as text, and its fields with whether they keep their case.
        self._rules = [
            (",".join(names), [(name, definition.fields[name].preserve_case) for name in names])
            for names in definition.alternatives
        ]
        self._is_strict = definition.canonical_name_strict and bool(self._rules)

    def resolve(self, fields: Mapping[str, Any], members: Mapping[str, Any], tenant: str) -> Identity | Unresolved:
        """The identity: by a rule from conforming fields, else guessed from all members."""
        for rule, parts in self._rules:
            text = _compose_name(parts, fields)
            if text is not None:
                return _make_identity(tenant, self._type, text, "schema_rule", rule)
        if not self._is_strict:
            for basis, name, text in _guess_names(self._definition, members):
                return _make_identity(tenant, self._type, text, basis, name)
        return _unresolved(self._definition, self._type)


def _compose_name(parts: list[tuple[str, bool]], fields: Mapping[str, Any]) -> str | None:
    """The name that a rule makes of values; None where one is missing."""
    texts = []
    for name, preserve_case in parts:
        text = name_part(fields.get(name), preserve_case)
        if not text:
            return None
        texts.append(text)
    return "|".join(texts)


def missing_identity_fields(definition: Definition, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of the preferred identity rule that have no value, where no rule is complete."""
    lacking = [
        tuple(name for name in names if name_part(fields.get(name), definition.fields[name].preserve_case) is None)
        for names in definition.alternatives
    ]
    return lacking[0] if lacking and all(lacking) else ()


def check_name_collision(
    definition: Definition, identity: Identity, strict: bool = False
) -> RequestProblem | Notice | None:
    """The problem or notice for an entity whose name exists already."""
    if strict:
        return RequestProblem(
            REFUSED, "", f"{identity.canonical_name!r} exists, and strict refuses to merge (reason: strict)"
        )
    if definition.name_collision_policy == "reject":
        return RequestProblem(REFUSED, "", f"{identity.canonical_name!r} exists, and the schema refuses to merge")
    if definition.name_collision_policy == "warn":
        return Notice("NAME_COLLISION", f"{identity.canonical_name!r} exists; what was given is merged into it")
    return None


def _make_identity(tenant: str, entity_type: str, name: str, basis: Basis, rule: str) -> Identity:
    canonical_name = f"{entity_type}:{name}"
    identifier = entity_id(tenant, canonical_name)
    if len(canonical_name) > MAX_CHARACTERS:
        canonical_name = canonical_name[: MAX_CHARACTERS - 1] + "…"
    return Identity(identifier, canonical_name, basis, rule)


def _guess_names(definition: Definition, members: Mapping[str, Any]) -> Iterator[tuple[Basis, str, str]]:
    """Members that usually hold a name, the most usual first."""
    tiers: tuple[tuple[Basis, tuple[str, ...]], ...] = (("heuristic_name", _NAMES), ("heuristic_fallback", _IDS))
    for basis, names in tiers:
        for name in names:
            value = members.get(name)
            if type(value) in (str, int, float) and (text := _member_name_part(definition, name, value)):
                yield basis, name, text
    for name in sorted(members):
        value = members[name]
        if isinstance(value, str) and _is_distinctive(value) and (text := _member_name_part(definition, name, value)):
            yield "heuristic_fallback", name, text


def _member_name_part(definition: Definition, name: str, value: Any) -> str | None:
    field = definition.fields.get(name)
    return name_part(value, field is not None and field.preserve_case)


def _is_distinctive(value: str) -> bool:
    """Whether a text may belong to one entity only: no status, and no currency."""
    text = value.strip()
    return text.lower() not in _SHARED and not (len(text) == 3 and text.isascii() and text.isalpha() and text.isupper())


def _unresolved(definition: Definition, entity_type: str) -> Unresolved:
    rules = definition.alternatives
    wanted = " or ".join(" and ".join(names) for names in rules or [*((name,) for name in _NAMES), ("another text",)])
    text = f"give {wanted}"
    required = {
        "entity_type": entity_type,
        "required": list(rules[0]) if len(rules) == 1 else [],
        "any_of_fields": [names[0] for names in rules if len(names) == 1] if rules else list(_NAMES),
        "composite_fields": [list(names) for names in rules if len(names) > 1],
    }
    message = f"nothing tells which {entity_type} this is about"
    return Unresolved(message, {"text": text, "required_identity_fields": required})


#: The relationship of a reference that names none.
REFERS_TO = "REFERS_TO"


class Moment(NamedTuple):
    """An event in the life of an entity: which field dates it, what it is, and when."""

    field: str
    event_type: str
    at: str


class Link(NamedTuple):
    """A reference to another entity: the value that names it, and the id that an entity of this name has."""

    field: str
    relationship_type: str
    target_entity_type: str
    value: Any
    target_id: str


def find_moments(definition: Definition, fields: Mapping[str, Any]) -> list[Moment]:
    """One moment for each dated value, in the order of the declarations."""
    return [
        Moment(declared.field, declared.event_type or declared.field, value)
        for declared in definition.temporal_fields
        for value in _each(fields.get(declared.field))
        if isinstance(value, str)
    ]


def find_links(definition: Definition, fields: Mapping[str, Any], tenant: str) -> list[Link]:
    """One link for each value that names an entity; a value that is an id is the target itself."""
    links = []
    for declared in definition.reference_fields:
        for value in _each(fields.get(declared.field)):
            name = name_part(value)
            if name is not None:
                target = declared.target_entity_type
                is_entity_id = isinstance(value, str) and value.startswith("ent_")
                identifier = value if is_entity_id else entity_id(tenant, f"{target}:{name}")
                links.append(Link(declared.field, declared.relationship_type or REFERS_TO, target, value, identifier))
    return links


def _each(value: Any) -> Iterator[Any]:
    """The elements of a list, or the value; nothing for null."""
    if isinstance(value, list):
        yield from (element for element in value if element is not None)
    elif value is not None:
        yield value
