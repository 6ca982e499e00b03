"""The writer of an object store: the node that created the newest lease, until another creates the next.

Leases and blocks of epochs are numbered objects, each created once: ``nodes/<number>.json`` and
``epochs/<number>.json``. A node that finds a higher number than its own has been replaced.
"""

from __future__ import annotations

import re
import secrets
from typing import Annotated

import msgspec

from headrace import decoding
from headrace.errors import CorruptData, Fenced
from headrace.storage.objects import ObjectMissing, Objects
from headrace.types import Clock

NODES, EPOCHS = "nodes", "epochs"
#: Epochs that are reserved at once.
EPOCH_BLOCK = 65_536
_SKIPPED_BLOCKS = 64
_NUMBER = re.compile(r"\w+/(\d{16})\.json")


class _Lease(msgspec.Struct):
    node: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]+$")]


class Node:
    """This process as the one writer of a store, once it has claimed that."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self._number: int | None = None
        #: The lease that this node's directory held last, -1 for none: a late claim must find no newer one.
        self.held = -1
        self.identity = secrets.token_hex(8)

    def claim(self, last: int | None) -> int | None:
        """Claim the store by the lease that follows ``last``, the newest one; None where there was no lease.

        Returns the number of the new lease; None where another node came first.
        """
        number = 0 if last is None else last + 1
        if not _create(self._objects, NODES, number, node=self.identity, since_us=self._clock.now_us()):
            return None
        self._number = number
        return number

    def newest(self) -> int | None:
        """The number of the newest lease, of any node; also where no listing shows it yet."""
        number = max(_numbers(self._objects, NODES), default=-1)
        while self._objects.has(_key(NODES, number + 1)):
            number += 1
        return None if number < 0 else number

    def check(self) -> None:
        """Raises Fenced where another node has taken over; claims the store where that could not be done before."""
        number = self._claim_late() if self._number is None else self._number
        if self._objects.has(_key(NODES, number + 1)):
            raise Fenced("another node has taken over this object store; this one writes nothing more", node=number + 1)

    def _claim_late(self) -> int:
        """Claim the store after a start without it; raises Fenced where another node has written since."""
        last = self.newest()
        if last is not None and holder_of(self._objects, last) == self.identity:
            self._number = last  # claimed at the start, and only the answer was lost
            return last
        if last in (None, self.held) and (number := self.claim(last)) is not None:
            return number
        raise Fenced("another node has taken over this object store; start this one again to catch up")

    def reserve_epochs(self) -> range:
        """Reserve epochs that no other node will use."""
        number = max(_numbers(self._objects, EPOCHS), default=-1) + 1
        while not _create(self._objects, EPOCHS, number, node=self.identity):
            number += 1
        return range(number * EPOCH_BLOCK, (number + 1) * EPOCH_BLOCK)


def holder_of(objects: Objects, number: int) -> str | None:
    """The identity of the node that holds a lease; None where there is no such lease."""
    key = _key(NODES, number)
    try:
        return decoding.decode(objects.get(key), _Lease).node
    except ObjectMissing:
        return None
    except msgspec.DecodeError as reason:
        raise CorruptData(f"the object {key} is damaged: it holds no lease ({reason})", object=key) from reason


def lease_key(number: int) -> str:
    """The key of a lease."""
    return _key(NODES, number)


def skip_epochs(objects: Objects) -> None:
    """Leave out the epochs that may have been reserved after this store was copied."""
    number = max(_numbers(objects, EPOCHS), default=-1) + _SKIPPED_BLOCKS
    _create(objects, EPOCHS, number, node="")


def _create(objects: Objects, kind: str, number: int, **facts: object) -> bool:
    """Create a numbered object; False where there is one already."""
    return objects.create(_key(kind, number), msgspec.json.encode({**facts, "nonce": secrets.token_hex(8)}))


def _numbers(objects: Objects, kind: str) -> list[int]:
    matches = (_NUMBER.fullmatch(listed.key) for listed in objects.list(kind))
    return [int(match[1]) for match in matches if match]


def _key(kind: str, number: int) -> str:
    return f"{kind}/{number:016}.json"
