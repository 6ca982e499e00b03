"""What a profile is: its settings, what it makes of entries, and what a stream gets when it is installed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

import msgspec

from headrace.profiles.hook import AppendHook
from headrace.query.document_reader import Part
from headrace.schema.registry import KeySetting

MAX_WORDS = 64
MAX_LETTERS = 256


def read_words(part: Part, *, lowercase: bool = False, refused: Collection[str] = ()) -> list[str]:
    """A list of words, trimmed and each once."""
    words: list[str] = []
    elements = part.elements()
    if len(elements) > MAX_WORDS:
        part.note(f"has at most {MAX_WORDS} elements")
    for element in elements[:MAX_WORDS]:
        word = read_word(element)
        if word is None:
            continue
        word = word.lower() if lowercase else word
        if word in refused:
            element.note(f"{word} is a member of the envelope itself")
        elif word not in words:
            words.append(word)
    return words


def read_no_settings(part: Part) -> Settings:
    """The settings of a profile that has none."""
    part.knows(())
    return {}


def read_word(part: Part) -> str | None:
    """A text that is not blank."""
    raw = part.text()
    if raw is None:
        return None
    word = raw.strip()
    if not 0 < len(word) <= MAX_LETTERS:
        part.note(f"must have 1 to {MAX_LETTERS} letters")
        return None
    return word


def read_counterpart(part: Part, name: str) -> Settings:
    """``observability.request``, which names the stream of the other kind."""
    if not part.knows(("request",)) or not part["request"].knows((name,)):
        return {}
    stream = read_word(part["request"][name])
    return {} if stream is None else {"request": {name: stream}}


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
    hook: Callable[[Settings], AppendHook | None]
    defaults: Defaults | None = None
    #: Whether entries must be JSON.
    needs_json: bool = True
    #: Whether the profile needs its own schema, so that it cannot be installed after the first entries.
    needs_schema: bool = False
    routes: frozenset[str] = frozenset()
    #: The part of a request that its events describe (events or traces), where another stream has the other part.
    signal: str | None = None


class Profile:
    """A definition with settings; never changed."""

    def __init__(self, definition: Definition, settings: Mapping[str, Any]) -> None:
        self.definition = definition
        self.settings: Settings = dict(settings)

    @property
    def name(self) -> str:
        """The kind of the profile, as clients name it."""
        return self.definition.name

    @cached_property
    def hook(self) -> AppendHook | None:
        """The append hook of the profile, if it has one."""
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
        """The streams with the events and traces of the same requests, where the settings name the other stream."""
        named = self.settings.get("observability", {}).get("request")
        if not named:
            return None
        others = {f"{role.removesuffix('Stream')}_stream": name for role, name in named.items()}
        return {"request": dict(sorted({**others, f"{self.definition.signal}_stream": stream}.items()))}

    def resource(self) -> dict[str, Any]:
        """The answer of ``_profile``."""
        return {"apiVersion": API_VERSION, "profile": self.document}


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of objects that have all of these members and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def _bound(kind: str, pointer: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": pointer}], **more}


def keyword(pointer: str, *, lowercase: bool = False, aggregatable: bool = False) -> dict[str, Any]:
    """A search field of exact values and prefixes."""
    more: dict[str, Any] = {"normalizer": "lowercase_v1"} if lowercase else {}
    more |= {"exact": True, "prefix": True, "exists": True, "sortable": True}
    return _bound("keyword", pointer, **more, **({"aggregatable": True} if aggregatable else {}))


def typed(kind: str, pointer: str) -> dict[str, Any]:
    """A search field of dates, numbers or booleans, with everything enabled."""
    return _bound(kind, pointer, exact=True, column=True, exists=True, sortable=True, aggregatable=True)


def text(pointer: str) -> dict[str, Any]:
    """A search field of words and phrases."""
    return _bound("text", pointer, analyzer="unicode_word_v1", exists=True, positions=True)
