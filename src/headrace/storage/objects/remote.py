"""Objects of a service, or of memory, through obstore."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import MemoryStore, from_url

from headrace.storage.objects.backend import PAGE, ObjectInfo

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

_MiB = 1024 * 1024
# An upload holds this much at a time, and every part has the whole timeout for itself.
_PART_BYTES = 8 * _MiB
_PARTS_AT_ONCE = 2
_PAUSE_S = 0.1
_ENDPOINTS = ("ENDPOINT", "ENDPOINT_URL", "ENDPOINT_URL_S3")


class Remote:
    """A backend on obstore; it retries what may be retried, for so long and so often."""

    def __init__(self, url: str, *, timeout_s: float, retries: int) -> None:
        self._store: ObjectStore = MemoryStore() if url.startswith("memory:") else _open(url, timeout_s, retries)
        self._timeout_s = timeout_s

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; False if it does."""
        try:
            obstore.put(self._store, key, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whatever was there."""
        obstore.put(self._store, key, data, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def upload(self, key: str, path: Path) -> None:
        """Write an object from a file that nobody changes any more."""
        obstore.put(self._store, key, path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def get(self, key: str) -> bytes:
        """All of an object."""
        return bytes(obstore.get(self._store, key).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object, shorter where the object ends."""
        return bytes(obstore.get_range(self._store, key, start=start, length=length))

    def head(self, key: str) -> ObjectInfo:
        """An object's size and age."""
        return _info(obstore.head(self._store, key))

    def list(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """All objects below a prefix, page by page.

        obstore does not retry a page whose answer ends too soon; where time is left, the listing goes on from there.
        """
        last: str | None = None
        deadline = time.monotonic() + self._timeout_s / 2
        while True:
            try:
                for page in obstore.list(self._store, prefix or None, offset=last, chunk_size=PAGE):
                    last = page[-1]["path"]
                    yield [_info(entry) for entry in page]
                    deadline = time.monotonic() + self._timeout_s / 2
                return
            except GenericError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is no error."""
        try:
            obstore.delete(self._store, keys)
        except FileNotFoundError:
            for key in keys:
                try:
                    obstore.delete(self._store, key)
                except FileNotFoundError:
                    pass


def _open(url: str, timeout_s: float, retries: int) -> ObjectStore:
    options = _connection()
    options["timeout"] = timedelta(seconds=timeout_s)
    options["connect_timeout"] = timedelta(seconds=min(5.0, timeout_s))
    return from_url(
        url,
        client_options=options,
        retry_config={
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=timeout_s),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
        },
    )


def _connection() -> ClientConfig:
    """What the environment says about connections; obstore forgets it where it is given timeouts."""
    options: ClientConfig = {}
    for service in ("AWS", "AZURE", "GOOGLE"):
        if _is_true(f"{service}_ALLOW_HTTP") or any(
            os.environ.get(f"{service}_{name}", "").startswith("http://") for name in _ENDPOINTS
        ):
            options["allow_http"] = True
        if _is_true(f"{service}_ALLOW_INVALID_CERTIFICATES"):
            options["allow_invalid_certificates"] = True
        if proxy := os.environ.get(f"{service}_PROXY_URL"):
            options["proxy_url"] = proxy
    return options


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


def _info(entry: Any) -> ObjectInfo:
    return ObjectInfo(entry["path"], entry["size"], int(entry["last_modified"].timestamp() * 1e6))
