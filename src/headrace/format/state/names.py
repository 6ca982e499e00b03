"""What the objects of states are called.

::

    states/<hash of the stream's name>/<incarnation>/<first seq, 16 digits>-<count>-<unique>.parquet

The hash and the incarnation are those of the stream's manifest.
"""

from __future__ import annotations

import re

from headrace.format.manifest import checked, name_hash

STATES = "states"

_KEY = re.compile(rf"{STATES}/([0-9a-f]{{32}})/([0-9a-z]{{1,64}})/(\d{{16}}-\d+-[0-9a-z]{{1,64}})\.parquet")


def state_prefix(stream: str, incarnation: str) -> str:
    """How the keys of all states of a stream begin."""
    return f"{STATES}/{name_hash(stream)}/{checked(incarnation)}"


def state_key(stream: str, incarnation: str, name: str) -> str:
    """The key of a state."""
    return f"{state_prefix(stream, incarnation)}/{name}.parquet"


def state_place(key: str) -> tuple[tuple[str, str], str] | None:
    """The (name hash, incarnation) and the state's name that a key is made of, or None for another key."""
    match = _KEY.fullmatch(key)
    return None if match is None else ((match[1], match[2]), match[3])
