"""The words the document is written in: schemas of single values, and builders of its parts."""

from __future__ import annotations

from typing import Any

from headrace.server.http.auth import MAX_USER

Node = dict[str, Any]

CROCKFORD = "[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]"
OFFSET = rf"[0-7]{CROCKFORD}{{18}}[048CGMRWcgmrw]0{{6}}"
DURATION = r"((0|[1-9][0-9]{0,11})(ms|s|m|h|d))+"

TEXT: Node = {"type": "string"}
USER: Node = {"type": "string", "minLength": 1, "maxLength": MAX_USER}
FLAG: Node = {"type": "boolean"}
OBJECT: Node = {"type": "object"}
OBJECTS: Node = {"type": "array", "items": OBJECT}
NAMES: Node = {"type": "array", "items": TEXT}
WHEN: Node = {"type": "string", "format": "date-time"}
WHOLE: Node = {"type": "integer", "minimum": 0}
DIGITS: Node = {"type": "string", "pattern": r"^(0|[1-9][0-9]{0,17})$"}
COUNTER: Node = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
MOMENT: Node = {
    "description": "an RFC 3339 time, or Unix nanoseconds",
    "anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": "^[0-9]{1,20}$"}],
}
AGE: Node = {"type": "string", "pattern": f"^(?=.*[1-9]){DURATION}$"}
TRUE: Node = {"type": "string", "enum": ["true"]}
MINTED: Node = {"type": "string", "pattern": f"^{OFFSET}$"}


def either(schema: Node) -> Node:
    """What may also be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(required: str = "", /, **properties: Node) -> Node:
    """An object with these properties; the names in ``required`` without a schema may hold anything."""
    names = [*required.split(), *properties]
    return {"type": "object", "required": names, "properties": properties}


def closed_record(required: str = "", /, **properties: Node) -> Node:
    """A request body that may hold these properties and no others."""
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


def header(name: str, schema: Node, text: str) -> Node:
    """A request header."""
    return {"name": name, "in": "header", "description": text, "schema": schema}


def query(name: str, schema: Node, text: str) -> Node:
    """A query parameter."""
    return {"name": name, "in": "query", "description": text, "schema": schema}


def path(name: str, schema: Node, text: str) -> Node:
    """A part of the path."""
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


def answer(text: str, schema: Node, headers: Node | None = None) -> Node:
    """An answer with a JSON body."""
    return {"description": text, "headers": headers or {}, "content": {"application/json": {"schema": schema}}}


def plain(text: str, headers: Node | None = None) -> Node:
    """An answer without a body."""
    return {"description": text, "headers": headers or {}}


def failure(text: str) -> Node:
    """An answer that says what went wrong."""
    return answer(text, {"$ref": "#/components/schemas/Error"})


FAILURES: dict[int, str] = {
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
ANYWHERE = (400, 408, 414, 431, 503)
KEYED = (*ANYWHERE, 401, 403, 429)


def answers(failures: str = "", *, keyed: bool = True, **successes: Node) -> Node:
    """Responses by status: successes as ``s200=…``, and failures by number."""
    answers = {status[1:]: answer for status, answer in successes.items()}
    every = sorted({*map(int, failures.split()), *(KEYED if keyed else ANYWHERE)})
    return answers | {str(status): failure(FAILURES[status]) for status in every}


def operation(name: str, text: str, responses: Node, *parameters: Node, body: Node | None = None) -> Node:
    """A verb of a path."""
    named: Node = {"operationId": name, "tags": [name.rpartition("_")[2]], "summary": text}
    content: Node = {} if body is None else {"requestBody": body}
    return {**named, "parameters": list(parameters), **content, "responses": responses}


def leading_to(operations: str, parameter: str, answer: Node) -> Node:
    """An answer after which these operations make sense on the same thing."""
    same = {parameter: f"$request.path.{parameter}"}
    return answer | {"links": {name: {"operationId": name, "parameters": same} for name in operations.split()}}


def content(schema: Node) -> Node:
    """A JSON request body."""
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def get_only(name: str, text: str, found: Node, *, keyed: bool = True) -> Node:
    """A path with one verb."""
    return {"get": operation(name, text, answers(keyed=keyed, s200=found))}
