"""Decoding into types, safe in any thread.

msgspec prepares a type when it first decodes it, and keeps what it has prepared so far where other threads find it. A
thread that decodes the same type meanwhile ends the process with a segmentation fault. So types are prepared under a
lock here, and no other module gives msgspec a type with fields.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, overload

import msgspec

Decoded = TypeVar("Decoded")

_preparing = threading.RLock()


@overload
def make_decoder(
    kind: type[Decoded], *, float_hook: Callable[[str], Any] | None = None
) -> msgspec.json.Decoder[Decoded]: ...
@overload
def make_decoder(kind: Any, *, float_hook: Callable[[str], Any] | None = None) -> msgspec.json.Decoder[Any]: ...
def make_decoder(kind: Any, *, float_hook: Callable[[str], Any] | None = None) -> msgspec.json.Decoder[Any]:
    """A decoder of JSON that any thread may make and use; for types that are made as the process runs, too."""
    with _preparing:
        return msgspec.json.Decoder(kind, float_hook=float_hook)


#: Decoders of types that live as long as the process.
_decoder: Callable[[Any], msgspec.json.Decoder[Any]] = lru_cache(maxsize=1_000)(make_decoder)


def decode(encoded: bytes | str, kind: type[Decoded]) -> Decoded:
    """JSON as a type that lives as long as the process; raises what msgspec raises."""
    decoded: Decoded = _decoder(kind).decode(encoded)
    return decoded


def unpack(encoded: bytes, kind: type[Decoded]) -> Decoded:
    """MessagePack as such a type."""
    _decoder(kind)
    return msgspec.msgpack.decode(encoded, type=kind)


def convert(document: Any, kind: type[Decoded], *, strict: bool = True) -> Decoded:
    """Plain values as such a type."""
    _decoder(kind)
    return msgspec.convert(document, kind, strict=strict)
