"""Definitions of states: the interface that tables, entity types and fragments share for folding a stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from headrace.format.state_file import PackedColumns
from headrace.operators.reducer import Reducer, Row, State
from headrace.schema.descriptor.nodes import FeatureVersion

#: One event: its sequence number, its time in the unit of the caller, and what is folded.
Folded = tuple[int, int, Any]


class EventRun(NamedTuple):
    """Consecutive stored events of one schema version, joined by commas, and when each was appended."""

    first_seq: int
    version: int
    times_us: Sequence[int]
    body: bytes


class Shapes(Protocol):
    """How stored bodies become what is folded."""

    def decode_run(self, run: EventRun) -> Iterator[Folded]:
        """The events of a body, one after the other."""


class NotColumnar(Exception):
    """Events have values that their columns do not take: they are folded one by one."""


class Columns(Protocol):
    """Consecutive stored events as columns, decoded once for several definitions."""

    def add(self, run: EventRun) -> None:
        """Take the next events; raises NotColumnar."""

    def fold(self, defined: Any, start_seq: int) -> PackedColumns:
        """The rows of a definition over the events from one on; raises NotColumnar."""


class Keying(Protocol):
    """How the keys of stored events are hashed, without folding them."""

    @property
    def name(self) -> object:
        """Hashable; what has the same name hashes alike."""

    def of_events(self, shapes: Any, run: EventRun) -> Any:
        """The hashes of the keys of events, as an array of integers."""

    def of_key(self, key: bytes) -> int:
        """The hash of a key; events that have it have the same one."""


class KeyedReducer(Reducer[Row, State, Mapping[str, bytes]]):
    """Events become rows with a key, and rows of one key become one state, which has a part for each version.

    A packed state has its frame under the empty name, and a part under the id of every version. Unpacking ignores
    versions that the reducer does not have.
    """

    @abstractmethod
    def key_and_row(self, event: Any) -> tuple[bytes, Row] | None:
        """The key and the row of an event; None where it has none."""

    def renew(self, packed: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """A packed state, in today's format if it has an earlier one."""
        return packed


class Definition(Protocol):
    """What is folded over a stream, with a version of each of its parts; equal definitions fold alike."""

    @property
    def name(self) -> str:
        """Its name, which is unique among the definitions over a stream."""

    @property
    def stream(self) -> str:
        """The stream whose events are folded."""

    @property
    def source(self) -> str:
        """What its events are decoded as; definitions of one source over one stream share their events."""

    @property
    def delays_retention(self) -> bool:
        """Whether events are retained until they are folded."""

    @property
    def lives(self) -> Mapping[str, FeatureVersion]:
        """The version of each part by name, with its first event."""

    @property
    def start_seq(self) -> int:
        """The first event that any version folds."""

    @property
    def reducer(self) -> Any:
        """What folds it: a `KeyedReducer`."""

    def restricted(self, names: Collection[str]) -> Any:
        """The definition with only the parts of these names."""

    def with_versions(self, versions: Mapping[str, FeatureVersion]) -> Any:
        """The definition with other versions of some of its parts."""

    def dump(self) -> object:
        """The definition as a document, for workers."""


Defined = TypeVar("Defined", bound=Definition)
Defined_co = TypeVar("Defined_co", bound=Definition, covariant=True)


class Definitions(Protocol[Defined_co]):
    """The definitions that hold at one time; never changed, only replaced by others of another version."""

    @property
    def version(self) -> int:
        """Another one whenever a definition is another."""

    @property
    def streams(self) -> Collection[str]:
        """Every stream that something is folded over."""

    def names_over(self, stream: str) -> Sequence[str]:
        """The names of what is folded over a stream."""

    def stream_of(self, name: str) -> str | None:
        """The stream that a definition is over; None where there is none of this name."""

    def defined(self, name: str) -> Defined_co:
        """The definition of this name; raises NotFound where there is none."""
