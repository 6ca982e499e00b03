"""Offsets as text: 26 Crockford characters that sort like the stream.

The 128-bit value is ``epoch:u32 | position:u64 | 0:u32``, where a *position* is the number of entries that
precede it, so the entry with sequence number ``seq`` has position ``seq + 1``. The all-zero text is the start of
every stream.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

VERSION = 1
START = "0" * 26

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_VALUES = {c: i for i, c in enumerate(_ALPHABET)}
_VALUES |= {c.lower(): i for c, i in _VALUES.items()}
_VALUES |= {"O": 0, "o": 0, "I": 1, "i": 1, "L": 1, "l": 1}
_DIGITS = str.maketrans({c: "0123456789abcdefghijklmnopqrstuv"[i] for c, i in _VALUES.items()})
_MAX_POSITION = 2**64 - 1
_DIGIT = "[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]"
#: What offsets look like that servers give.
OFFSET_PATTERN = rf"[0-7]{_DIGIT}{{18}}[048CGMRWcgmrw]0{{6}}"

#: An offset in a document; it is not checked where the document is decoded.
OffsetText = Annotated[
    str,
    msgspec.Meta(extra_json_schema={"pattern": f"^{OFFSET_PATTERN}$"}, examples=["00000000000000000004000000"]),
]


class Offset(NamedTuple):
    """A position in a stream: after ``position`` entries, the last of which was written in ``epoch``."""

    epoch: int
    position: int


def encode(epoch: int, position: int) -> str:
    """The canonical text of an offset; position 0 is the start whatever the epoch."""
    if not position:
        return START
    # 32 epoch bits, 64 position bits and 4 of the zero bits make ten pairs; six characters of zero bits remain.
    pairs, low, high, last = _PAIRS, (position & 0xFFFFFFF) << 2, position >> 28, (epoch & 15) << 6
    middle = f"{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}" if high else "000000"
    return (
        f"{pairs[epoch >> 24]}{pairs[epoch >> 14 & 1023]}{pairs[epoch >> 4 & 1023]}{pairs[last | high >> 30]}"
        f"{middle}{pairs[low >> 20]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}000000"
    )


def decode(text: str) -> Offset:
    """Read an offset in any letter case; raises ValueError for every text that is no offset."""
    if len(text) != 26:
        raise ValueError(f"an offset has 26 characters, this has {len(text)}")
    if not all(c in _VALUES for c in text):
        raise ValueError("an offset is written in Crockford base32")
    n = int(text.translate(_DIGITS), 32)
    if n >> 128:
        raise ValueError("the offset exceeds 128 bits")
    if n & 0xFFFFFFFF:
        raise ValueError("the last 32 bits of an offset are zero")
    epoch, position = n >> 96, n >> 32 & _MAX_POSITION
    if epoch and not position:
        raise ValueError("the start of a stream is the all-zero offset")
    return Offset(epoch, position)
