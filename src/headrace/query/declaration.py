"""The ``fields`` of a search document: what each kind of field can do, and where its values lie."""

from __future__ import annotations

from reprlib import repr as shown

from headrace.query.part import Part
from headrace.query.search import Binding, Field, Kind

CAPABILITIES = ("exact", "prefix", "column", "exists", "sortable", "aggregatable", "contains", "positions")
NORMALIZERS = ("identity_v1", "lowercase_v1")
ANALYZERS = ("unicode_word_v1",)

_KEYS = frozenset({"kind", "bindings", "normalizer", "analyzer", *CAPABILITIES})
_NOT_TYPED = frozenset({"prefix", "contains", "positions", "normalizer"})
_REFUSED = {
    Kind.KEYWORD: frozenset({"positions", "analyzer"}),
    Kind.TEXT: frozenset({"column", "sortable", "aggregatable"}),
    Kind.INTEGER: _NOT_TYPED,
    Kind.FLOAT: _NOT_TYPED,
    Kind.DATE: _NOT_TYPED,
    Kind.BOOL: _NOT_TYPED,
}


class Declared(dict[str, Field | None]):
    """The declared fields by name; None stands for one that is wrong, so that uses of it are not blamed too."""

    def named_by(self, part: Part) -> Field | None:
        """The field whose name stands in another part of the document."""
        name = part.text()
        if name is not None and name not in self:
            part.note(f"{shown(name)} is no declared field")
        return None if name is None else self.get(name)


def read(part: Part, current_version: int) -> Declared:
    """Every declared field."""
    members = part.named()
    if isinstance(part.value, dict) and not members:
        part.note("must declare at least one field")
    return Declared((name, _field(name, field, current_version)) for name, field in members)


def _field(name: str, part: Part, current_version: int) -> Field | None:
    if not part.knows(_KEYS):
        return None
    kind = part["kind"].one_of([*Kind])
    bindings = _bindings(part["bindings"], current_version)
    normalizer = part["normalizer"].one_of(NORMALIZERS) if part["normalizer"].is_given else None
    analyzer = part["analyzer"].one_of(ANALYZERS) if part["analyzer"].is_given else None
    flags = {capability: part[capability].flag() for capability in CAPABILITIES}
    if kind is None:
        return None
    given = {"normalizer": normalizer, "analyzer": analyzer, **flags}
    for key in sorted(_REFUSED[Kind(kind)]):
        if given[key]:
            part[key].note(f"is not supported for {kind} fields")
    if kind == Kind.TEXT and not part["analyzer"].is_given:
        part["analyzer"].note("is required for text fields")
    return Field(name=name, kind=Kind(kind), bindings=bindings, lowercase=normalizer == "lowercase_v1", **flags)


def _bindings(part: Part, current_version: int) -> tuple[Binding, ...]:
    elements = part.elements()
    if isinstance(part.value, list) and not elements:
        part.note("must hold at least one binding")
    bindings: dict[int, Binding] = {}
    for element in elements:
        if not element.knows({"version", "jsonPointer"}):
            continue
        version, pointer = element["version"].whole(), element["jsonPointer"].pointer()
        if version is not None and not 1 <= version <= current_version:
            element["version"].note(f"must be a version of the schema, 1 to {current_version}")
        elif version in bindings:
            element["version"].note(f"version {version} is bound twice")
        elif version is not None:
            bindings[version] = Binding(version, pointer or ())
    return tuple(bindings[version] for version in sorted(bindings))
