"""Reading the settings that profiles share."""

from __future__ import annotations

from collections.abc import Collection

from headrace.profiles.definition import Settings
from headrace.query.part import Part

MOST = 64
MOST_LETTERS = 256


def texts(part: Part, *, lowercase: bool = False, refused: Collection[str] = ()) -> list[str]:
    """A list of words, trimmed and each once."""
    found: list[str] = []
    elements = part.elements()
    if len(elements) > MOST:
        part.note(f"has at most {MOST} elements")
    for element in elements[:MOST]:
        word = word_of(element)
        if word is None:
            continue
        word = word.lower() if lowercase else word
        if word in refused:
            element.note(f"{word} is a member of the envelope itself")
        elif word not in found:
            found.append(word)
    return found


def nothing(part: Part) -> Settings:
    """The settings of a profile that has none."""
    part.knows(())
    return {}


def word_of(part: Part) -> str | None:
    """A text that is not blank."""
    given = part.text()
    if given is None:
        return None
    word = given.strip()
    if not 0 < len(word) <= MOST_LETTERS:
        part.note(f"must have 1 to {MOST_LETTERS} letters")
        return None
    return word


def counterpart(part: Part, name: str) -> Settings:
    """``observability.request``, which names the stream of the other kind."""
    if not part.knows(("request",)) or not part["request"].knows((name,)):
        return {}
    stream = word_of(part["request"][name])
    return {} if stream is None else {"request": {name: stream}}
