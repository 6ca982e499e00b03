"""The registry of a stream: its schema versions, from which event on each holds, and the lenses between them."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import force_setattr, replace

from headrace import decoding
from headrace.errors import CorruptData

API_VERSION = "durable.streams/schema-registry/v1"
#: Boundaries are JSON numbers that every client can hold exactly.
MAX_BOUNDARY = 2**53 - 1


class KeySetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"pointer": "jsonPointer"}):
    """Where an event holds its routing key, and whether it must."""

    pointer: str
    required: bool


class Boundary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From the event with this sequence number on, this version holds."""

    offset: int
    version: int


class Registry(msgspec.Struct, frozen=True, kw_only=True):
    """All schema versions of a stream and the lenses between them; immutable.

    ``schema`` is the name of the stream. ``lenses[n]`` leads from version n to n + 1; ``breaks`` holds the versions
    after which the chain of lenses is cut. The documents are kept as they were sent.
    """

    schema: str
    current_version: int = 0
    routing_key: KeySetting | None = None
    search: Any = None
    boundaries: tuple[Boundary, ...] = ()
    schemas: Mapping[int, Any] = {}
    lenses: Mapping[int, Any] = {}
    breaks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "schemas", MappingProxyType(dict(self.schemas)))
        force_setattr(self, "lenses", MappingProxyType(dict(self.lenses)))

    @classmethod
    def empty(cls, name: str) -> Registry:
        """The registry of a stream without a schema."""
        return cls(schema=name)

    @property
    def current_schema(self) -> Any:
        """The schema that appended events must match, None at version 0."""
        return self.schemas.get(self.current_version)

    @property
    def oldest_version(self) -> int:
        """The oldest version whose events the lenses carry to the current one; 0 where there is no schema."""
        return min(max(self.breaks, default=0) + 1, self.current_version)

    @property
    def readable_from(self) -> int:
        """The sequence number from which on the lenses carry every event to the current version."""
        return next((edge.offset for edge in self.boundaries if edge.version == self.oldest_version), 0)

    def version_at(self, seq: int) -> int:
        """The version an event was appended under: the greatest boundary at or before it, 0 where there is none.

        Of several boundaries at one place, between which nothing was appended, the newest version counts.
        """
        at = bisect_right(self.boundaries, seq, key=lambda edge: edge.offset)
        return self.boundaries[at - 1].version if at else 0

    def advanced(self, schema: Any, lens: Any | None, offset: int) -> Registry:
        """The registry with one more version, which holds from an offset on; without a lens the chain is cut."""
        version = self.current_version
        return replace(
            self,
            current_version=version + 1,
            boundaries=(*self.boundaries, Boundary(offset if version else 0, version + 1)),
            schemas={**self.schemas, version + 1: schema},
            lenses=self.lenses if lens is None or not version else {**self.lenses, version: lens},
            breaks=(*self.breaks, version) if lens is None and version else self.breaks,
        )

    def bounded(self, offset: int) -> Registry:
        """The registry whose newest version holds from another offset on; the first always holds from the start."""
        if self.current_version <= 1:
            return self
        return replace(self, boundaries=(*self.boundaries[:-1], Boundary(offset, self.current_version)))

    @classmethod
    def load(cls, document: Any) -> Registry:
        """Read a registry document that was dumped; raises CorruptData for anything else."""
        try:
            wire = decoding.convert(document, _Wire)
        except msgspec.ValidationError as reason:
            raise CorruptData(f"this is no registry document: {reason}", check="registry") from reason
        registry = cls(
            schema=wire.schema,
            current_version=wire.current_version,
            routing_key=wire.routing_key,
            search=wire.search,
            boundaries=wire.boundaries,
            schemas={int(version): document for version, document in wire.schemas.items()},
            lenses={int(version): document for version, document in wire.lenses.items()},
            breaks=wire.breaks,
        )
        registry._check()
        return registry

    def _check(self) -> None:
        versions = list(range(1, self.current_version + 1))
        offsets = [edge.offset for edge in self.boundaries]
        is_complete = (
            sorted(self.schemas) == versions
            and [edge.version for edge in self.boundaries] == versions
            and offsets == sorted(offsets)
            and sorted([*self.lenses, *self.breaks]) == versions[:-1]
        )
        if not is_complete:
            raise CorruptData(
                f"the registry of {self.schema} does not have one schema and one boundary for each of its "
                f"{self.current_version} versions, and one lens or break between them",
                check="registry",
            )

    def dump(self) -> dict[str, Any]:
        """The registry document; what is not set is left out, and nothing in it is shared."""
        document: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "schema": self.schema,
            "currentVersion": self.current_version,
            "routingKey": msgspec.to_builtins(self.routing_key),
            "search": self.search,
            "boundaries": [msgspec.to_builtins(edge) for edge in self.boundaries],
            "schemas": {str(version): document for version, document in self.schemas.items()},
            "lenses": {str(version): document for version, document in self.lenses.items()},
            "breaks": list(self.breaks) or None,
        }
        return copy.deepcopy({name: value for name, value in document.items() if value is not None})


_Version = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,8}$")]


class _Wire(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The types of a registry document."""

    api_version: Literal["durable.streams/schema-registry/v1"]
    schema: str
    current_version: int
    routing_key: KeySetting | None = None
    search: Any = None
    boundaries: tuple[Boundary, ...]
    schemas: dict[_Version, Any]
    lenses: dict[_Version, Any]
    breaks: tuple[int, ...] = ()
