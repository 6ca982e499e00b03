"""Headrace: durable event streams over HTTP. ``import headrace as hr``, then ``hr.Client(url)`` or ``hr.App(url)``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client import *  # noqa: F403
    from headrace.client import __all__ as __all__


def __getattr__(name: str) -> Any:
    """Load the client with its first use, so that server and command line start without it."""
    is_private = name.startswith("_") and name != "__all__"
    # The import system asks for a module of ours before it loads it.
    if is_private or find_spec(f"headrace.{name}") is not None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    client = import_module("headrace.client")
    if name != "__all__" and name not in client.__all__:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(client, name)
