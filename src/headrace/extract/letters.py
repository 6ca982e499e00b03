"""Lower case and words of many texts at once; ``query.words`` says what they are.

Both look at one character at a time, so both are a table. Texts that are pure ASCII are looked at as bytes, which is
quicker. All texts come with quotes around them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.extract.texts import Bytes, Column, Flags, Numbers, Texts, column_of, summed
from headrace.query import words

_BLANK = ord(" ")
_UTF_32 = "utf-32-le"
# Between them lie the halves of surrogate pairs, which are no characters.
_CHARACTERS = (range(0xD800), range(0xE000, 0x110000))
_Characters = NDArray[np.uint32]
_Kernel = Callable[[Texts], Column]


def unquoted(texts: Texts) -> Column:
    """Texts as they are."""
    return _inside(texts.column)


def lowered(texts: Texts) -> Column:
    """Texts in lower case."""
    return _inside(_by_script(texts, lambda plain: pc.ascii_lower(plain.column), _lowered))


def spaced(texts: Texts) -> Column:
    """The words of texts in lower case, with one blank before, between and after; the quotes become those."""
    return _by_script(texts, _spaced_ascii, _spaced)


def _inside(column: Column) -> Column:
    return pc.binary_slice(column.cast(pa.binary()), 1, -1).view(pa.string())


def _by_script(texts: Texts, ascii_only: _Kernel, any_script: _Kernel) -> Column:
    """What the first makes of texts that are pure ASCII, and the second of others."""
    if texts.data.max(initial=0) < 128:
        return ascii_only(texts)
    beyond = texts.where(texts.data > 127)
    both = pa.concat_arrays([ascii_only(texts.chosen(~beyond)), any_script(texts.chosen(beyond))])
    places = np.empty(len(texts), np.int64)
    places[np.concatenate([np.flatnonzero(~beyond), np.flatnonzero(beyond)])] = np.arange(len(texts))
    return both.take(pa.array(places))


def _spaced_ascii(texts: Texts) -> Column:
    data = _ascii_words(Texts(pc.ascii_lower(texts.column)).data)
    kept = _single_blanks(data == _BLANK, texts.starts)
    return column_of(data, texts.lengths) if kept.all() else column_of(data[kept], texts.count(kept))


def _ascii_words(lowered: Bytes) -> Bytes:
    """Bytes with a blank for what belongs to no word; sums and products of bytes are quicker here than choices."""
    belongs = lowered - np.uint8(ord("a")) < 26
    belongs |= lowered - np.uint8(ord("0")) < 10
    from_blank: Bytes = (lowered - np.uint8(_BLANK)) * belongs.view(np.uint8)
    return from_blank + np.uint8(_BLANK)


def _spaced(texts: Texts) -> Column:
    characters, starts = _opened(texts)
    folded = _words()[characters]
    kept = _single_blanks(folded == _BLANK, starts)
    return _closed(folded[kept], summed(kept.view(np.uint8), starts))


def _lowered(texts: Texts) -> Column:
    characters, starts = _opened(texts)
    return _closed(_lower_case()[characters], np.diff(starts, append=len(characters)))


def _single_blanks(blank: Flags, starts: Numbers) -> Flags:
    """Everything but blanks after blanks in the same text."""
    kept = np.ones(len(blank), np.bool_)
    np.logical_and(blank[1:], blank[:-1], out=kept[1:])
    np.logical_not(kept[1:], out=kept[1:])
    kept[starts] = True
    return kept


def _opened(texts: Texts) -> tuple[_Characters, Numbers]:
    """All characters, and where each text begins among them."""
    lengths = texts.count((texts.data & 0xC0) != 0x80)
    return _characters(texts.data.tobytes().decode()), np.cumsum(lengths, dtype=np.int64) - lengths


def _closed(characters: _Characters, lengths: NDArray[np.integer]) -> Column:
    """The texts of these lengths."""
    sizes: Bytes = 1 + (characters > 0x7F).view(np.uint8) + (characters > 0x7FF) + (characters > 0xFFFF)
    data = np.frombuffer(characters.tobytes().decode(_UTF_32).encode(), np.uint8)
    return column_of(data, summed(sizes, np.cumsum(lengths, dtype=np.int64) - lengths))


def _characters(text: str) -> _Characters:
    return np.frombuffer(text.encode(_UTF_32), np.uint32)


@cache
def _lower_case() -> _Characters:
    """Every character in lower case."""
    table = np.zeros(0x110000, np.uint32)
    for part in _CHARACTERS:
        table[part.start : part.stop] = _characters(words.lower("".join(map(chr, part))))
    return table


@cache
def _words() -> _Characters:
    """Every character in lower case, and a blank for what belongs to no word."""
    belongs = np.zeros(0x110000, np.bool_)
    for part in _CHARACTERS:
        belongs[_characters("".join(words.words(" ".join(map(chr, part)))))] = True
    return np.where(belongs[_lower_case()], _lower_case(), np.uint32(_BLANK))
