"""The schemas inside a JSON Schema, what refers to what, and how far all of it unfolds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from headrace.deadline import check_deadline
from headrace.schema import pointer
from headrace.schema.pointer import Pointer

#: A schema unfolds, where references are followed, to at most so many subschemas, nested at most so deep.
MAX_UNFOLDED = 10_000
MAX_HEIGHT = 100

_APART = frozenset({"$defs", "definitions"})
_MAPS = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"}) | _APART
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_ONES = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"}
)
_ONES |= {"propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
#: Keywords whose subschemas look at the very value that the schema looks at.
_SAME_VALUE = frozenset({"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_REMEMBERING = frozenset({"unevaluatedItems", "unevaluatedProperties"})


class Reference(NamedTuple):
    """A reference: where it stands, what it says, and where it leads, or why it leads nowhere."""

    place: Pointer
    keyword: str
    text: str
    target: Pointer | None
    reason: str = ""


class Unfolded(NamedTuple):
    """A schema with its references followed: subschemas, nesting, and how often it comes back to itself."""

    size: int
    height: int
    returns: int


class Subschemas:
    """Every schema within a schema, by its pointer; those too that only a reference makes one."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.draft = root.get("$schema") if isinstance(root, dict) else None
        self._naming = "id" if "draft-04" in str(self.draft) else "$id"
        self.at: dict[Pointer, Any] = {}
        self.references: list[Reference] = []
        self._bases: dict[Pointer, str] = {}
        self._resources: dict[str, Pointer] = {"": ()}
        self._anchors: dict[tuple[str, str], Pointer] = {}
        self._dynamic: dict[str, list[Pointer]] = {}
        self._unfolded: dict[Pointer, Unfolded] = {}
        self._walk((), root, "")
        self._follow()

    def loop(self) -> Pointer | None:
        """A schema that needs itself to judge a value, if there is one."""
        graph = {place: set(self._edges(place, same_value=True)) for place in self.at}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as found:
            looping: list[Pointer] = found.args[1]
            return looping[0]
        return None

    @cached_property
    def unfolded(self) -> Unfolded:
        """How much there is to a judgement."""
        return self._unfold((), set())

    def _walk(self, place: Pointer, schema: Any, base: str) -> None:
        check_deadline()
        self.at[place] = schema
        base = self._bases[place] = self._identify(place, schema, base)
        for _, child, subschema in _children(place, schema):
            if child not in self.at:
                self._walk(child, subschema, base)

    def _identify(self, place: Pointer, schema: Any, base: str) -> str:
        """Note what a schema is called; the base of the references in it."""
        if not isinstance(schema, dict):
            return base
        if isinstance(name := schema.get(self._naming), str):
            uri, fragment = _joined(base, name)
            if fragment:
                self._anchors[uri, fragment] = place
            else:
                base = uri
                self._resources[base] = place
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(keyword), str):
                self._anchors[base, name] = place
        if isinstance(name := schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(name, []).append(place)
        return base

    def _follow(self) -> None:
        """Resolve every reference, in what they lead to as well."""
        places = list(self.at)
        for place in places:
            schema = self.at[place]
            for keyword in _REFERENCES if isinstance(schema, dict) else ():
                if isinstance(text := schema.get(keyword), str):
                    reference = self._resolved(place, keyword, text)
                    self.references.append(reference)
                    target = reference.target
                    if target is not None and target not in self.at:
                        known = len(self.at)
                        self._walk(target, resolve_pointer(self.root, target)[1], self._base_of(target))
                        places += list(self.at)[known:]

    def _base_of(self, place: Pointer) -> str:
        return next(self._bases[place[:n]] for n in range(len(place), -1, -1) if place[:n] in self._bases)

    def _resolved(self, place: Pointer, keyword: str, text: str) -> Reference:
        check_deadline()
        uri, fragment = _joined(self._bases[place], text)
        if uri not in self._resources:
            return Reference(place, keyword, text, None, "lies outside this document; references must stay within it")
        target: Pointer | None = self._anchors.get((uri, fragment))
        if not fragment or fragment.startswith("/"):
            names = pointer.parse(fragment)
            target = None if names is None else self._resources[uri] + names
        exists, schema = (False, None) if target is None else resolve_pointer(self.root, target)
        if not exists or not isinstance(schema, dict | bool):
            return Reference(place, keyword, text, None, "leads to no schema")
        return Reference(place, keyword, text, target)

    def _edges(self, place: Pointer, *, same_value: bool) -> Iterator[Pointer]:
        """The schemas that a schema needs for its judgement."""
        check_deadline()
        schema = self.at[place]
        for keyword, child, _ in _children(place, schema):
            if keyword in _SAME_VALUE or not (same_value or keyword in _APART):
                yield child
        yield from self._targets.get(place, ())

    @cached_property
    def _targets(self) -> dict[Pointer, list[Pointer]]:
        targets: dict[Pointer, list[Pointer]] = {}
        for reference in self.references:
            if reference.target is not None:
                targets.setdefault(reference.place, []).append(reference.target)
                if reference.keyword == "$dynamicRef":
                    targets[reference.place] += self._dynamic.get(reference.text.rpartition("#")[2], [])
        return targets

    def _unfold(self, place: Pointer, within: set[Pointer]) -> Unfolded:
        if place in self._unfolded:
            return self._unfolded[place]
        if place in within:
            return Unfolded(1, 0, 1)
        if len(within) > MAX_HEIGHT:
            return Unfolded(1, 1, 0)
        check_deadline()
        within.add(place)
        parts = [self._unfold(target, within) for target in self._edges(place, same_value=False)]
        within.remove(place)
        # The library looks three times at what is inside a schema that must know what the others looked at.
        weight = 3 if parts and not _REMEMBERING.isdisjoint(self.at[place]) else 1
        size = 1 + weight * sum(part.size for part in parts)
        returns = weight * sum(part.returns for part in parts)
        height = 1 + max((part.height for part in parts), default=0)
        self._unfolded[place] = Unfolded(min(size, MAX_UNFOLDED + 1), height, min(returns, MAX_UNFOLDED))
        return self._unfolded[place]


def resolve_pointer(document: Any, place: Pointer) -> tuple[bool, Any]:
    """Whether a pointer leads somewhere, and what is there."""
    for name in place:
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and (index := pointer.index(name)) is not None and index < len(document):
            document = document[index]
        else:
            return False, None
    return True, document


def _joined(base: str, reference: str) -> tuple[str, str]:
    """A reference from a base: the document and the fragment."""
    if reference.startswith("#"):
        return base, unquote(reference[1:])
    try:
        uri, fragment = urldefrag(urljoin(base, reference))
    except ValueError:  # no URI at all
        return reference, ""
    return uri, unquote(fragment)


def _children(place: Pointer, schema: Any) -> Iterator[tuple[str, Pointer, Any]]:
    """The schemas directly inside a schema: by which keyword, where, and what."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        inside: Iterator[tuple[Any, Any]] = iter(())
        if keyword in _ONES and isinstance(value, dict | bool):
            yield keyword, (*place, keyword), value
        elif keyword in _MAPS and isinstance(value, dict):
            inside = iter(value.items())
        elif keyword in _LISTS | {"items"} and isinstance(value, list):
            inside = enumerate(value)
        for name, subschema in inside:
            if isinstance(subschema, dict | bool):
                yield keyword, (*place, keyword, str(name)), subschema
