"""The OpenAPI document of some routes; the schemas are those of the types that the wire is encoded and decoded with."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import UNSET

from headrace import errors
from headrace.errors import HeadraceError
from headrace.server.http.route import Answer, Body, OneOf, Parameter, Route
from headrace.types import JSON

Node = dict[str, Any]

_REFERENCES = "#/components/schemas/{name}"
_FAILURES: dict[int, str] = {
    400: "a value is wrong; `field` says which",
    401: "no key, or a wrong one",
    403: "the caller may not do this",
    404: "there is no such thing",
    408: "working time ran out; of an append the outcome is unknown",
    409: "the state of the thing forbids it",
    410: "it was there once",
    412: "If-Match names another tail",
    413: "the body is too large",
    414: "the address is too long",
    415: "an encoding we do not speak",
    429: "a queue is full, or the key exceeds its rate limits; see Retry-After",
    431: "the headers are too large",
    503: "starting, stopping or out of disk; see Retry-After",
}
_ALWAYS = (errors.TimedOut, errors.UriTooLong, errors.HeadersTooLarge, errors.Unavailable)
_WITH_KEY = (errors.Unauthorized, errors.Forbidden, errors.Overloaded)


class ErrorFacts(msgspec.Struct):
    """What went wrong: a stable code, a sentence for people, and facts."""

    code: str
    message: str


class Error(msgspec.Struct):
    """The answer to a request that failed."""

    error: ErrorFacts


class _Types:
    """The schemas of all types of a document, made together, so that each has one name."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._types: list[Any] = [Error]
        for route in routes:
            for part in (*route.parameters, *route.answers.values(), *([route.body] if route.body else ())):
                self._types += _types(part)
        schemas, self.components = msgspec.json.schema_components(self._types, ref_template=_REFERENCES)
        self._require_what_is_always_there(routes)
        self._schemas = {id(type): schema for type, schema in zip(self._types, schemas, strict=True)}

    def _require_what_is_always_there(self, routes: Iterable[Route]) -> None:
        """Fields with defaults may be left out of requests, but they are in every answer."""
        read = _structs(_types(route.body) for route in routes if route.body is not None)
        for kind in _structs(_types(answer) for route in routes for answer in route.answers.values()) - read:
            if not kind.__struct_config__.omit_defaults:
                fields = msgspec.structs.fields(kind)
                required = [field.encode_name for field in fields if field.default is not UNSET]
                self.components[kind.__name__]["required"] = required

    def schema(self, type: Any) -> Node:
        """The schema of a type, with references to components."""
        if isinstance(type, OneOf):
            return {"anyOf": [self.schema(each) for each in type.types]}
        return self._schemas[id(type)]


def _types(part: Parameter | Answer | Body) -> list[Any]:
    """The types that a part of a route names."""
    types = [part.type] if isinstance(part, Parameter) else [part.type, *part.media.values()]
    if isinstance(part, Answer):
        types += [header.type for header in part.headers]
    single = [type.types if isinstance(type, OneOf) else (type,) for type in types if type not in (None, UNSET)]
    return [type for types in single for type in types]


def _structs(groups: Iterable[list[Any]]) -> set[type[msgspec.Struct]]:
    """The classes that occur in some types."""
    structs: set[type[msgspec.Struct]] = set()
    waiting = [inspected for types in groups for inspected in msgspec.inspect.multi_type_info(types)]
    while waiting:
        inspected = waiting.pop()
        if isinstance(inspected, msgspec.inspect.StructType):
            if inspected.cls not in structs:
                structs.add(inspected.cls)
                waiting += [field.type for field in inspected.fields]
            continue
        for name in ("type", "item_type", "key_type", "value_type"):
            waiting += [getattr(inspected, name)] if hasattr(inspected, name) else []
        waiting += [*getattr(inspected, "types", ()), *getattr(inspected, "item_types", ())]
    return structs


