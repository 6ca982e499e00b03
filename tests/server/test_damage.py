"""What a server answers once it has met a damaged page of its database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from .conftest import Api


def _flip(path: Path, text: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.rindex(text)] ^= 1
    path.write_bytes(content)


def test_a_damaged_page_is_answered_with_an_error_that_names_the_database(
    start_server: Callable[..., Any], api_of: Callable[[Any], Api], eventually: Callable[..., None]
) -> None:
    server = start_server(storage__seal_age_s="1")
    api = api_of(server)
    damaged, whole = api.octets(Random(1).randbytes(20_000) + b"what was written"), api.octets(b"untouched")
    server.stop()
    _flip(server.data_dir / "headrace.db", b"what was written")
    server.start()
    api = api_of(server)
    answer = api.get(damaged, offset="-1")
    error = answer.json()["error"]
    assert answer.status_code == 500
    assert error["code"] == "corrupt_data"
    assert error["check"] == "database"
    assert error["object"] == str(server.data_dir / "headrace.db")
    assert api.get(whole, offset="-1").content == b"untouched"
    ready = api.get("/health/ready")
    assert ready.status_code == 503
    assert "does not match its checksum" in ready.json()["error"]["database"]
    assert api.get("/health/live").status_code == 200
    eventually(lambda: api.metric("headrace_failed_seals_total"))
    assert not [path for path in (server.data_dir / "objects").rglob("*.parquet") if b"vhat" in path.read_bytes()]


def test_a_route_that_meets_a_damaged_page_names_the_database(
    start_server: Callable[..., Any], api_of: Callable[[Any], Api]
) -> None:
    server = start_server()
    entities = [
        {"entity_type": "person", "email": f"{n}@example.org", "canonical_name": f"nobody{n}"} for n in range(200)
    ]
    assert api_of(server).post("/v1/observations", {"entities": entities}).status_code == 200
    server.stop()
    path = server.data_dir / "headrace.db"
    path.write_bytes(path.read_bytes().replace(b"nobody1", b"nobody2"))
    server.start()
    answer = api_of(server).get("/v1/entities", entity_type="person", limit="200")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "corrupt_data"
