"""Content encodings: gzip and zstd, both ways, bounded after decoding."""

from __future__ import annotations

import asyncio
import gzip
import math
import zlib
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Protocol

import zstandard

from headrace.engine.runtime.gates import Gate
from headrace.errors import BadRequest, HeadraceError, TimedOut, TooLarge, UnsupportedMedia
from headrace.server.http.exchange import Reply
from headrace.server.http.request import Request

_SMALLEST = 1024
_STEP = 256
#: Of gzip members or zstd frames in one body. Each costs time even where it is empty; those who pack in parallel begin
#: one for every 64 KiB or more, which makes 160 of them in 10 MiB.
MAX_MEMBERS = 1024


def decompress(body: bytes, encoding: str, limit: int, until: float = math.inf) -> bytes:
    """The decompressed body; refuses what exceeds the limit while it is unpacked, and stops at ``until``."""
    try:
        if encoding in ("gzip", "x-gzip"):
            return _unpack(body, limit, until, _start_gzip)
        if encoding == "zstd":
            return _unpack(body, limit, until, _start_zstd)
    except (zlib.error, zstandard.ZstdError) as reason:
        raise BadRequest(f"the body is not {encoding}: {reason}", field="Content-Encoding") from reason
    if encoding in ("", "identity"):
        return body
    raise UnsupportedMedia(f"{encoding!r} is not spoken here; use gzip or zstd", field="Content-Encoding")


def _unpack(body: bytes, limit: int, until: float, start: Callable[[], Decompressor]) -> bytes:
    """Unpack one member after another in small steps, so that a bomb is noticed before it is large."""
    plain, members, unpacking = bytearray(), _members(start), None
    for at in range(0, len(body), _STEP):
        if monotonic() > until:
            raise TimedOut("request timed out")
        step = body[at : at + _STEP]
        while step:
            if unpacking is None or unpacking.eof:
                unpacking = next(members)
            plain += unpacking.decompress(step)
            if len(plain) > limit:
                raise TooLarge(f"the body exceeds {limit} bytes once decoded", limit=limit)
            step = unpacking.unused_data if unpacking.eof else b""
    if unpacking is not None and not unpacking.eof:
        raise BadRequest("the encoded body ends too early", field="Content-Encoding")
    return bytes(plain)


def _members(start: Callable[[], Decompressor]) -> Iterator[Decompressor]:
    """Decompressors for as many members as a body may have; raises for one more."""
    for _ in range(MAX_MEMBERS):
        yield start()
    raise BadRequest(f"the body has more than {MAX_MEMBERS} gzip members or zstd frames", field="Content-Encoding")


class Decompressor(Protocol):
    """What zlib's and zstandard's decompression objects have in common."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended."""

    @property
    def unused_data(self) -> bytes:
        """What came after its end."""

    def decompress(self, compressed: bytes) -> bytes:
        """The next plain bytes."""


def _start_gzip() -> Decompressor:
    return zlib.decompressobj(wbits=31)


def _start_zstd() -> Decompressor:
    return zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()


def accepted_encoding(headers: dict[bytes, bytes]) -> str:
    """The encoding to answer in: zstd before gzip, or none."""
    raw = headers.get(b"accept-encoding")
    if not raw:
        return ""
    offers: dict[str, bool] = {}
    for part in raw.decode("latin-1").lower().split(","):
        name, _, weight = part.strip().partition(";")
        offers[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return next((name for name in ("zstd", "gzip") if offers.get(name)), "")


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=1, mtime=0)


def _zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(body)


_ENCODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": _gzip, "zstd": _zstd}


class ReplyCompressor:
    """Sends replies encoded where that helps; the work is done off the loop, through the read gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, request: Request, reply: Reply, encoding: str) -> None:
        """Answer now, or once the body is encoded."""
        if not encoding or len(reply.body) < _SMALLEST:
            request.exchange.reply(reply)
            return
        task = asyncio.get_running_loop().create_task(self._encode(request, reply, encoding))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _encode(self, request: Request, reply: Reply, encoding: str) -> None:
        try:
            async with self._gate:
                reply.body = await asyncio.to_thread(_ENCODERS[encoding], reply.body)
            reply.headers |= {"content-encoding": encoding, "vary": "accept-encoding"}
        except HeadraceError as refusal:
            reply = Reply.failure(refusal)
        request.exchange.reply(reply)
