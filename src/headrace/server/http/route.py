"""A route of the server, declared once beside its verb: dispatch, the OpenAPI document, pages and tests read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET

from headrace.errors import BadRequest, HeadraceError

_CONVERTER = re.compile(r":\w+\}")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_ATTRIBUTE = "declared_routes"


class Scope(msgspec.Struct, frozen=True):
    """What a caller must be allowed to do."""

    #: ``token`` is that of a wake; ``key`` is any key.
    least: Literal["none", "token", "key", "read", "write", "admin"]
    #: Where the scope is needed; nothing where it is needed for the stream or type of the address, or for no stream.
    details: str = ""

    @property
    def is_open(self) -> bool:
        """Whether no key is looked for."""
        return self.least in ("none", "token")

    def __str__(self) -> str:
        return self.details or {"token": "the wake's token", "key": "any key"}.get(self.least, self.least)


NO_KEY, TOKEN, ANY_KEY = Scope("none"), Scope("token"), Scope("key")
READ, WRITE, ADMIN = Scope("read"), Scope("write"), Scope("admin")


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a request; ``type`` has its bounds and examples as annotations."""

    where: Literal["path", "query", "header"]
    name: str
    type: Any
    doc: str
    required: bool = False
    default: Any = UNSET
    #: Given several times, its values are joined by commas.
    repeats: bool = False
    #: Stands for every parameter whose name begins so.
    prefix: str = ""


def in_path(name: str, type: Any, doc: str) -> Parameter:
    """A part of the path."""
    return Parameter("path", name, type, doc, required=True)


def in_query(
    name: str, type: Any, doc: str, *, required: bool = False, default: Any = UNSET, repeats: bool = False
) -> Parameter:
    """A query parameter."""
    return Parameter("query", name, type, doc, required, default, repeats)


def in_header(name: str, type: Any, doc: str) -> Parameter:
    """A request header."""
    return Parameter("header", name, type, doc)


class Header(msgspec.Struct, frozen=True):
    """A header of an answer."""

    name: str
    type: Any
    doc: str


class Body(msgspec.Struct, frozen=True):
    """The body of a request: a JSON document of one of some types, or bytes of other media types."""

    type: Any = None
    max_bytes: int | None = None
    required: bool = True
    #: Whether Content-Type must say that it is JSON.
    needs_type: bool = True
    #: Other media types, and the types of their contents.
    media: Mapping[str, Any] = {}
    doc: str = ""


class Answer(msgspec.Struct, frozen=True):
    """An answer of one status: its body is a JSON document of one of some types, or of other media types, or absent."""

    doc: str
    type: Any = UNSET
    headers: tuple[Header, ...] = ()
    media: Mapping[str, Any] = {}
    #: Operations that make sense on the same thing afterwards.
    leads_to: tuple[str, ...] = ()


class OneOf(msgspec.Struct, frozen=True):
    """Several types of a body."""

    types: tuple[Any, ...]


def one_of(*types: Any) -> OneOf:
    """A body of one of these types."""
    return OneOf(types)


Verb = TypeVar("Verb", bound=Callable[..., Any])


class Route(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A method at an address: its handler, access, parameters, body, answers and errors."""

    method: str
    #: A template; ``{name:path}`` takes slashes too.
    path: str
    #: The name of the operation.
    name: str
    #: One sentence; links in it are for pages only.
    doc: str
    scope: Scope
    answers: Mapping[int, Answer]
    #: The errors it may fail with, besides those of every route; an error stands for those derived from it too.
    fails: tuple[type[HeadraceError], ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    #: Whether it is answered without an ASGI call where that is possible. Every address below ``/v1/stream/`` but
    #: those of subscriptions is hot.
    is_hot: bool = False
    #: Whether unknown query parameters are ignored.
    takes_any_query: bool = False
    #: What is wrong with a value is raised as this.
    bad_request: type[BadRequest] = BadRequest
    #: What the change is called in the account of ``__registry__``; empty where nothing but data changes.
    recorded_as: str = ""
    #: Whether it is in the OpenAPI document.
    is_documented: bool = True
    verb: Callable[..., Any]

    @cached_property
    def address(self) -> str:
        """The path without what parts of it may hold."""
        return _CONVERTER.sub("}", self.path)

    @cached_property
    def summary(self) -> str:
        """The sentence without its links."""
        return _LINK.sub(r"\1", self.doc)

    @cached_property
    def _declared_names(self) -> tuple[frozenset[str], tuple[str, ...]]:
        queries = [parameter for parameter in self.parameters if parameter.where == "query"]
        prefixes = tuple(parameter.prefix for parameter in queries if parameter.prefix)
        return frozenset(parameter.name for parameter in queries if not parameter.prefix), prefixes

    @cached_property
    def lists(self) -> tuple[str, ...]:
        """The parameters that may be given several times."""
        return tuple(parameter.name for parameter in self.parameters if parameter.repeats)

    def refuse_unknown_parameters(self, names: Iterable[str]) -> None:
        """Refuse query parameters that the route does not have."""
        if self.takes_any_query:
            return
        declared, prefixes = self._declared_names
        for name in names:
            if name not in declared and not (prefixes and name.startswith(prefixes)):
                raise self.bad_request(f"there is no parameter {name} here", field=name)


def route(
    method: str, path: str, name: str, doc: str, scope: Scope, answers: Mapping[int, Answer], **rest: Any
) -> Callable[[Verb], Verb]:
    """Declare that a method of a class is the verb of a route; ``rest`` are further fields of the route."""

    def declare(verb: Verb) -> Verb:
        declared: list[Route] = verb.__dict__.setdefault(_ATTRIBUTE, [])
        fields: dict[str, Any] = {
            "method": method,
            "path": path,
            "name": name,
            "doc": doc,
            "scope": scope,
            "answers": answers,
        }
        declared.insert(0, Route(**fields, **rest, verb=verb))  # decorators are applied from below
        return verb

    return declare


def routes_of(owner: type) -> Iterator[Route]:
    """The routes that the methods of a class are declared for, in the order of the text."""
    for member in vars(owner).values():
        yield from getattr(member, _ATTRIBUTE, ())


class Access:
    """Which addresses need no key, and which need an operator's key, whatever the method."""

    def __init__(self, routes: Iterable[Route]) -> None:
        every = tuple(routes)
        self._open = _pattern(route for route in every if route.scope.is_open)
        self._for_admins = _pattern(route for route in every if route.scope.least == "admin")

    def is_open(self, path: str) -> bool:
        """Whether a decoded path is served without a key, or checks a proof of its own."""
        return self._open.fullmatch(path) is not None

    def is_for_admins(self, path: str) -> bool:
        """Whether a decoded path is that of a route which only admins may use."""
        return self._for_admins.fullmatch(path) is not None


def _pattern(routes: Iterable[Route]) -> re.Pattern[str]:
    """What the addresses of some routes look like."""
    patterns = [
        re.sub(r"\\\{\w+(:path)?\\\}", lambda part: ".+" if part[1] else "[^/]+", re.escape(route.path))
        for route in routes
    ]
    return re.compile("|".join(patterns) or r"(?!)", re.DOTALL)
