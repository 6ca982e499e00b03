"""Who may write to an object store: the node that created the newest lease, until another creates the next.

Leases and blocks of epochs are numbered objects, each created once: ``nodes/<number>.json`` and
``epochs/<number>.json``. Whoever finds a higher number than his own has been replaced.
"""

from __future__ import annotations

import re
import secrets

import msgspec

from headrace.errors import Fenced
from headrace.storage.objects import ObjectMissing, Objects
from headrace.types import Clock

NODES, EPOCHS = "nodes", "epochs"
#: Epochs that are reserved at once.
EPOCH_BLOCK = 65_536
_NUMBER = re.compile(r"\w+/(\d{16})\.json")


class Node:
    """This process as the one writer of a store, once it has claimed that."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self._number: int | None = None
        self.identity = secrets.token_hex(8)

    def claim(self) -> int:
        """Take over from whoever was the writer before; answers the number of the lease."""
        document: dict[str, object] = {"node": self.identity, "since_us": self._clock.now_us()}
        self._number = _create_next(self._objects, NODES, document)
        return self._number

    def check(self) -> None:
        """Raises Fenced where another node has taken over; claims the store where that could not be done before."""
        number = self.claim() if self._number is None else self._number
        try:
            self._objects.head(_key(NODES, number + 1))
        except ObjectMissing:
            return
        raise Fenced("another node has taken over this object store; this one writes nothing more", node=number + 1)

    def reserve_epochs(self) -> range:
        """Epochs that nobody else will ever use."""
        number = _create_next(self._objects, EPOCHS, {"node": self.identity})
        return range(number * EPOCH_BLOCK, (number + 1) * EPOCH_BLOCK)


def _create_next(objects: Objects, kind: str, document: dict[str, object]) -> int:
    number = max(_numbers(objects, kind), default=-1) + 1
    while not objects.create(_key(kind, number), msgspec.json.encode({**document, "nonce": secrets.token_hex(8)})):
        number += 1
    return number


def _numbers(objects: Objects, kind: str) -> list[int]:
    matches = (_NUMBER.fullmatch(found.key) for found in objects.list(kind))
    return [int(match[1]) for match in matches if match]


def _key(kind: str, number: int) -> str:
    return f"{kind}/{number:016}.json"
