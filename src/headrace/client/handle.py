"""The common base of the blocking and the async handle of a stream."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack
from urllib.parse import urlsplit

from headrace.client import requests
from headrace.client.answers import CreateResult, StreamInfo
from headrace.client.deliveries import ProducerOptions
from headrace.client.options import at_least
from headrace.client.requests import AppendOptions, CreateOptions, Request
from headrace.client.retry import Patience, is_harmless, is_passing
from headrace.client.transport import Settings
from headrace.errors import Gone, HeadraceError, NotFound
from headrace.types import JSON

Described = TypeVar("Described", CreateResult, StreamInfo)


def settings_for(url: str, key: str | None, timeout_s: float, retry_for_s: float, ca_file: str | None) -> Settings:
    """Checked settings; the URL may have a path below which the server lives."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is not the URL of a server, such as http://127.0.0.1:4437")
    at_least(0, {"timeout": timeout_s, "retry_for": retry_for_s}, "timeout", "retry_for")
    return Settings(url.rstrip("/"), key, timeout_s, retry_for_s, ca_file)


def worth_repeating(request: Request, error: HeadraceError) -> HeadraceError:
    """The error back if the request may be repeated after it; raises it otherwise."""
    appends = request.method == "POST" and bool(request.body) and request.changes
    may_repeat = is_harmless(error) if appends else is_passing(error)
    if not may_repeat:
        raise error
    return error


def is_deleted_already(request: Request, error: HeadraceError, patience: Patience) -> bool:
    """Whether this answers a repeated DELETE of which an earlier attempt may have deleted the stream."""
    return request.method == "DELETE" and patience.is_uncertain and isinstance(error, NotFound | Gone)


class Handle:
    """A stream's name, and its content type once that is known."""

    def __init__(self, name: str, content_type: str | None) -> None:
        self.name = name
        self.content_type = content_type

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _learn(self, described: Described) -> Described:
        self.content_type = described.content_type
        return described

    def _must_ask(self, value: Any) -> bool:
        return self.content_type is None and isinstance(value, bytes | bytearray | memoryview)

    def _appending(self, value: Any, **options: Unpack[AppendOptions]) -> Request:
        content_type = self.content_type or JSON
        return requests.append(self.name, requests.encode(value, content_type), content_type, **options)

    def _producing(self, options: ProducerOptions) -> ProducerOptions:
        if self.content_type is not None:
            options.setdefault("content_type", self.content_type)
        return options

    def _forking(self, options: CreateOptions) -> CreateOptions:
        options["forked_from"] = self.name
        if self.content_type is not None:
            options.setdefault("content_type", self.content_type)
        return options
