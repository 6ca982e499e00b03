from __future__ import annotations

import gzip
import os
import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from headrace.errors import BadRequest, TimedOut, TooLarge, UnsupportedMedia
from headrace.server.http.compression import MAX_MEMBERS, accepted_encoding, decompress

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

MiB = 1024 * 1024
LIMIT = 10 * MiB
Connect = Callable[..., "Wire"]
Code = Callable[[Any], str]


def zstd(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def deflated(data: bytes) -> bytes:
    return zlib.compress(data)


PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd, "identity": bytes}


# -- requests


@pytest.mark.parametrize("name", ["gzip", "zstd", "identity", "GZIP", "x-gzip", "Zstd"])
def test_an_encoded_body_is_stored_plain(api: Api, name: str) -> None:
    data = os.urandom(100) + b"a" * 100_000
    pack = PACK.get(name.lower(), gzip.compress)
    path = api.octets()
    headers = {"content-type": "application/octet-stream", "content-encoding": name}
    assert api.post(path, pack(data), headers).status_code == 204
    assert api.get(path).content == data
    created = api.name()
    assert api.put(created, pack(b'{"a":1}'), {"content-type": "application/json", "content-encoding": name})
    assert api.get(created).json() == [{"a": 1}]


def test_encodings_may_be_stacked_twice_but_not_more(api: Api, code_of: Code) -> None:
    path = api.octets()
    kind = {"content-type": "application/octet-stream"}
    twice = zstd(gzip.compress(b"data"))
    assert api.post(path, twice, {**kind, "content-encoding": "gzip, zstd"}).status_code == 204
    assert api.get(path).content == b"data"
    refused = api.post(path, gzip.compress(twice), {**kind, "content-encoding": "gzip, zstd, gzip"})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


@pytest.mark.parametrize("name", ["br", "deflate", "compress", "gzip;q=1", "aes128gcm", "none"])
def test_an_encoding_we_do_not_speak_is_415(api: Api, code_of: Code, name: str) -> None:
    path = api.octets()
    headers = {"content-type": "application/octet-stream", "content-encoding": name}
    refused = api.post(path, deflated(b"x"), headers)
    assert refused.status_code == 415
    assert code_of(refused) == "unsupported_media_type"
    assert api.offset(path) == "0" * 26


@pytest.mark.parametrize("name", ["gzip", "zstd"])
@pytest.mark.parametrize("spoil", [lambda b: b"not it", lambda b: b[:-5], lambda b: b + b"more", lambda b: b[3:]])
def test_a_broken_encoding_is_refused(api: Api, code_of: Code, name: str, spoil: Callable[[bytes], bytes]) -> None:
    path = api.octets()
    headers = {"content-type": "application/octet-stream", "content-encoding": name}
    refused = api.post(path, spoil(PACK[name](b"hello" * 1000)), headers)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.offset(path) == "0" * 26


