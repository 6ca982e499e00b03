"""``generic``: entries are what they are."""

from __future__ import annotations

from headrace.profiles.definition import Definition
from headrace.profiles.settings import nothing

GENERIC = Definition(name="generic", read=nothing, hook=lambda settings: None, needs_json=False)
