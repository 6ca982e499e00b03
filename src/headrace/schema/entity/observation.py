"""An observation: the values reported about one entity at one time, as stored in the stream of its type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal

import msgspec

from headrace import decoding
from headrace.schema.entity.accept import Fragment, rejoin_fragments
from headrace.types import Piece

Kind = Literal["observation", "correction", "deletion", "restoration", "migration", "merge", "split", "undo", "erased"]

#: The priority of what is stored without one, and of what comes from ourselves.
STORED, CORRECTED, DELETED, RESTORED, MIGRATED = 100, 1000, 1000, 1001, 0
DEFAULT_SOURCE = "llm_summary"
_GLOBAL = "global"


class Observation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One event of the stream ``entities/<type>``; when it was appended is known to the log.

    ``details`` are the members that a merge (``into``), a split (``into``, ``observations``) and an undo (``undoes``)
    have of their own; and ``scope`` where the version is the user's own, as a global one may have the same number.
    """

    id: str
    kind: Kind
    entity_id: str
    entity_type: str
    user_id: str
    schema_version: str
    source_id: str | None
    observed_at_us: int
    source_priority: int
    observation_source: str
    specificity_score: float | None = None
    fields: dict[str, Any] = {}
    fragments: tuple[Fragment, ...] = ()
    canonical_name: str | None = None
    identity_basis: str | None = None
    identity_rule: str | None = None
    #: A digest; the key itself in observations that were stored before keys were digested.
    idempotency_key: str | None = None
    run_id: str | None = None
    details: dict[str, Any] = {}

    @property
    def schema_scope(self) -> str:
        """The scope of its version: ``global`` or ``user``."""
        return str(self.details.get("scope", _GLOBAL))


#: Hexadecimal digits with the two variant bits of a UUID set.
_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_decoder = decoding.make_decoder(Observation)


def scope_details(scope: str) -> dict[str, Any]:
    """The details of an observation that name the scope of its version."""
    return {} if scope == _GLOBAL else {"scope": scope}


def encode(observation: Observation) -> bytes:
    """The observation as it is appended."""
    return msgspec.json.encode(observation)


def decode(body: Piece) -> Observation:
    """The observation that an event holds."""
    return _decoder.decode(body)


def observation_id(
    *,
    entity_id: str,
    fields: Mapping[str, Any],
    fragments: Iterable[Fragment] = (),
    kind: Kind = "observation",
    source_id: str | None = None,
    observed_at_us: int | None = None,
    source_priority: int = STORED,
    observation_source: str = DEFAULT_SOURCE,
    specificity_score: float | None = None,
    idempotency_key: str | None = None,
    run_id: str | None = None,
    details: Mapping[str, Any] | None = None,
    members: Mapping[str, Any] | None = None,
) -> str:
    """A hash of an observation, laid out as a UUID; an equal observation has the same.

    It covers the members as they were sent and not how a schema split them, so that a replay after a change of the
    schema is still a replay. ``observed_at_us`` is None unless the caller gave it. Pass ``members``, if
    available, to avoid rejoining the fields and fragments.
    """
    all_fields = rejoin_fragments(fields, fragments) if members is None else members
    parts = [
        *(kind, entity_id, source_id, observed_at_us, source_priority, observation_source, specificity_score),
        *(idempotency_key, run_id, all_fields, details or None),
    ]
    return _uuid(sha256(msgspec.json.encode(parts, order="sorted")).hexdigest())


def id_by_origin(
    *, user_id: str, entity_type: str, source_id: str, stream: str, offset: str, mapping: str | None
) -> str:
    """The id of an observation that was made from an event of a stream: the same whatever it says.

    The event may be read in another schema version later, and may be about another entity by another version of the
    type, and is still the same event.
    """
    parts = ["origin", user_id, entity_type, source_id, stream, offset, mapping]
    return _uuid(sha256(msgspec.json.encode(parts)).hexdigest())


def _uuid(digest: str) -> str:
    """The first digits of a hash as a UUID of version 8, which is for hashes of one's own."""
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{_VARIANTS[digest[16]]}{digest[17:20]}-{digest[20:32]}"


def tombstone(entity_type: str, size: int) -> bytes:
    """An entry of exactly so many bytes that replaces an erased one, so that no sizes or positions change.

    No observation is shorter: each has all these members, and longer ids.
    """
    body = encode(
        Observation(
            id="",
            kind="erased",
            entity_id="",
            entity_type=entity_type,
            user_id="",
            schema_version="",
            source_id=None,
            observed_at_us=0,
            source_priority=0,
            observation_source="",
        )
    )
    return body[:-1] + b" " * (size - len(body)) + body[-1:]
