"""What a profile is: its settings, what it makes of entries, and what a stream gets when it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from headrace.profiles.hook import Hook
from headrace.query.part import Part
from headrace.schema.registry import KeySetting

API_VERSION = "durable.streams/profile/v1"

#: The settings of a profile as they are stored and shown, without ``kind``.
Settings = dict[str, Any]


class Defaults(msgspec.Struct, frozen=True):
    """The registry that a stream without a schema gets with a profile."""

    schema: Any
    search: Any = None
    routing_key: KeySetting | None = None


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One profile.

    ``read`` takes the settings out of a document, spelled in one way, and notes what is wrong with it; ``hook`` makes
    of settings what entries go through, or nothing where they are taken as they come. ``routes`` are the resources of
    a stream that only this profile serves.
    """

    name: str
    read: Callable[[Part], Settings]
    hook: Callable[[Settings], Hook | None]
    defaults: Defaults | None = None
    #: Whether entries must be JSON.
    needs_json: bool = True
    #: Whether the profile means nothing without its schema, so that it cannot come after the first entries.
    needs_schema: bool = False
    routes: frozenset[str] = frozenset()
    #: What of requests its events tell, where those of another stream tell the rest.
    signal: str | None = None


class Profile:
    """A definition with settings; never changed."""

    def __init__(self, definition: Definition, settings: Mapping[str, Any]) -> None:
        self.definition = definition
        self.settings: Settings = dict(settings)

    @property
    def name(self) -> str:
        """The kind of the profile, as clients say it."""
        return self.definition.name

    @cached_property
    def hook(self) -> Hook | None:
        """What entries go through, if anything."""
        return self.definition.hook(self.settings)

    @cached_property
    def text(self) -> str:
        """The profile as it is stored: its name, or the whole document where it has settings."""
        return msgspec.json.encode(self.document).decode() if self.settings else self.name

    @property
    def document(self) -> dict[str, Any]:
        """The profile as clients see it."""
        return {"kind": self.name, **self.settings}

    def observability(self, stream: str) -> dict[str, Any] | None:
        """The streams that tell of the same requests, where the settings of this one's profile name the other."""
        named = self.settings.get("observability", {}).get("request")
        if not named:
            return None
        others = {f"{role.removesuffix('Stream')}_stream": name for role, name in named.items()}
        return {"request": dict(sorted({**others, f"{self.definition.signal}_stream": stream}.items()))}

    def resource(self) -> dict[str, Any]:
        """What ``_profile`` answers."""
        return {"apiVersion": API_VERSION, "profile": self.document}
