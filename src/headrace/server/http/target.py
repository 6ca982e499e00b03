"""Addresses: the raw path of a request becomes the name of a stream and a resource of it."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

import msgspec

from headrace.errors import BadRequest, NotFound
from headrace.types import RESERVED

PREFIX = b"/v1/stream/"
_RESERVED = PREFIX + b"__ds/"
#: What the paths of the protocol itself begin with, which are of no stream.
RESERVED_PATH = _RESERVED.decode()
_PUSH = b"/v1/push/"
#: Routes besides those of streams that are answered on the hot path, and the resources they stand for.
_FEATURES = {
    b"/v1/get": "/get", b"/v1/batch_get": "/batch_get", b"/v1/observations": "/observations", b"/v1/traces": "/traces",
}  # fmt: skip
#: What the paths of hot requests begin with.
_HOT = (PREFIX, _PUSH, *_FEATURES)
#: One entity is asked for there too; what else is done with it is not.
_READS = ("GET", "HEAD")
_ENTITY = re.compile(rb"/v1/entities/(ent_[0-9a-f]{24})")
ENTITY = "/entity"
PUSH, GET, BATCH_GET, OBSERVATIONS, TRACES = "/push", *_FEATURES.values()
# Reserved last segments, so that no stream takes their name: a new resource of a stream is added here.
RESOURCES = (
    "_aggregate", "_details", "_index_status", "_otlp/v1/traces", "_plan", "_plan/rows", "_profile", "_retention",
    "_routing_keys", "_schema", "_schema/history", "_schema/verifications", "_seal", "_search", "touch/meta",
    "touch/templates/activate", "touch/wait",
)  # fmt: skip
_RESERVED_WORDS = frozenset(word for resource in RESOURCES for word in (resource, resource.rpartition("/")[2])) - {
    "meta", "wait", "activate", "traces", "history", "verifications", "rows",
} | {"pk"}  # fmt: skip
_SUFFIXES = tuple(f"/{resource}" for resource in RESOURCES)
_KEY = re.compile(rb"(.+?)/pk/([^/]*)")
_VERIFICATIONS = "_schema/verifications"
_VERIFICATION = re.compile(rb"(.+)/_schema/verifications/([^/]+)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Target(msgspec.Struct, frozen=True, gc=False):
    """A stream's name, the resource of it ("" is the stream itself), and the key of ``pk/{key}``.

    Or the id of ``_schema/verifications/{id}``: what names one of several.
    """

    name: str
    resource: str
    key: str | None


def parse(raw_path: bytes) -> Target:
    """Read a raw path; of a stream's, the rightmost reserved suffix is the resource."""
    if not raw_path.startswith(PREFIX):
        return _of_features(raw_path)
    rest = raw_path[len(PREFIX) :].rstrip(b"/")
    if b"/" not in rest:
        return Target(text(rest), "", None)
    keyed = _KEY.fullmatch(rest)
    if keyed is not None:
        return Target(text(keyed[1]), "", text(keyed[2]))
    verification = _VERIFICATION.fullmatch(rest)
    if verification is not None:
        return Target(text(verification[1]), _VERIFICATIONS, text(verification[2]))
    for resource in RESOURCES:
        suffix = b"/" + resource.encode()
        if rest.endswith(suffix):
            return Target(text(rest[: -len(suffix)]), resource, None)
    return Target(text(rest), "", None)


def resource_of(address: str) -> str:
    """The resource of a hot route's address; refuses one that is indistinguishable from the name of a stream."""
    stream, prefix = PREFIX.decode() + "{name}", PREFIX.decode()
    if address.startswith(prefix):
        resource = address.removeprefix(stream).removeprefix("/").partition("/{")[0].removesuffix("pk")
        if resource and resource not in RESOURCES:
            raise ValueError(f"{resource} is not among the resources whose names no stream may take")
        return resource
    if address in ("/v1/push/{event}", "/v1/entities/{id}"):
        return PUSH if "push" in address else ENTITY
    return _FEATURES[address.encode()]


def is_hot(method: str, url: bytes) -> bool:
    """Whether a request is answered on the hot path."""
    if url.startswith(_HOT):
        return not url.startswith(_RESERVED)
    return method in _READS and _ENTITY.fullmatch(url.partition(b"?")[0]) is not None


def _of_features(raw_path: bytes) -> Target:
    if raw_path.startswith(_PUSH):
        return Target(text(raw_path[len(_PUSH) :]), PUSH, None)
    entity = _ENTITY.fullmatch(raw_path)
    if entity is not None:
        return Target(entity[1].decode(), ENTITY, None)
    resource = _FEATURES.get(raw_path)
    if resource is None:
        raise NotFound("there is nothing at this address", path=raw_path.decode("latin-1"))
    return Target(resource, resource, None)


def address(name: str) -> str:
    """The path of a stream."""
    return PREFIX.decode() + quote(name, safe="/~!$&'()*+,;=:@")


def check_name(name: str, limit: int) -> None:
    """Refuse what cannot be the name of a new stream."""
    if not name:
        raise BadRequest("missing stream name", field="name")
    if len(name.encode()) > limit:
        raise BadRequest(f"a stream name has at most {limit} bytes", field="name")
    if _CONTROL.search(name):
        raise BadRequest("a stream name has no control characters", field="name")
    segments = name.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        raise BadRequest("a stream name has no empty, '.' or '..' segments", field="name")
    if segments[-1] in _RESERVED_WORDS or "pk" in segments or name.endswith(_SUFFIXES):
        raise BadRequest(f"{segments[-1]!r} is reserved and cannot end a stream name", field="name")
    if segments[-3:-1] == _VERIFICATIONS.split("/"):
        raise BadRequest(f"{_VERIFICATIONS!r} is reserved and cannot stand in a stream name", field="name")
    if segments[0].startswith(RESERVED):
        raise BadRequest("names that begin with '__' are reserved", field="name")


def text(raw: bytes) -> str:
    """The decoded bytes of a path; refuses malformed escapes and what is not UTF-8."""
    if b"%" in raw and re.search(rb"%(?![0-9A-Fa-f]{2})", raw):
        raise BadRequest("the path has a malformed percent escape", field="path")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as reason:
        raise BadRequest("the path is not UTF-8", field="path") from reason
