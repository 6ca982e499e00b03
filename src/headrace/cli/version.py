"""``headrace version``."""

from __future__ import annotations

import importlib.metadata
import platform

from headrace.cli import output
from headrace.cli.output import AsJson


def version(*, json: AsJson = False) -> None:
    """Print the version."""
    found = importlib.metadata.version("headrace")
    if output.wants_table(json):
        print(f"headrace {found} (Python {platform.python_version()})")
    else:
        output.show({"headrace": found, "python": platform.python_version()}, as_json=True)
