"""What the objects of companions are called.

::

    companions/<hash of the stream's name>/<incarnation>/<first seq, 16 digits>-<count>-<unique>.<part>.parquet

The hash and the incarnation are those of the stream's manifest; a *part* is ``columns``, ``postings`` or ``panes``.
"""

from __future__ import annotations

import re

from headrace.format.companion.layout import PartName
from headrace.format.manifest import checked, name_hash

COMPANIONS = "companions"

_KEY = re.compile(
    rf"{COMPANIONS}/([0-9a-f]{{32}})/([0-9a-z]{{1,64}})/(\d{{16}}-\d+-[0-9a-z]{{1,64}})\.(?:columns|postings|panes)\.parquet"
)


def file_name(name: str, part: PartName) -> str:
    """The last part of an object's key, and what the file is called."""
    return f"{name}.{part}.parquet"


def companion_key(stream: str, incarnation: str, name: str, part: PartName) -> str:
    """The key of one object of a companion."""
    return f"{COMPANIONS}/{name_hash(stream)}/{checked(incarnation)}/{file_name(name, part)}"


def companion_place(key: str) -> tuple[tuple[str, str], str] | None:
    """The (name hash, incarnation) and the companion's name that a key is made of, or None for another key."""
    match = _KEY.fullmatch(key)
    return None if match is None else ((match[1], match[2]), match[3])


STATES = "states"

_NAMES_KEY = re.compile(rf"{STATES}/([0-9a-f]{{32}})/([0-9a-z]{{1,64}})/(\d{{16}}-\d+-[0-9a-z]{{1,64}})\.parquet")


def state_prefix(stream: str, incarnation: str) -> str:
    """How the keys of all states of a stream begin."""
    return f"{STATES}/{name_hash(stream)}/{checked(incarnation)}"


def state_key(stream: str, incarnation: str, name: str) -> str:
    """The key of a state."""
    return f"{state_prefix(stream, incarnation)}/{name}.parquet"


def state_place(key: str) -> tuple[tuple[str, str], str] | None:
    """The (name hash, incarnation) and the state's name that a key is made of, or None for another key."""
    match = _NAMES_KEY.fullmatch(key)
    return None if match is None else ((match[1], match[2]), match[3])
