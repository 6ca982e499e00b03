"""Changes of entity types as documents: kept as their history, and replayed by a recovery."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace import decoding
from headrace.engine.entities.entity_type import ENTITIES, schema_of
from headrace.errors import CorruptData
from headrace.extract.erasure import load as load_targets
from headrace.storage.background_requests import ErasureRow, Erasures
from headrace.storage.database import Connection
from headrace.storage.enhancements import EnhancementRuns, Enhancements, Recommendation, Run
from headrace.storage.entity_types import SchemaRegistry, SchemaRow
from headrace.storage.journals import EntityChangeRow
from headrace.storage.streams import Streams

#: ``follow`` is a user's schema after a change of the global one; ``infer`` a type that nobody had registered. The
#: others are about fragments: how a type grows by itself, what they speak for, and their migrations; and about entities
#: that are removed for good.
Action = Literal[
    "register",
    "update",
    "activate",
    "deactivate",
    "infer",
    "follow",
    "enhancement",
    "recommend",
    "migrate",
    "undo",
    "erase",
    "erased",
]
#: No version is active.
NONE = ""


class TypeChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of one owner's schema: the version that it made, if it made one, and which is active from then on."""

    action: Action
    made: SchemaRow | None = None
    #: The version that is active from then on, empty for none; None where that stays as it was.
    active: str | None = None
    from_version: str = NONE
    to_version: str = NONE
    changes: tuple[dict[str, Any], ...] = ()
    reasons: tuple[str, ...] = ()
    #: The settings of enhancement from then on.
    enhancement: dict[str, Any] | None = None
    recommendations: tuple[Recommendation, ...] = ()
    #: A migration that begins, has ended, or is undone.
    run: Run | None = None
    #: An erasure that begins or has ended; it tells of entities by their ids alone.
    erasure: ErasureRow | None = None

    def dump(self) -> str:
        """The document as it is stored."""
        return msgspec.json.encode(self).decode()


def load(row: EntityChangeRow) -> TypeChange:
    """The document of a row."""
    try:
        return decoding.decode(row.document, TypeChange)
    except msgspec.DecodeError as reason:
        raise CorruptData(f"change {row.number} of the entity types cannot be read: {reason}") from reason


def replay(registry: SchemaRegistry, entity_type: str, owner: str, document: TypeChange) -> None:
    """Apply a document to the registry; all of them, in the order of their numbers, make the registry."""
    if document.made is not None:
        registry.insert(document.made)
    _replay_enhancement(registry.connection, entity_type, owner, document)
    if document.erasure is not None:
        _replay_erasure(registry.connection, entity_type, document.erasure)
    if document.active is None:
        return
    if document.active == NONE:
        registry.deactivate(entity_type, owner)
        registry.set_aliases(entity_type, owner, ())
        return
    row = registry.version(entity_type, owner, document.active)
    if row is None:
        raise CorruptData(f"{entity_type} {document.active} is to be active and was never made")
    registry.activate(row)
    registry.set_aliases(entity_type, owner, aliases_of(row))


def _replay_enhancement(connection: Connection, entity_type: str, owner: str, document: TypeChange) -> None:
    enhancements, runs, run = Enhancements(connection), EnhancementRuns(connection), document.run
    if document.enhancement is not None:
        enhancements.set(entity_type, owner, msgspec.json.encode(document.enhancement).decode())
    enhancements.recommend(document.recommendations)
    if run is None:
        return
    stored_run = runs.find(run.id)
    if stored_run is None or stored_run.ended_us is None or document.action == "undo":
        runs.save(run)
    if document.action == "undo":
        enhancements.undo(entity_type, run.id, run.fields)


def _replay_erasure(connection: Connection, entity_type: str, row: ErasureRow) -> None:
    """Restore an erasure, and resume it unless it has ended; it does not apply to later entries."""
    erasures, stream = Erasures(connection), Streams(connection).by_name(ENTITIES + entity_type)
    stored_row = erasures.get(row.id)
    if row.ended_us is not None and stored_row is not None and stored_row.ended_us is None:
        erasures.end(row.id, row.ended_us, row.report)
    elif stored_row is None and stream is not None:
        before = min(row.before_seq, stream.next_seq)
        targets = msgspec.structs.replace(load_targets(row.targets), before_seq=before)
        here = msgspec.structs.replace(row, stream=stream.id, before_seq=before, targets=targets.dump())
        erasures.add(here, () if row.ended_us is not None else targets.ids)


def aliases_of(row: SchemaRow) -> list[str]:
    """The other names that a version gives its type."""
    return [alias for alias in schema_of(row).schema_definition.aliases if alias != row.entity_type]
