"""SIGKILL while entities are erased: each erasure goes on, and at the end nothing holds their data."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pyarrow.parquet as pq
import pytest

from support.polling import wait_until

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

ROUNDS, ENTITIES, PATIENCE_S = 5, 7, 60.0
MARKER = "xyzzy-canary"
TYPE = {
    "entity_type": "person", "schema_version": "1.0.0", "activate": True, "reducer_config": {"merge_policies": {}},
    "schema_definition": {
        "fields": {"email": {"type": "string"}, "note": {"type": "string"}}, "canonical_name_fields": ["email"]
    },
}  # fmt: skip
SETTINGS = {
    "storage__seal_rows": "10",
    "storage__seal_age_s": "0.2",
    "pipeline__min_rows": "5",
    "pipeline__lease_s": "1",
    "features__fold_rows": "20",
}


def holding(directory: Path) -> list[str]:
    """The files below a directory that hold the marker."""
    found: list[str] = []
    for path in sorted(directory.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        if path.suffix == ".parquet":
            data += repr(pq.read_table(path).to_pylist()).encode()
        if MARKER.encode() in data:
            found.append(str(path.relative_to(directory)))
    return found


def stored(http: httpx2.Client, round: int) -> dict[str, str]:
    """Entities of two kinds, in many small requests; answers their ids by their names."""
    found: dict[str, str] = {}
    for number in range(ENTITIES):
        for name, note in ((f"gone{number}", f"{MARKER} {round}"), (f"kept{number}", f"plain {round}")):
            body = {"entities": [{"entity_type": "person", "email": f"{name}@x.org", "note": note}]}
            answer = http.post("/v1/observations", json=body)
            assert answer.status_code == 200, answer.text
            found[name] = answer.json()["entities"][0]["entity_id"]
    return found


def observations(http: httpx2.Client) -> list[Any]:
    """Every entry of the stream of the type."""
    found: list[Any] = []
    offset = "-1"
    while True:
        answer = http.get("/v1/stream/entities/person", params={"offset": offset})
        found += answer.json()
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return found


def shown(http: httpx2.Client, ids: dict[str, str]) -> dict[str, Any]:
    return {name: http.get(f"/v1/entities/{id}").json().get("snapshot") for name, id in ids.items()}


def are_complete(http: httpx2.Client, erasures: list[str]) -> bool:
    return all(http.get(f"/v1/erasures/{id}").json()["complete"] for id in erasures)


def test_erasures_go_on_after_the_server_was_killed(start_server: StartServer) -> None:
    server, chance, erasures = start_server(**SETTINGS), random.Random(11), list[str]()

    def http() -> httpx2.Client:
        return httpx2.Client(base_url=server.url, timeout=20, trust_env=False)

    with http() as client:
        assert client.post("/v1/entity-types", json=TYPE).status_code == 200
        ids = stored(client, 0)
        ids = stored(client, 1)
    for number in range(ROUNDS):
        with http() as client:
            answer = client.post(f"/v1/entities/{ids[f'gone{number}']}/erase", json={})
            assert answer.status_code == 202, answer.text
            erasures.append(answer.json()["erasure_id"])
            time.sleep(chance.uniform(0, 1.5))
        server.kill()
        server.start()
        with http() as client:
            begun = {ids[f"gone{one}"] for one in range(number + 1)}
            assert not begun & {one["entity_id"] for one in observations(client)}  # before anything else is done
    with http() as client:
        wait_until(lambda: are_complete(client, erasures), PATIENCE_S)
        told = shown(client, ids)
        gone = [name for name, snapshot in told.items() if snapshot is None]
        assert sorted(gone) == sorted(f"gone{number}" for number in range(ROUNDS))
        assert all(told[f"kept{number}"]["note"] == "plain 1" for number in range(ENTITIES))
        assert holding(server.data_dir)  # of those that were not erased
        rest = [ids[f"gone{number}"] for number in range(ROUNDS, ENTITIES)]
        begun = [client.post(f"/v1/entities/{id}/erase", json={}).json()["erasure_id"] for id in rest]
        wait_until(lambda: are_complete(client, begun), PATIENCE_S)
        assert holding(server.data_dir) == []
        bodies = observations(client)
        assert len(bodies) == 4 * ENTITIES and sum(one["kind"] == "erased" for one in bodies) == 2 * ENTITIES
    assert server.stop() == 0
    assert holding(server.data_dir) == []