def make_document(routes: Iterable[Route]) -> Node:
    """The document of some routes."""
    documented = [route for route in routes if route.is_documented]
    types = _Types(documented)
    paths: dict[str, Node] = {}
    for route in documented:
        operations = paths.setdefault(route.address, {})
        if parts := [_parameter(types, part) for part in route.parameters if part.where == "path"]:
            operations.setdefault("parameters", parts)
        operations[route.method.lower()] = _operation(types, route)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version("headrace"),
            "description": "Durable event streams over HTTP. Errors have a stable `code`.",
        },
        "paths": paths,
        "components": {
            "schemas": types.components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "token": {"type": "http", "scheme": "bearer", "description": "the token of a wake"},
            },
        },
        "security": [{}, {"key": []}],
    }
    decoded: Node = msgspec.json.decode(msgspec.json.encode(document))  # tuples are lists, as they are sent
    return decoded


def codes(route: Route) -> dict[int, list[str]]:
    """The codes that a route may fail with, by status."""
    codes_by_status: dict[int, set[str]] = {}
    for error in (route.bad_request, *_ALWAYS, *(() if route.scope.least == "none" else _WITH_KEY), *route.fails):
        for kind in _derived(error):
            codes_by_status.setdefault(kind.status, set()).add(kind.code)
    return {status: sorted(codes_by_status[status]) for status in sorted(codes_by_status)}


def _derived(error: type[HeadraceError]) -> Iterable[type[HeadraceError]]:
    """An error and those of the common tree that are derived from it and have its status."""
    yield error
    for kind in error.__subclasses__():
        if kind.__module__ == errors.__name__ and kind.status == error.status:
            yield from _derived(kind)


def _operation(types: _Types, route: Route) -> Node:
    operation: Node = {
        "operationId": route.name,
        "tags": [route.name.rpartition("_")[2]],
        "summary": route.summary,
        "parameters": [_parameter(types, part) for part in route.parameters if part.where != "path"],
    }
    if route.body is not None:
        operation["requestBody"] = _body(types, route.body)
    responses = {str(status): _answer(types, route, answer) for status, answer in route.answers.items()}
    for status, names in codes(route).items():
        responses.setdefault(str(status), _failure(status, names))
    if route.method == "HEAD":
        responses = {status: {**answer, "content": {}} for status, answer in responses.items()}
    operation["responses"] = dict(sorted(responses.items()))
    if route.scope.least == "token":
        operation["security"] = [{"token": []}]
    return operation


def _parameter(types: _Types, parameter: Parameter) -> Node:
    schema = types.schema(parameter.type)
    if parameter.default is not UNSET:
        schema = {**schema, "default": parameter.default}
    node: Node = {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.doc,
        "schema": schema,
    }
    if parameter.required:
        node["required"] = True
    if parameter.prefix:
        node |= {"style": "form", "explode": True, "x-headrace-prefix": parameter.prefix}
    return node


def _body(types: _Types, body: Body) -> Node:
    contents = {} if body.type is None else {JSON: body.type}
    media = {name: {"schema": types.schema(type)} for name, type in {**contents, **body.media}.items()}
    return {**({"description": body.doc} if body.doc else {}), "required": body.required, "content": media}


def _answer(types: _Types, route: Route, answer: Answer) -> Node:
    headers = {
        header.name: {"description": header.doc, "schema": types.schema(header.type)} for header in answer.headers
    }
    node: Node = {"description": answer.doc, "headers": headers}
    contents = {} if answer.type is UNSET else {JSON: answer.type}
    if media := {**contents, **answer.media}:
        node["content"] = {name: {"schema": types.schema(type)} for name, type in media.items()}
    if answer.leads_to:
        (part,) = (parameter.name for parameter in route.parameters if parameter.where == "path")
        same = {part: f"$request.path.{part}"}
        node["links"] = {name: {"operationId": name, "parameters": same} for name in answer.leads_to}
    return node


def _failure(status: int, names: list[str]) -> Node:
    error_codes = {"properties": {"error": {"properties": {"code": {"enum": names}}}}}
    schema = {"allOf": [{"$ref": _REFERENCES.format(name=Error.__name__)}, error_codes]}
    return {"description": _FAILURES[status], "headers": {}, "content": {JSON: {"schema": schema}}}
