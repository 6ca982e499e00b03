"""A small pipeline for tests of the feature registry, in as many copies as there are tests."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

    from server.conftest import Api

Payload = dict[str, Any]
_numbers = itertools.count(1)


class Pipeline:
    """Descriptors of an app of its own: an event, a derivation and two tables, with names that nobody else has."""

    def __init__(self, api: Api) -> None:
        number = next(_numbers)
        self.api = api
        self.app = f"app{number}"
        self.event, self.derived = f"Txn{number}", f"Large{number}"
        self.table, self.over_derived = f"Users{number}", f"LargeUsers{number}"
        self.descriptors: dict[str, Payload] = {
            self.event: {
                "kind": "event",
                "name": self.event,
                "schema": {
                    "user": "str",
                    "amount": "f64",
                    "n": "i64",
                    "note": {"type": "str", "required": False},
                    "id": {"type": "str", "required": False},
                },
                "keep_events_for": "30d",
                "cold_after": "1h",
                "dedupe_key": "id",
            },
            self.derived: {
                "kind": "derivation",
                "name": self.derived,
                "upstreams": [self.event],
                "output_kind": "event",
                "ops": [{"op": "filter", "expr": "(amount > 1.0)"}],
            },
            self.table: {
                "kind": "table",
                "name": self.table,
                "key": ["user"],
                "upstreams": [self.event],
                "agg": {
                    "count": {"op": "count", "params": {}},
                    "total": {"op": "sum", "params": {"field": "amount", "window": "1h"}},
                    "whole": {"op": "sum", "params": {"field": "n"}},
                },
            },
            self.over_derived: {
                "kind": "table",
                "name": self.over_derived,
                "key": ["user"],
                "upstreams": [self.derived],
                "agg": {"large": {"op": "count", "params": {}}},
            },
        }

    def changed(self) -> dict[str, Payload]:
        """The descriptors, for a test to change."""
        return copy.deepcopy(self.descriptors)

    def register(self, descriptors: dict[str, Payload] | None = None, **terms: Any) -> httpx2.Response:
        """Register these descriptors, or those that it began with."""
        given = list((self.descriptors if descriptors is None else descriptors).values())
        return self.api.post("/v1/register", {"descriptors": given, "app": self.app, **terms})

    def push(self, *events: Payload) -> list[Payload]:
        """Push events, all of which are taken."""
        answer = self.api.post(f"/v1/push/{self.event}", list(events))
        assert answer.status_code == 200, answer.text
        results: list[Payload] = answer.json()["results"]
        assert all(result.get("ack") for result in results), results
        return results

    def row(self, table: str, key: Any = "u") -> Payload | None:
        """The row of a key; None where there is no such table."""
        answer = self.api.post("/v1/get", {"table": table, "key": key})
        if answer.status_code == 404:
            return None
        assert answer.status_code == 200, answer.text
        row: Payload = answer.json()
        return row

    def version(self) -> int:
        """The version of the registry."""
        return int(self.api.get("/v1/registry").json()["registry_version"])

    def registered(self) -> dict[str, Payload]:
        """The descriptors of the app as the registry has them, by name."""
        answer = self.api.get("/v1/registry", app=self.app)
        return {one["name"]: one for one in answer.json()["descriptors"]}
