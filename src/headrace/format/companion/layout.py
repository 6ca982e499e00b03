"""The identity of a companion and its entry in metadata; imports no Arrow, so that it loads fast."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from headrace.format import identity

VERSION = 1
METADATA, INDEX = b"headrace", b"headrace.index"

PartName = Literal["columns", "postings", "panes"]
PARTS: tuple[PartName, ...] = ("columns", "postings", "panes")

#: The field under which the key lexicon stands in the postings; no declared field has an empty name.
KEYS = ""


class Limits(NamedTuple):
    """What a row group holds at most: rows and about so many bytes of columns; postings, terms and their text.

    With ``filtered`` terms or more it has a filter; fewer are as quickly decoded.
    """

    rows: int = 65_536
    column_bytes: int = 32 * 1024 * 1024
    postings: int = 131_072
    terms: int = 16_384
    term_bytes: int = 4 * 1024 * 1024
    filtered: int = 512


LIMITS = Limits()


class FieldShape(msgspec.Struct, frozen=True):
    """A field as a companion holds it: its kind, whether its column has lists, whether it has postings."""

    kind: str
    many: bool
    indexed: bool
    hash: str


class CompanionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a companion says about itself; every file of it holds the same."""

    version: int = VERSION
    stream: str = ""
    incarnation: str = ""
    first_seq: int
    count: int
    level: int = 0
    #: How many segments it covered when it was built.
    segments: int = 0
    #: The greatest schema version among its events.
    through_version: int
    fields: dict[str, FieldShape]
    #: Rollup → hash.
    rollups: dict[str, str]
    #: Whether it has the key lexicon.
    keys: bool
    #: The least and the greatest primary time in ms, or None where no event has one.
    times: tuple[int, int] | None
    #: Text field → (events with a value, words in all of them).
    words: dict[str, tuple[int, int]]
    #: How many rows the columns cannot describe.
    odd: int

    @property
    def end_seq(self) -> int:
        """The sequence number after its last event."""
        return self.first_seq + self.count


class PartFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a companion."""

    bytes: int
    sha256: str


class Companion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A companion as metadata lists it; ``name`` is what its objects are called up to the dot."""

    name: str
    first_seq: int
    count: int
    level: int
    through_version: int
    #: Field → hash, rollup → hash.
    fields: dict[str, str]
    rollups: dict[str, str]
    keys: bool
    columns: PartFile
    postings: PartFile | None
    panes: PartFile | None
    times: tuple[int, int] | None
    segments: int
    words: dict[str, tuple[int, int]]

    @property
    def end_seq(self) -> int:
        """The sequence number after its last event."""
        return self.first_seq + self.count

    @property
    def parts(self) -> dict[PartName, PartFile]:
        """The files that there are."""
        files = {"columns": self.columns, "postings": self.postings, "panes": self.panes}
        return {name: part for name in PARTS if (part := files[name]) is not None}


def companion_entry(info: CompanionInfo, name: str, parts: dict[PartName, PartFile]) -> Companion:
    """A companion that was written, as metadata lists it."""
    return Companion(
        name=name,
        first_seq=info.first_seq,
        count=info.count,
        level=info.level,
        through_version=info.through_version,
        fields={field: shape.hash for field, shape in info.fields.items()},
        rollups=info.rollups,
        keys=info.keys,
        columns=parts["columns"],
        postings=parts.get("postings"),
        panes=parts.get("panes"),
        times=info.times,
        segments=info.segments,
        words=info.words,
    )


def decode_info(document: bytes | None, name: str) -> CompanionInfo:
    """Read what a companion says about itself; refuses what is damaged and what a newer Headrace wrote."""
    return identity.decode(document, CompanionInfo, name=name, kind="companion", newest=VERSION)
