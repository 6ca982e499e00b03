"""An object store that a test watches and disturbs: errors, timeouts, lost answers and halves of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from headrace.storage.object_backends import Backend, Directory, ObjectInfo
from headrace.storage.objects import Objects

T = TypeVar("T")
#: ``refuse`` does nothing and fails; ``lose`` does what was asked and fails; ``halve`` writes a part and fails.
Fault = Literal["refuse", "lose", "halve"]


class Call(NamedTuple):
    """One request to the store."""

    verb: str
    key: str


class Outage(OSError):
    """What a store raises that does not answer."""


class Disturbed:
    """A backend between a store and who uses it.

    ``plan`` says which call fails in which way, ``before`` and ``after`` are told of every call; they run in the
    thread of whoever asks.
    """

    def __init__(self, backend: Backend) -> None:
        self._inner = backend
        self.calls: list[Call] = []
        self.plan: Callable[[Call], Fault | None] = lambda _: None
        self.before: Callable[[Call], None] = lambda _: None
        self.after: Callable[[Call], None] = lambda _: None

    def create(self, key: str, data: bytes) -> bool:
        return self._do("create", key, lambda: self._inner.create(key, data), lambda: None)

    def put(self, key: str, data: bytes) -> None:
        self._do("put", key, lambda: self._inner.put(key, data), lambda: None)

    def upload(self, key: str, path: Path) -> None:
        def half() -> None:
            content = path.read_bytes()
            self._inner.put(key, content[: len(content) // 2])

        self._do("upload", key, lambda: self._inner.upload(key, path), half)

    def get(self, key: str) -> bytes:
        return self._do("get", key, lambda: self._inner.get(key), lambda: None)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._do("get_range", key, lambda: self._inner.get_range(key, start, length), lambda: None)

    def head(self, key: str) -> ObjectInfo:
        return self._do("head", key, lambda: self._inner.head(key), lambda: None)

    def list(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        yield from self._do("list", prefix, lambda: tuple(self._inner.list(prefix)), lambda: None)

    def delete(self, keys: Sequence[str]) -> None:
        self._do("delete", keys[0], lambda: self._inner.delete(keys), lambda: self._inner.delete(keys[::2]))

    def _do(self, verb: str, key: str, work: Callable[[], T], half: Callable[[], None]) -> T:
        call = Call(verb, key)
        self.calls.append(call)
        self.before(call)
        fault = self.plan(call)
        if fault == "refuse":
            raise Outage(f"{verb} {key} is refused")
        if fault == "halve":
            half()
            raise Outage(f"{verb} {key} was cut short")
        found = work()
        self.after(call)
        if fault == "lose":
            raise Outage(f"the answer to {verb} {key} is lost")
        return found


class DisturbedDirectory(Disturbed, Directory):
    """The same for a local directory, whose files are read in place."""

    def __init__(self, directory: Directory) -> None:
        super().__init__(directory)
        self.root = directory.root


def disturb(objects: Objects, *, far: bool = False) -> Disturbed:
    """Put a disturbed backend into a store that is a directory; ``far``: which then looks like a service."""
    directory = objects._backend
    assert isinstance(directory, Directory)
    objects._backend = disturbed = Disturbed(directory) if far else DisturbedDirectory(directory)
    return disturbed
