"""The interface of object stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

#: Objects in a page of a listing; only the last page has fewer.
PAGE = 1000


class ObjectInfo(NamedTuple):
    """An object without its bytes."""

    key: str
    bytes: int
    modified_us: int


class Backend(Protocol):
    """The verbs; an object that is not there raises FileNotFoundError, and writes are whole, durable or nothing."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; False if it does."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whatever was there."""

    def upload(self, key: str, path: Path) -> None:
        """Write an object from a file that nobody changes any more."""

    def get(self, key: str) -> bytes:
        """All of an object."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object, shorter where the object ends."""

    def head(self, key: str) -> ObjectInfo:
        """An object's size and age."""

    def list(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """All objects below a prefix, which ends where a part of the key does; page by page, in any order."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is no error."""
