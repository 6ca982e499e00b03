"""The protocol of everything that reduces events: fold, merge, finish, pack.

A reducer makes a *state* of events. ``None`` is the state of no events. Whatever is declared of the order, the laws
are these, and one property test holds every reducer and each of its faster forms to them:

* The state of events that are cut into parts, folded apart and merged answers as that of one pass over all.
* A state that was packed and unpacked answers as before, and may be folded on.
* ``merge`` changes neither of its arguments. What it returns may share parts with both, so fold on only into states
  that came from ``fold`` or ``unpack``; ``fold`` may change the state that it is given.

Which order a reducer needs is declared:

=========  ================================================================================================
order      events are folded, and states are merged,
=========  ================================================================================================
``any``    in any order, whatever their times are
``time``   in any order too: the state keeps times and sequence numbers, by which ties are broken
``log``    in the order of their sequence numbers, in which their times do not decrease; states by adjacent ranges
=========  ================================================================================================
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

Order = Literal["any", "time", "log"]

Row = TypeVar("Row")
State = TypeVar("State")
Packed = TypeVar("Packed")


class Reducer(ABC, Generic[Row, State, Packed]):
    """Rows of events become a state, states merge, and a state finishes as an answer."""

    order: ClassVar[Order] = "log"

    @abstractmethod
    def fold(self, state: State | None, at: int, seq: int, row: Row, matched: bool = True) -> State | None:
        """The state with one more event: its time, its sequence number, its row, and whether it matches."""

    def merge(self, left: State | None, right: State | None) -> State | None:
        """The state of two sets of events, the earlier ones first where the order matters."""
        if left is None or right is None:
            return right if left is None else left
        return self.merge_both(left, right)

    def merge_all(self, states: Sequence[State]) -> State | None:
        """The state of several sets of events, the earliest first where the order matters."""
        return functools.reduce(self.merge, states, None)

    @abstractmethod
    def merge_both(self, left: State, right: State) -> State:
        """The state of two sets of events that both have one."""

    @abstractmethod
    def finish(self, state: State | None, now: int = 0) -> Any:
        """The answer at a moment that is not before the last event."""

    @abstractmethod
    def pack(self, state: State) -> Packed:
        """The state as it is stored."""

    @abstractmethod
    def unpack(self, packed: Packed) -> State:
        """The state that was packed."""
