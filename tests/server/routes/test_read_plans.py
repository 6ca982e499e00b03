"""Plans over HTTP: what they say, whom they refuse, and that their rows are what reads give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.format import offset as offsets
from headrace.format.decoded_columns import LruCache
from headrace.format.segment.reader import SegmentReader
from headrace.server.routes import read_plans
from headrace.storage.keys import KeyStore
from headrace.storage.objects import Objects

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api


def plan(api: Api, path: str, headers: dict[str, str] | None = None, **query: Any) -> Any:
    answer = api.get(f"{path}/_plan", headers, **query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def rows(api: Api, path: str, **query: Any) -> list[dict[str, Any]]:
    answer = api.get(f"{path}/_plan/rows", **query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == read_plans.ARROW
    found: list[dict[str, Any]] = pa.ipc.open_stream(answer.content).read_all().to_pylist()
    return found


def refused(api: Api, path: str, **query: Any) -> tuple[int, str, str]:
    answer = api.get(path, **query)
    error = answer.json()["error"]
    return answer.status_code, error["code"], error.get("field", "")


def test_a_plan_says_where_everything_is(api: Api) -> None:
    path = api.stream(1, 2)
    assert api.post(f"{path}/_seal").status_code == 200
    api.post(path, [3])
    tail = api.offset(path)
    answer = plan(api, path)
    assert (answer["first_seq"], answer["end_seq"], answer["to"]) == (0, 3, tail)
    assert answer["registry"] is answer["schema_version"] is answer["next"] is answer["lease"] is None
    sealed, unsealed = answer["ranges"]
    assert (sealed["first_seq"], sealed["count"], unsealed["first_seq"], unsealed["count"]) == (0, 2, 2, 1)
    assert unsealed["object"] is None
    stored = sealed["object"]
    data = Objects.open(answer["store"]).get(stored["key"])
    assert len(data) == stored["bytes"] == sealed["bytes"]
    reader = SegmentReader(data, name="segment", decoded=LruCache(0), sha256=stored["sha256"])
    [batch] = reader.batches(0, 2)
    assert batch.to_pylist() == rows(api, path, **{"to": sealed["to"]})
    [row] = rows(api, path, **{"from": unsealed["from"], "to": unsealed["to"]})
    assert (row["seq"], row["payload"]) == (2, "3")
    epoch, first = answer["epochs"][-1]
    assert first == 0
    assert offsets.encode(epoch, 3) == tail


def test_a_plan_is_of_what_is_asked_for(api: Api) -> None:
    path = api.stream()
    ends = [api.post(path, [n], {"stream-timestamp": f"2026-01-0{n}T00:00:00Z"}) for n in range(1, 5)]
    offset = [end.headers["stream-next-offset"] for end in ends]

    def span(**query: str) -> tuple[int, int]:
        answer = plan(api, path, **query)
        assert sum(each["count"] for each in answer["ranges"]) == answer["end_seq"] - answer["first_seq"]
        return answer["first_seq"], answer["end_seq"]

    assert span() == span(**{"from": "-1", "to": "now"}) == (0, 4)
    assert span(**{"from": offset[0], "to": offset[2]}) == (1, 3)
    assert span(since="2026-01-02T00:00:00Z", until="2026-01-04T00:00:00Z") == (1, 3)
    assert span(**{"from": "now"}) == (4, 4)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "x"}, "from"),
        ({"to": "x"}, "to"),
        ({"from": "now", "to": "-1"}, "to"),
        ({"from": "-1", "since": "2026-01-01T00:00:00Z"}, "since"),
        ({"since": "yesterday"}, "since"),
        ({"schema_version": "1"}, "schema_version"),
        ({"lease": "soon"}, "lease"),
        ({"lease": "2h"}, "lease"),
        ({"lease": "10ms"}, "lease"),
        ({"other": "1"}, "other"),
    ],
)
def test_what_is_wrong_is_named(api: Api, query: dict[str, str], field: str) -> None:
    path = api.stream(1)
    assert refused(api, f"{path}/_plan", **query) == (400, "bad_request", field)


def test_streams_that_are_not_there_and_offsets_of_others_are_refused(api: Api) -> None:
    path, other = api.stream(1), api.stream(1)
    assert refused(api, f"{api.name()}/_plan") == (404, "not_found", "")
    assert refused(api, f"{path}/_plan", **{"from": api.offset(other)})[:2] == (410, "offset_fenced")
    assert refused(api, f"{path}/_plan/rows", **{"to": api.offset(other)})[:2] == (410, "offset_fenced")


def test_a_plan_of_many_ranges_goes_on(api: Api) -> None:
    path = api.stream()
    for number in range(3):
        api.post(path, [number])
    whole = plan(api, path)
    rest = plan(api, path, **{"from": whole["ranges"][-1]["to"], "to": whole["to"]})
    assert rest["ranges"] == []
    assert (rest["first_seq"], rest["end_seq"]) == (3, 3)


def test_a_schema_comes_with_the_plan(api: Api) -> None:
    path = api.stream()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    assert api.post(f"{path}/_schema", {"schema": schema}).status_code == 200
    api.post(path, [{"a": 1}])
    answer = plan(api, path, schema_version="1")
    assert answer["schema_version"] == 1
    assert answer["registry"]["schemas"] == {"1": schema}
    assert refused(api, f"{path}/_plan", schema_version="2") == (400, "bad_request", "schema_version")


def test_leases_are_renewed_and_released(api: Api) -> None:
    path = api.stream(1)
    lease = plan(api, path, lease="10s")["lease"]
    assert 0 < lease["ttl_ms"] <= 10_000
    renewed = api.call("POST", f"/v1/read-leases/{lease['id']}/renew", lease="30m").json()
    assert renewed["id"] == lease["id"]
    assert 1_700_000 < renewed["ttl_ms"] <= 1_800_000
    assert api.delete(f"/v1/read-leases/{lease['id']}").status_code == 204
    again = api.delete(f"/v1/read-leases/{lease['id']}")
    assert (again.status_code, again.json()["error"]["code"]) == (410, "read_lease_ended")
    wrong = api.call("POST", f"/v1/read-leases/{lease['id']}/renew", lease="1d").json()["error"]
    assert (wrong["code"], wrong["field"]) == ("bad_request", "lease")


def test_a_key_plans_only_what_it_may_read(server: ServerProcess, api: Api, eventually: Any) -> None:
    api.put("/v1/stream/team/x", headers={"content-type": "application/json"})
    other = api.stream(1)
    store = KeyStore(server.data_dir / "keys.db")
    team, admin = (
        {"authorization": f"Bearer {store.create(user_id='ann', scopes=scopes, prefix=prefix)[1]}"}
        for scopes, prefix in ((["read"], "team/"), (["read", "admin"], ""))
    )
    store.close()
    eventually(lambda: api.get("/v1/streams", team).status_code == 200)
    for resource in ("_plan", "_plan/rows"):
        assert api.get(f"/v1/stream/team/x/{resource}", team).status_code == 200
        assert api.get(f"{other}/{resource}", team).status_code == 403
        assert api.get(f"{other}/{resource}", admin).status_code == 200
        assert api.get(f"/v1/stream/entities/none/{resource}", admin).status_code == 404
        assert api.get(f"/v1/stream/entities/none/{resource}", team).status_code == 403
    lease = plan(api, "/v1/stream/team/x", team, lease="1m")["lease"]
    assert api.call("DELETE", f"/v1/read-leases/{lease['id']}").status_code == 410
    assert api.call("DELETE", f"/v1/read-leases/{lease['id']}", headers=team).status_code == 204
