"""States: what features have folded of a run of a stream's events, for every key, as plain Parquet.

Format version 1. A state is one file. It holds what the events [first seq, first seq + count) have left in some *lives*
of the features of one table: one row for every key that an event of the run has, sorted by key.

=============  ======  ====================================================================================
column         type    holds
=============  ======  ====================================================================================
``key``        binary  the values of the key columns, as a MessagePack array
``frame``      binary  MessagePack: where the key was first and last seen in the run, and whether it restarted
``s.<life>``   binary  MessagePack: the state of this life of a feature, null where it has none
=============  ======  ====================================================================================

Pages are zstd with checksums; a row group holds at most 16,384 rows. The metadata of a file holds a JSON document
under ``headrace``, `StateInfo`. `state_file` reads and writes the files; this module imports no Arrow, so that it
loads fast.
"""

from __future__ import annotations

import msgspec

from headrace.format.identity import decode_identity

VERSION = 1
METADATA = b"headrace"
KEY, FRAME = "key", "frame"
#: How the names of the columns of lives begin.
LIFE = "s."


class StateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a state says about itself."""

    version: int = VERSION
    stream: str
    incarnation: str
    table: str
    first_seq: int
    count: int
    level: int
    #: Feature → life.
    lives: dict[str, str]


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A state as metadata lists it; ``name`` is what its object is called up to the dot."""

    table: str
    name: str
    first_seq: int
    count: int
    level: int
    #: Feature → life.
    lives: dict[str, str]
    rows: int
    bytes: int
    sha256: str

    @property
    def end_seq(self) -> int:
        """The sequence number after its last event."""
        return self.first_seq + self.count


def state_entry(info: StateInfo, name: str, rows: int, size: int, sha256: str) -> State:
    """A state that was written, as metadata lists it."""
    return State(
        table=info.table,
        name=name,
        first_seq=info.first_seq,
        count=info.count,
        level=info.level,
        lives=info.lives,
        rows=rows,
        bytes=size,
        sha256=sha256,
    )


def decode_info(document: bytes | None, name: str) -> StateInfo:
    """Read what a state says about itself; refuses what is damaged and what a newer Headrace wrote."""
    return decode_identity(document, StateInfo, name=name, kind="state", newest=VERSION)
