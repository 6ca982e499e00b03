"""What goes wrong with requests to an object store: by chance from a seed, and listings that lag behind."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

#: What is not done: ``throttle`` (503), ``conflict`` (409), ``deny`` (403), ``cut`` (no answer). What is done: ``lose``
#: (no answer), ``reset`` (of the connection), ``exists`` (412, as if it had been done before), ``truncate`` (half an
#: answer), ``delay``, ``stale`` (a listing of what there was a moment ago); ``hang`` waits until ``released`` is set.
Fault = Literal["throttle", "cut", "lose", "reset", "hang", "delay", "truncate", "conflict", "exists", "stale", "deny"]
_ALWAYS: tuple[Fault, ...] = ("throttle", "cut", "lose", "reset", "delay")
#: How old the newest thing is that a stale listing knows.
STALE_S = 1.5
_ENTRY = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)


class Request(NamedTuple):
    """What a service is asked."""

    method: str
    path: str
    conditional: bool

    @property
    def is_listing(self) -> bool:
        """Whether it asks for keys."""
        return self.method == "GET" and "list-type=2" in self.path

    @property
    def key(self) -> str:
        """The object that it is about, with the bucket."""
        return unquote(urlsplit(self.path).path)


class Chance:
    """Faults by chance: the same for every request that is the n-th of its kind, whatever happens between them.

    Every other fault of a kind is one that only this kind has, each in turn: listings and creates are few.
    """

    def __init__(self, seed: int, rate: float) -> None:
        self._seed, self._rate = seed, rate
        self._asked: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        #: How often there was each fault.
        self.happened: Counter[Fault] = Counter()

    def fault(self, request: Request) -> Fault | None:
        """What goes wrong with the next request, if anything does."""
        kind, own = _kind(request)
        self._asked[kind] += 1
        chance = random.Random(f"{self._seed}/{kind}/{self._asked[kind]}")
        if chance.random() >= self._rate:
            return None
        turn, is_by_chance = divmod(self._failed[kind], 2)
        self._failed[kind] += 1
        fault = chance.choice((*_ALWAYS, *own)) if is_by_chance or not own else own[turn % len(own)]
        self.happened[fault] += 1
        return fault


def _kind(request: Request) -> tuple[str, tuple[Fault, ...]]:
    """What kind of request it is, and what goes wrong with no other."""
    if request.is_listing:
        return "LIST", ("stale", "truncate")
    if request.conditional:
        return "CREATE", ("conflict", "exists")
    return request.method, ("truncate",) if request.method == "GET" else ()


class Recent:
    """What was written and removed a moment ago, for listings that do not know it yet."""

    def __init__(self) -> None:
        #: The moment that stale listings know; a little while ago where none is given.
        self.known_until: float | None = None
        self._written: dict[str, float] = {}
        self._removed: dict[str, tuple[float, bytes]] = {}
        self._entries: dict[str, bytes] = {}

    def note(self, request: Request, body: bytes) -> None:
        """Remember that something was written or removed."""
        now = time.monotonic()
        if request.method == "PUT":
            self._written[request.key] = now
        removed = [request.key] if request.method == "DELETE" else []
        if request.method == "POST" and urlsplit(request.path).query == "delete":
            removed = [f"{request.key.rstrip('/')}/{key.decode()}" for key in re.findall(rb"<Key>(.*?)</Key>", body)]
        for key in removed:
            if key in self._entries:
                self._removed[key] = now, self._entries.pop(key)

    def freeze(self) -> None:
        """Let stale listings know nothing from now on."""
        self.known_until = time.monotonic()

    def listed(self, bucket: str, body: bytes) -> None:
        """Remember what a listing said of its objects."""
        self._entries |= {_key(bucket, entry): entry for entry in _ENTRY.findall(body)}

    def stale(self, bucket: str, prefix: str, body: bytes) -> bytes:
        """A listing as it was a moment ago."""
        since = time.monotonic() - STALE_S if self.known_until is None else self.known_until
        entries = {_key(bucket, entry): entry for entry in _ENTRY.findall(body)}
        kept = {key: entry for key, entry in entries.items() if self._written.get(key, 0.0) < since}
        below = f"/{bucket}/{prefix}"
        kept |= {
            key: entry
            for key, (removed, entry) in list(self._removed.items())
            if removed > since and key.startswith(below)
        }
        without = re.sub(rb"<KeyCount>\d+</KeyCount>", b"<KeyCount>%d</KeyCount>" % len(kept), _ENTRY.sub(b"", body))
        there = b"".join(kept[key] for key in sorted(kept))
        return without.replace(b"</ListBucketResult>", there + b"</ListBucketResult>")


def _key(bucket: str, entry: bytes) -> str:
    found = re.search(rb"<Key>(.*?)</Key>", entry)
    assert found is not None
    return f"/{bucket}/{found[1].decode()}"
