"""The object store, behind one small class: a local directory, S3-compatible, GCS, Azure, or memory.

Errors are ours, requests are counted, and a lost answer is no lost object.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from headrace.config import ConfigError
from headrace.errors import ObjectMissing, StoreUnavailable
from headrace.format.object_names import COMPANIONS, MANIFESTS, SEGMENTS
from headrace.storage.object_backends import PAGE, Backend, Directory, ObjectInfo, Remote

__all__ = ["ObjectInfo", "ObjectMissing", "Objects", "Requests", "StoreUnavailable", "Verb"]

_STATUS = re.compile(r"status code: ([0-9]{3}[^:\n]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_SYSTEM = re.compile(r'(?:Os|Custom) \{[^}]*(?:message|error): "([^"]*)"')
_LONGEST = 200
_BROKEN = "the connection failed"
#: How often something is read where connections break off.
_READS = 4
Returned = TypeVar("Returned")


def cause(reason: Exception) -> str:
    """The cause of a failure."""
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    text = str(reason)
    if status := _STATUS.search(text):
        code = _CODE.search(text)
        return f"it answered {status[1].strip()}" + (f" ({code[1]})" if code else "")
    kind, system = _KIND.search(text), _SYSTEM.search(text)
    if kind is not None and kind[1] == "Timeout":
        return "it did not answer in time"
    if system is not None:
        return system[1]
    if kind is not None:
        return {"Connect": "it cannot be reached"}.get(kind[1], f"{_BROKEN} ({kind[1]})")
    return text.partition("\n")[0][:_LONGEST] or type(reason).__name__


Verb = Literal["put", "get", "head", "list", "delete"]
Outcome = Literal["ok", "missing", "error"]

_ARTIFACTS = {MANIFESTS: "manifest", SEGMENTS: "segment", COMPANIONS: "bundled_companion"}
STREAMS = 2_000


class Requests:
    """Counts of requests; those of a stream are forgotten when many others came after it, the totals never."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[tuple[str, Verb, Outcome]] = Counter()
        self._streams: OrderedDict[str, Counter[tuple[str, Verb]]] = OrderedDict()

    def count(self, verb: Verb, key: str, outcome: Outcome) -> None:
        """One more request for the object, or the prefix, of this key."""
        top, _, rest = key.partition("/")
        artifact, stream = _ARTIFACTS.get(top, "meta"), rest.partition("/")[0]
        with self._lock:
            self._totals[artifact, verb, outcome] += 1
            if stream and artifact != "meta":
                self._streams.setdefault(stream, Counter())[artifact, verb] += 1
                self._streams.move_to_end(stream)
                if len(self._streams) > STREAMS:
                    self._streams.popitem(last=False)

    def totals(self) -> dict[tuple[str, Verb, Outcome], int]:
        """(artifact, verb, outcome) → requests since the start."""
        with self._lock:
            return dict(self._totals)

    def of(self, name_hash: str) -> dict[tuple[str, Verb], int]:
        """(artifact, verb) → requests for one stream, by the hash of its name."""
        with self._lock:
            return dict(self._streams.get(name_hash, {}))


SCHEMES = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "memory")

_CREATES = 3
_PAUSE_S = 0.1
_RANGE_BYTES = 8 * 1024 * 1024


