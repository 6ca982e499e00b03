"""Every request that the client and the workers make is to a route of the server, which neither of them imports."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.client.requests import Request
from headrace.pipeline.work import Lease, Work
from headrace.server.routes.route_table import ROUTES

MODULES = ("entity_requests", "entity_types", "features", "requests", "schemas", "search", "touches")
#: What parameters of these names and types are given.
NAMED: dict[str, Any] = {
    "offset": "-1", "events": {"a": 1}, "entries": [1], "start": 0, "end": 1, "keys": ["k"], "options": {}, "view": {},
    "verb": "update",
}  # fmt: skip
TYPED: dict[str, Any] = {
    "str": "x", "int": 1, "float": 1.0, "bool": False, "bytes": b"[]", "object": {}, "Any": {}, "None": None,
}  # fmt: skip


def addressed(method: str, target: str) -> set[str]:
    """The names of the routes that a request comes to."""
    path = target.partition("?")[0]
    return {
        route.name
        for route in ROUTES
        if route.method == method
        and re.fullmatch(
            "/".join("[^/]+" if "{" in part else re.escape(part) for part in route.address.split("/")), path
        )
    }


def builders() -> Iterator[Any]:
    for name in MODULES:
        module = importlib.import_module(f"headrace.client.{name}")
        for function in vars(module).values():
            makes_request = inspect.isfunction(function) and function.__annotations__.get("return") == "Request"
            # The one that posts anywhere is told where by the others.
            is_public = not function.__name__.endswith("post") if makes_request else False
            if is_public and function.__module__ == module.__name__ and not function.__name__.startswith("_"):
                yield pytest.param(function, id=f"{name}.{function.__name__}")


def argument(parameter: inspect.Parameter) -> Any:
    """Something that the parameter takes."""
    if parameter.name in NAMED:
        return NAMED[parameter.name]
    kind = str(parameter.annotation)
    if kind.startswith(("list", "Sequence", "Iterable", "tuple", "Collection")):
        return []
    if kind.startswith(("dict", "Mapping")):
        return {}
    return TYPED.get(kind.partition(" ")[0].partition("[")[0], "x")


@pytest.mark.parametrize("builder", list(builders()))
def test_a_request_of_the_client_comes_to_a_route(builder: Callable[..., Request]) -> None:
    required = [
        parameter
        for parameter in inspect.signature(builder).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    named = {parameter.name: argument(parameter) for parameter in required if parameter.kind is parameter.KEYWORD_ONLY}
    placed = [argument(parameter) for parameter in required if parameter.kind is not parameter.KEYWORD_ONLY]
    request = builder(*placed, **named)
    assert addressed(request.method, request.target), (request.method, request.target)


class Asked(Work):
    """A worker whose requests are kept, and not sent."""

    def __init__(self) -> None:
        self.targets: list[tuple[str, str]] = []

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        self.targets.append((method, path))
        return {"units": []}


def test_a_request_of_a_worker_comes_to_a_route() -> None:
    work, lease = Asked(), Lease("l", 1, 1, "memory://", ())
    work.status()
    work.lease("w", 1)
    work.heartbeat(lease, 0)
    work.commit(lease, [])
    work.release(lease)
    work.pause()
    work.resume()
    work.run("s")
    names = [addressed(method, target) for method, target in work.targets]
    assert names == [
        {"get_work"}, {"lease_work"}, {"keep_work"}, {"commit_work"}, {"release_work"}, {"pause_work"}, {"resume_work"},
        {"run_work"},
    ]  # fmt: skip
