"""The identity that each of our files carries: a document in its metadata, with the version of its format."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headrace import decoding
from headrace.errors import CorruptData

Info = TypeVar("Info")


class _Marked(msgspec.Struct):
    version: int


def decode(document: bytes | None, type: type[Info], *, name: str, kind: str, newest: int) -> Info:
    """Read the document of a file of a kind; refuses what is damaged and what a newer Headrace wrote."""
    if document is None:
        raise CorruptData(f"{name} is Parquet but no {kind}", object=name, check="identity")
    try:
        version = decoding.decode(document, _Marked).version
        if version > newest:
            raise CorruptData(
                f"{name} has {kind} format {version}, this Headrace knows {newest}: install a newer one",
                object=name,
                check="version",
            )
        return decoding.decode(document, type)
    except msgspec.DecodeError as reason:
        raise CorruptData(f"{name} has a damaged identity: {reason}", object=name, check="identity") from reason