@pytest.mark.parametrize("name", ["gzip", "zstd"])
@pytest.mark.parametrize("data", [b"", b"x", b"abc" * 1000, os.urandom(300_000), b"a" * 300_000 + os.urandom(1000)])
def test_a_body_cut_short_anywhere_is_never_taken_for_the_whole(name: str, data: bytes) -> None:
    whole = PACK[name](data) if name == "gzip" else zstd(data, write_content_size=False)
    assert decompress(whole, name, LIMIT) == data
    for cut in {*range(1, min(len(whole), 40)), len(whole) // 2, len(whole) // 3, min(len(whole) - 1, 131_100)}:
        with pytest.raises(BadRequest):
            decompress(whole[:-cut], name, LIMIT)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_several_members_are_one_body(name: str) -> None:
    assert decompress(PACK[name](b"one ") + PACK[name](b"") + PACK[name](b"two"), name, LIMIT) == b"one two"


@pytest.mark.parametrize("name", ["gzip", "zstd"])
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_limit_counts_decoded_bytes_exactly(name: str, over: int) -> None:
    data = os.urandom(1000 + over)
    if over > 0:
        with pytest.raises(TooLarge):
            decompress(PACK[name](data), name, 1000)
    else:
        assert decompress(PACK[name](data), name, 1000) == data


#: What a body may have any number of and still be empty.
EMPTY = {"gzip": gzip.compress(b""), "zstd": zstd(b""), "zstd to skip": b"\x50\x2a\x4d\x18\0\0\0\0"}


@pytest.mark.parametrize("kind", EMPTY)
def test_a_body_has_many_members_at_most(kind: str) -> None:
    name = kind.partition(" ")[0]
    most = EMPTY[kind] * (MAX_MEMBERS - 1) + PACK[name](b"x")
    assert decompress(most, name, LIMIT) == b"x"
    with pytest.raises(BadRequest, match=str(MAX_MEMBERS)) as refused:
        decompress(EMPTY[kind] + most, name, LIMIT)
    assert refused.value.facts == {"field": "Content-Encoding"}


@pytest.mark.parametrize("kind", EMPTY)
def test_a_body_of_very_many_empty_members_does_not_hold_up_the_server(api: Api, code_of: Code, kind: str) -> None:
    name, path = kind.partition(" ")[0], api.octets()
    body = EMPTY[kind] * 200_000 + PACK[name](b"x")
    refused = api.post(path, body, {"content-type": "application/octet-stream", "content-encoding": name})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.offset(path) == "0" * 26


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_decoding_ends_when_its_time_is_over(name: str) -> None:
    body = PACK[name](b"x")
    assert decompress(body, name, LIMIT, time.monotonic() + 60) == b"x"
    with pytest.raises(TimedOut):
        decompress(body, name, LIMIT, time.monotonic() - 1)


def test_unknown_names_are_refused_by_the_decoder() -> None:
    with pytest.raises(UnsupportedMedia):
        decompress(b"x", "br", LIMIT)
    assert decompress(b"x", "", LIMIT) == b"x"


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(bytes(100 * MiB)),
    "gzip of many members": lambda: gzip.compress(bytes(MiB)) * 100,
    "zstd": lambda: zstd(bytes(400 * MiB)),
    "zstd of unknown size": lambda: zstd(bytes(400 * MiB), write_content_size=False),
    "gzip, gzip": lambda: gzip.compress(gzip.compress(bytes(100 * MiB))),
    "zstd, zstd": lambda: zstd(zstd(bytes(400 * MiB))),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_in_bounded_memory(
    start_server: StartServer, api_of: Any, code_of: Code, rss: Callable[[Any], int], kind: str
) -> None:
    server = start_server()
    api = api_of(server)
    path, bomb = api.octets(), BOMBS[kind]()
    name = kind.partition(" of")[0]
    before = rss(server)
    for _ in range(3):
        refused = api.post(path, bomb, {"content-type": "application/octet-stream", "content-encoding": name})
        assert refused.status_code == 413
        assert code_of(refused) == "payload_too_large"
    assert _peak(server) - before < 64 * MiB
    assert api.offset(path) == "0" * 26


def _peak(server: ServerProcess) -> int:
    assert server.process is not None
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def test_a_window_larger_than_is_allowed_is_refused(api: Api, code_of: Code) -> None:
    window = zstandard.ZstdCompressionParameters.from_level(1, window_log=30, write_content_size=False)
    packing = zstandard.ZstdCompressor(compression_params=window).compressobj()
    data = packing.compress(b"x") + packing.flush()
    headers = {"content-type": "application/octet-stream", "content-encoding": "zstd"}
    refused = api.post(api.octets(), data, headers)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


# -- answers


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (None, ""), ("", ""), ("gzip", "gzip"), ("zstd", "zstd"), ("gzip, zstd", "zstd"), ("GZIP;q=0.5", "gzip"),
        ("gzip;q=0", ""), ("zstd;q=0, gzip", "gzip"), ("zstd ; q=0.000 , gzip;q=1", "gzip"), ("br, deflate", ""),
        ("identity", ""), ("x" * 5000, ""), (",,;;q", ""),
    ],
)  # fmt: skip
def test_the_best_offer_is_taken(header: str | None, chosen: str) -> None:
    assert accepted_encoding({} if header is None else {b"accept-encoding": header.encode()}) == chosen


def unpack(name: str, body: bytes) -> bytes:
    return gzip.decompress(body) if name == "gzip" else zstandard.ZstdDecompressor().decompress(body, 10 * MiB)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_answers_are_encoded_where_it_helps(server: ServerProcess, api: Api, connect: Connect, name: str) -> None:
    data = b"abcdefgh" * 50_000
    path, wire = api.octets(data), connect(server)
    plain = wire.request("GET", path).answer()
    packed = wire.request("GET", path, b"", f"Accept-Encoding: {name}").answer()
    assert packed.headers["content-encoding"] == name
    assert packed.headers["vary"] == "accept-encoding"
    assert unpack(name, packed.body) == data
    assert packed.headers["etag"] == plain.headers["etag"]
    assert packed.headers["stream-next-offset"] == plain.headers["stream-next-offset"]
    waited = wire.request("GET", f"{path}?live=true&offset=-1", b"", f"Accept-Encoding: {name}").answer()
    assert unpack(name, waited.body) == data
    known = wire.request("GET", path, b"", f"Accept-Encoding: {name}", f"If-None-Match: {plain.headers['etag']}")
    assert known.answer().status == 304


def test_small_answers_are_sent_as_they_are(server: ServerProcess, api: Api, connect: Connect) -> None:
    path = api.octets(b"tiny")
    answer = connect(server).request("GET", path, b"", "Accept-Encoding: gzip, zstd").answer()
    assert answer.body == b"tiny"
    assert "content-encoding" not in answer.headers


def test_events_are_never_encoded(server: ServerProcess, api: Api, connect: Connect) -> None:
    path, wire = api.octets(b"x" * 5000, kind="text/plain"), connect(server)
    status, headers = wire.request("GET", f"{path}?live=sse&offset=-1", b"", "Accept-Encoding: gzip").head()
    assert status == 200
    assert "content-encoding" not in headers
    event = wire.event()
    assert event is not None and event.data == "x" * 5000


def test_many_encoded_reads_at_once_all_arrive(server: ServerProcess, api: Api, connect: Connect) -> None:
    data = os.urandom(100) * 5000
    path = api.octets(data)
    wires = [connect(server) for _ in range(40)]
    for wire in wires:
        wire.request("GET", path, b"", "Accept-Encoding: zstd")
    assert all(unpack("zstd", wire.answer().body) == data for wire in wires)
