"""States of features: what they have folded from a range of a stream's events, by key, in a Parquet file.

Format version 2. A state is one file. It holds the states of some *versions* of the features of one table over the
events [first seq, first seq + count): one row for each key of these events, sorted by key.

=============  ======  ====================================================================================
column         type    holds
=============  ======  ====================================================================================
``key``        binary  the values of the key columns, as a MessagePack array
``frame``      binary  MessagePack: where the key was first and last seen in the run, whether it restarted, and
                       from version 2 on the format version of the states in its row
``s.<id>``     binary  MessagePack: the state of the feature version of this id, null where it has none
=============  ======  ====================================================================================

Pages are zstd with checksums; a row group holds at most 16,384 rows. The metadata of a file holds a JSON document
under ``headrace``, `StateInfo`. `state_file` reads and writes the files; this module imports no Arrow, so that it
loads fast.
"""

from __future__ import annotations

import msgspec

from headrace.format.identity import decode_identity
from headrace.types import NonNegativeInt

VERSION = 2
METADATA = b"headrace"
KEY, FRAME = "key", "frame"
#: The prefix of the names of the columns that hold feature versions.
VERSION_PREFIX = "s."


class StateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata that the file of a state carries."""

    version: int = VERSION
    stream: str
    incarnation: str
    table: str
    first_seq: int
    count: int
    level: int
    #: The id of the version that is held of each feature.
    lives: dict[str, str]


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A state as a manifest lists it; ``name`` is the name of its object without the suffix."""

    table: str
    name: str
    first_seq: NonNegativeInt
    count: NonNegativeInt
    level: NonNegativeInt
    #: The id of the version that is held of each feature.
    lives: dict[str, str]
    rows: NonNegativeInt
    bytes: NonNegativeInt
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
    """Decode the metadata of a state; refuses damaged metadata and that of a newer Headrace."""
    return decode_identity(document, StateInfo, name=name, kind="state", newest=VERSION)
