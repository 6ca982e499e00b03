"""The schemas inside a JSON Schema, the references between them, and how large it is with references followed."""

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

DEFINITIONS = frozenset({"$defs", "definitions"})
NAMED_SCHEMAS = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"}) | DEFINITIONS
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SINGLE_SCHEMAS = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"}
)
SINGLE_SCHEMAS |= {"propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
#: Keywords whose subschemas apply to the same value as the schema itself.
_SAME_VALUE = frozenset({"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})


class Reference(NamedTuple):
    """A reference: its path, keyword and text, and its target, or why it has none."""

    path: Pointer
    keyword: str
    text: str
    target: Pointer | None
    reason: str = ""


class Unfolded(NamedTuple):
    """The size of a schema with references followed: subschemas, nesting, and how often it refers to itself."""

    size: int
    height: int
    returns: int


class Subschemas:
    """Every schema within a schema, by its pointer; including those reached only by a reference."""

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

    def find_loop(self) -> Pointer | None:
        """A schema that needs itself to validate the same value, if there is one."""
        graph = {path: set(self._edges(path, same_value=True)) for path in self.at}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            looping: list[Pointer] = error.args[1]
            return looping[0]
        return None

    @cached_property
    def unfolded(self) -> Unfolded:
        """The size of the whole schema with references followed."""
        return self._unfold((), set())

    def _walk(self, path: Pointer, schema: Any, base: str) -> None:
        check_deadline()
        self.at[path] = schema
        base = self._bases[path] = self._identify(path, schema, base)
        for _, child, subschema in _children(path, schema):
            if child not in self.at:
                self._walk(child, subschema, base)

    def _identify(self, path: Pointer, schema: Any, base: str) -> str:
        """Register the ids and anchors of a schema; returns the base URI of the references in it."""
        if not isinstance(schema, dict):
            return base
        if isinstance(name := schema.get(self._naming), str):
            uri, fragment = _resolve_uri(base, name)
            if fragment:
                self._anchors[uri, fragment] = path
            else:
                base = uri
                self._resources[base] = path
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(keyword), str):
                self._anchors[base, name] = path
        if isinstance(name := schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(name, []).append(path)
        return base

    def _follow(self) -> None:
        """Resolve every reference, in what they lead to as well."""
        paths = list(self.at)
        for path in paths:
            schema = self.at[path]
            for keyword in _REFERENCES if isinstance(schema, dict) else ():
                if isinstance(text := schema.get(keyword), str):
                    reference = self._resolve(path, keyword, text)
                    self.references.append(reference)
                    target = reference.target
                    if target is not None and target not in self.at:
                        count = len(self.at)
                        self._walk(target, resolve_pointer(self.root, target)[1], self._base_of(target))
                        paths += list(self.at)[count:]

    def _base_of(self, path: Pointer) -> str:
        return next(self._bases[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self._bases)

    def _resolve(self, path: Pointer, keyword: str, text: str) -> Reference:
        check_deadline()
        uri, fragment = _resolve_uri(self._bases[path], text)
        if uri not in self._resources:
            return Reference(path, keyword, text, None, "lies outside this document; references must stay within it")
        target: Pointer | None = self._anchors.get((uri, fragment))
        if not fragment or fragment.startswith("/"):
            names = pointer.parse(fragment)
            target = None if names is None else self._resources[uri] + names
        exists, schema = (False, None) if target is None else resolve_pointer(self.root, target)
        if not exists or not isinstance(schema, dict | bool):
            return Reference(path, keyword, text, None, "leads to no schema")
        return Reference(path, keyword, text, target)

    def _edges(self, path: Pointer, *, same_value: bool) -> Iterator[Pointer]:
        """The schemas that a schema needs to validate a value."""
        check_deadline()
        schema = self.at[path]
        for keyword, child, _ in _children(path, schema):
            if keyword in _SAME_VALUE or not (same_value or keyword in DEFINITIONS):
                yield child
        yield from self._targets.get(path, ())

    @cached_property
    def _targets(self) -> dict[Pointer, list[Pointer]]:
        targets: dict[Pointer, list[Pointer]] = {}
        for reference in self.references:
            if reference.target is not None:
                targets.setdefault(reference.path, []).append(reference.target)
                if reference.keyword == "$dynamicRef":
                    targets[reference.path] += self._dynamic.get(reference.text.rpartition("#")[2], [])
        return targets

    def _unfold(self, path: Pointer, open_paths: set[Pointer]) -> Unfolded:
        if path in self._unfolded:
            return self._unfolded[path]
        if path in open_paths:
            return Unfolded(1, 0, 1)
        if len(open_paths) > MAX_HEIGHT:
            return Unfolded(1, 1, 0)
        check_deadline()
        open_paths.add(path)
        parts = [self._unfold(target, open_paths) for target in self._edges(path, same_value=False)]
        open_paths.remove(path)
        # The library visits what is inside a schema with unevaluated members or elements three times.
        weight = 3 if parts and not _UNEVALUATED.isdisjoint(self.at[path]) else 1
        size = 1 + weight * sum(part.size for part in parts)
        returns = weight * sum(part.returns for part in parts)
        height = 1 + max((part.height for part in parts), default=0)
        self._unfolded[path] = Unfolded(min(size, MAX_UNFOLDED + 1), height, min(returns, MAX_UNFOLDED))
        return self._unfolded[path]


def resolve_pointer(document: Any, path: Pointer) -> tuple[bool, Any]:
    """Whether a pointer leads to a value, and that value."""
    for name in path:
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and (index := pointer.index(name)) is not None and index < len(document):
            document = document[index]
        else:
            return False, None
    return True, document


def _resolve_uri(base: str, reference: str) -> tuple[str, str]:
    """A reference resolved against a base: the document and the fragment."""
    if reference.startswith("#"):
        return base, unquote(reference[1:])
    try:
        uri, fragment = urldefrag(urljoin(base, reference))
    except ValueError:  # no URI at all
        return reference, ""
    return uri, unquote(fragment)


def _children(path: Pointer, schema: Any) -> Iterator[tuple[str, Pointer, Any]]:
    """The schemas directly inside a schema: by which keyword, where, and what."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        inside: Iterator[tuple[Any, Any]] = iter(())
        if keyword in SINGLE_SCHEMAS and isinstance(value, dict | bool):
            yield keyword, (*path, keyword), value
        elif keyword in NAMED_SCHEMAS and isinstance(value, dict):
            inside = iter(value.items())
        elif keyword in SCHEMA_LISTS | {"items"} and isinstance(value, list):
            inside = enumerate(value)
        for name, subschema in inside:
            if isinstance(subschema, dict | bool):
                yield keyword, (*path, keyword, str(name)), subschema
