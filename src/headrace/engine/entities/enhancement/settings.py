"""How an entity type grows by itself: whether it does, what is asked of fragments, and what is never promoted."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from headrace import decoding
from headrace.errors import BadRequest
from headrace.reduce.fragments.rules import BANNED, TRUSTED, Banned, Settings
from headrace.schema.entity.nodes import SOURCE_KINDS
from headrace.storage.enhancements import Enhancements
from headrace.storage.entity_types import EVERYBODY

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Number = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_MOST_BANNED = 200
_LONGEST_PATTERN = 100
#: What the document says of these is checked by ``check``, which names the field.
_SourceKind = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(SOURCE_KINDS)})]
_Pattern = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": _LONGEST_PATTERN})]


class EnhancementSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds unless something else is set: nothing happens by itself.

    In the mode ``recommend`` what is found waits for approval. ``blacklist`` are patterns of names, of one type or user
    or of all; those of everybody's settings count for users too.
    """

    enabled: bool = False
    mode: Literal["apply", "recommend"] = "apply"
    threshold: Number = 3
    min_sources: Number = 2
    min_type_share: Share = 0.95
    min_confidence: Share = 0.0
    global_conservative: bool = False
    trusted_source_relaxation: bool = False
    trusted_sources: tuple[_SourceKind, ...] = TRUSTED
    blacklist: Annotated[tuple[Banned | _Pattern, ...], msgspec.Meta(extra_json_schema={"maxItems": _MOST_BANNED})] = (
        BANNED
    )
    migrate_existing: bool = True

    @property
    def banned(self) -> tuple[Banned, ...]:
        """What is never promoted."""
        return tuple(Banned(pattern) if isinstance(pattern, str) else pattern for pattern in self.blacklist)

    def check(self) -> None:
        """Refuse what no type decides."""
        for kind in self.trusted_sources:
            if kind not in SOURCE_KINDS:
                raise BadRequest(f"{kind!r} is no kind of source", field="trusted_sources", known=list(SOURCE_KINDS))
        if len(self.blacklist) > _MOST_BANNED:
            raise BadRequest(f"there are at most {_MOST_BANNED} patterns", field="blacklist")
        for banned in self.banned:
            if not 1 <= len(banned.pattern) <= _LONGEST_PATTERN:
                raise BadRequest(f"a pattern has 1 to {_LONGEST_PATTERN} characters", field="blacklist")


class EffectiveSettings(msgspec.Struct, frozen=True):
    """The settings that hold for an owner, and those of everybody."""

    own: EnhancementSettings
    #: Whether the owner has set them.
    is_set: bool
    common: EnhancementSettings

    def asked(self, owner: str, decided: frozenset[str]) -> Settings:
        """What is asked of fragments before they change the schema of the owner."""
        own = self.own
        return Settings(
            user_id=owner or None,
            min_occurrences=own.threshold,
            min_sources=own.min_sources,
            min_share=own.min_type_share,
            global_conservative=own.global_conservative,
            trusted_source_relaxation=own.trusted_source_relaxation,
            trusted_kinds=own.trusted_sources,
            banned=tuple(dict.fromkeys((*self.common.banned, *own.banned))),
            decided=decided,
        )


def read(document: str | bytes) -> EnhancementSettings:
    """Settings as they were stored or sent."""
    return decoding.decode(document, EnhancementSettings)


def load(enhancements: Enhancements, entity_type: str, owner: str) -> EffectiveSettings:
    """The settings that hold for an owner: their own, else everybody's; those do not switch a user's on."""
    row, shared = enhancements.settings(entity_type, owner), enhancements.settings(entity_type, EVERYBODY)
    common = EnhancementSettings() if shared is None else read(shared)
    if row is not None:
        return EffectiveSettings(read(row), True, common)
    return EffectiveSettings(msgspec.structs.replace(common, enabled=False), False, common)
