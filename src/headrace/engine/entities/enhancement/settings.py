"""The settings of automatic enhancement: whether it is on, what fragments need, and what is never promoted."""

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
_MAX_BANNED = 200
_MAX_PATTERN_LENGTH = 100
#: The bounds of these are checked by ``check``, which names the field.
_SourceKind = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(SOURCE_KINDS)})]
_Pattern = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": _MAX_PATTERN_LENGTH})]
_Blacklist = Annotated[tuple[Banned | _Pattern, ...], msgspec.Meta(extra_json_schema={"maxItems": _MAX_BANNED})]


class EnhancementSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of an entity type for a user or for everybody; by default enhancement is off.

    In the mode ``recommend`` candidates wait for approval. ``blacklist`` has patterns of names, of one type or user or
    of all; those of everybody's settings count for users too.
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
    blacklist: _Blacklist = BANNED
    migrate_existing: bool = True

    @property
    def banned(self) -> tuple[Banned, ...]:
        """The patterns of names that are never promoted."""
        return tuple(Banned(pattern) if isinstance(pattern, str) else pattern for pattern in self.blacklist)

    def check(self) -> None:
        """Refuse values that the types of fields do not exclude."""
        for kind in self.trusted_sources:
            if kind not in SOURCE_KINDS:
                raise BadRequest(f"{kind!r} is no kind of source", field="trusted_sources", known=list(SOURCE_KINDS))
        if len(self.blacklist) > _MAX_BANNED:
            raise BadRequest(f"there are at most {_MAX_BANNED} patterns", field="blacklist")
        for banned in self.banned:
            if not 1 <= len(banned.pattern) <= _MAX_PATTERN_LENGTH:
                raise BadRequest(f"a pattern has 1 to {_MAX_PATTERN_LENGTH} characters", field="blacklist")


class EffectiveSettings(msgspec.Struct, frozen=True):
    """The settings that apply to an owner, and those of everybody."""

    own: EnhancementSettings
    #: Whether the owner has set them.
    is_set: bool
    common: EnhancementSettings

    def rules(self, owner: str, decided: frozenset[str]) -> Settings:
        """The rules by which fragments of the owner become candidates."""
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
    """The settings that apply to an owner: their own, else everybody's, but then switched off."""
    row, shared = enhancements.settings(entity_type, owner), enhancements.settings(entity_type, EVERYBODY)
    common = EnhancementSettings() if shared is None else read(shared)
    if row is not None:
        return EffectiveSettings(read(row), True, common)
    return EffectiveSettings(msgspec.structs.replace(common, enabled=False), False, common)
