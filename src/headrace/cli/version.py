"""``headrace version``."""

from __future__ import annotations

import importlib.metadata
import platform

from headrace.cli import output
from headrace.cli.output import AsJson


def version(*, json: AsJson = False) -> None:
    """Print the version."""
    if output.wants_table(json):
        print(sentence())
    else:
        output.show({"headrace": _own(), "python": platform.python_version()}, as_json=True)


def sentence() -> str:
    """The version for people."""
    return f"headrace {_own()} (Python {platform.python_version()})"


def _own() -> str:
    return importlib.metadata.version("headrace")
