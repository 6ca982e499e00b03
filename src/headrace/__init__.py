"""Headrace: durable event streams over HTTP, with schemas that change safely and features computed from events.

Write ``import headrace as hr``. Begin with these names; ``dir(hr)`` lists all, ``help(hr.App)`` explains one.

``hr.Client``, ``hr.AsyncClient``
    streams: create, append, read, tail, search, change schemas
``hr.App``, ``hr.AsyncApp``
    features and entities: register declarations, push events, get rows
``hr.Event``, ``hr.event``, ``hr.table``
    declare events, rows derived from them, and tables of features
``hr.count``, ``hr.sum``, ``hr.quantile``, …
    the operators of features, a function each
``hr.col``, ``hr.lit``
    expressions over the fields of a row
``hr.HeadraceError``, ``hr.errors``
    the root of all errors, and the errors of the server; those of the client are here by name
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from headrace import errors as errors
    from headrace.client import *  # noqa: F403
    from headrace.client import __all__ as __all__  # "errors" is added where it is loaded


def __getattr__(name: str) -> Any:
    """Load the client with its first use, so that server and command line start without it."""
    from importlib.util import find_spec

    if name == "errors":
        return _load("headrace.errors")
    if name == "__all__":
        return _public_names()
    # The import system asks for a module of ours before it loads it.
    if name.startswith("_") or find_spec(f"headrace.{name}") is not None or name not in _public_names():
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(_load("headrace.client"), name)


def __dir__() -> list[str]:
    """Every public name, and what every package has; the functions that load names on demand are left out."""
    hidden = {"__getattr__", "__dir__"}
    return sorted({name for name in globals() if name.startswith("__")}.difference(hidden).union(_public_names()))


def _public_names() -> list[str]:
    return sorted([*_load("headrace.client").__all__, "errors"])


def _load(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(name)