class Objects:
    """One object store; every verb blocks, so background threads use it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.requests = Requests()

    @classmethod
    def open(cls, url: str, *, timeout_s: float = 30.0, retries: int = 5, mode: int | None = None) -> Objects:
        """The store of a URL or of a directory; a request and its retries take about the timeout at most.

        A directory gets the permissions ``mode``, or keeps its own.
        """
        scheme = urlsplit(url).scheme if "://" in url else "file"
        if scheme not in SCHEMES:
            schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ConfigError(
                f"storage.object_store: {url!r} is neither a path nor one of {schemes}", field="storage.object_store"
            )
        try:
            if scheme == "file":
                return cls(Directory(_path(url), mode))
            return cls(Remote(url, timeout_s=timeout_s, retries=retries))
        except (BaseError, ValueError) as reason:
            raise ConfigError(f"storage.object_store: {_first_line(reason)}", field="storage.object_store") from reason

    @property
    def is_local(self) -> bool:
        """Whether the store is a local directory."""
        return isinstance(self._backend, Directory)

    def local_path(self, key: str) -> Path | None:
        """The file that is the object, where the store is a local directory."""
        return self._backend.root / _check_key(key) if isinstance(self._backend, Directory) else None

    @property
    def file_mode(self) -> int | None:
        """The permissions of an object, where the store is a local directory."""
        return self._backend.file_mode if isinstance(self._backend, Directory) else None

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; False if it does.

        The data must be unlike what anyone else would write there: where it is found word for word, it is ours, and
        only the answer to an earlier try was lost.
        """
        for left in reversed(range(_CREATES)):
            try:
                with self._translate_errors("put", key):
                    if self._backend.create(_check_key(key), data):
                        return True
                return self.get(key) == data
            except ObjectMissing:
                # In conflict with another create that came to nothing.
                if not left:
                    return False
            except StoreUnavailable:
                if not left:
                    raise
            time.sleep(_PAUSE_S)
        return False

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing an existing one."""
        with self._translate_errors("put", key):
            self._backend.put(_check_key(key), data)

    def upload(self, key: str, path: Path) -> None:
        """Write an object from a file that no longer changes."""
        with self._translate_errors("put", key):
            self._backend.upload(_check_key(key), path)

    def get(self, key: str) -> bytes:
        """All of an object."""
        return self._read("get", key, lambda: self._backend.get(_check_key(key)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object, shorter where the object ends."""
        return self._read("get", key, lambda: self._backend.get_range(_check_key(key), start, length))

    def download(self, key: str, size: int, file: BinaryIO) -> None:
        """Write an object of this size to a file, holding a few mebibytes at a time."""
        for start in range(0, size, _RANGE_BYTES):
            file.write(self.get_range(key, start, min(_RANGE_BYTES, size - start)))

    def head(self, key: str) -> ObjectInfo:
        """An object's size and age."""
        return self._read("head", key, lambda: self._backend.head(_check_key(key)))

    def has(self, key: str) -> bool:
        """Whether there is an object; a listing of a service may not show it yet."""
        try:
            self.head(key)
        except ObjectMissing:
            return False
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects below a prefix such as ``manifests``, in any order."""
        pages = self._backend.list(prefix and _check_key(prefix))
        page: Sequence[ObjectInfo] = ()
        while not page or len(page) == PAGE:
            with self._translate_errors("list", prefix):
                page = next(pages, ())
            if not page:
                return
            yield from page

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is no error."""
        if keys:
            with self._translate_errors("delete", keys[0]):
                self._backend.delete([_check_key(key) for key in keys])

    def _read(self, verb: Verb, key: str, read: Callable[[], Returned]) -> Returned:
        """What is read, tried again where a connection broke off: the client repeats only what never got an answer."""
        for _ in range(_READS - 1):
            try:
                with self._translate_errors(verb, key):
                    return read()
            except StoreUnavailable as reason:
                if not str(reason.facts.get("cause")).startswith(_BROKEN):
                    raise
            time.sleep(_PAUSE_S)
        with self._translate_errors(verb, key):
            return read()

    @contextmanager
    def _translate_errors(self, verb: Verb, key: str) -> Iterator[None]:
        outcome: Outcome = "error"
        try:
            yield
            outcome = "ok"
        except FileNotFoundError as reason:
            if verb not in ("get", "head"):
                raise _unavailable(f"the object store has no place to {verb} {key}", key, reason) from reason
            outcome = "missing"
            raise ObjectMissing(f"the object {key} is missing", object=key, check="present") from reason
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as reason:
            raise _unavailable(f"the object store forbids to {verb} {key}", key, reason, "denied") from reason
        except (BaseError, OSError) as reason:
            raise _unavailable(f"the object store did not {verb} {key}", key, reason) from reason
        finally:
            self.requests.count(verb, key, outcome)


def _unavailable(text: str, key: str, reason: Exception, kind: str = "object_store") -> StoreUnavailable:
    why = cause(reason)
    return StoreUnavailable(f"{text}: {why}", object=key, reason=kind, cause=why)


def _path(url: str) -> Path:
    if "://" not in url:
        return Path(url)
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError(f"{url!r} should be file:///an/absolute/path")
    return Path(unquote(parts.path))


def _check_key(key: str) -> str:
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError(f"{key!r} is not the key of an object")
    return key


def _first_line(reason: Exception) -> str:
    return str(reason).partition("\n")[0]
