"""Clients of feature tables: events are pushed, rows are got, and registrations change beside them."""

from __future__ import annotations

from typing import Any

from bench.soak.load import Client

USERS = 500
_SOURCE, _TABLE, _ROUNDS_TABLE = "Order", "Users", "Rounds"
_EVENT = {"kind": "event", "name": _SOURCE, "schema": {"user": "str", "amount": "f64", "shop": "str"}}


def _op(name: str, **params: Any) -> dict[str, Any]:
    return {"op": name, "params": params}


def _table(name: str, features: dict[str, Any], source: str = _SOURCE) -> dict[str, Any]:
    return {"kind": "table", "name": name, "upstreams": [source], "key": ["user"], "agg": features}


class Pushed:
    """How many events of each user were acknowledged, and how many were sent."""

    def __init__(self, users: int = USERS) -> None:
        self.acknowledged = [0] * users
        self.sent = [0] * users


async def register(client: Client) -> None:
    """Register the table that is always there."""
    features = {"n": _op("count"), "total": _op("sum", field="amount"), "hour": _op("count", window="1h")}
    await client.insist("POST", "/v1/register", {"descriptors": [_EVENT, _table(_TABLE, features)]})


class Push:
    """Pushes arrays of events, or single ones."""

    def __init__(self, pushed: Pushed, size: int, pause_s: float) -> None:
        self._pushed, self._size, self._pause_s = pushed, size, pause_s

    async def __call__(self, client: Client) -> None:
        """Push until the load ends."""
        while client.load.running:
            users = client.load.random.choices(range(USERS), k=self._size)
            events = [{"user": f"u{user}", "amount": 2.0, "shop": f"s{user % 17}"} for user in users]
            for user in users:
                self._pushed.sent[user] += 1
            answer = await client.ask("POST", f"/v1/push/{_SOURCE}", events if self._size > 1 else events[0])
            for user in users:
                if answer.status == 200:
                    self._pushed.acknowledged[user] += 1
                elif answer.status != 408:
                    self._pushed.sent[user] -= 1
            await client.load.pause(self._pause_s)


class Rows:
    """Gets rows, one by one and in batches."""

    def __init__(self, pushed: Pushed, batch: int, pause_s: float) -> None:
        self._pushed, self._batch, self._pause_s = pushed, batch, pause_s

    async def __call__(self, client: Client) -> None:
        """Get until the load ends."""
        while client.load.running:
            await check_rows(client, self._pushed, client.load.random.choices(range(USERS), k=self._batch))
            await client.load.pause(self._pause_s)


async def check_rows(client: Client, pushed: Pushed, users: list[int]) -> bool:
    """Get the rows of some users, and hold them against what was pushed; whether the server had the time."""
    before = [pushed.acknowledged[user] for user in users]
    requests = [{"table": _TABLE, "key": f"u{user}"} for user in users]
    if len(users) == 1:
        answer = await client.ask("POST", "/v1/get", requests[0])
        rows = [answer.json()] if answer.status == 200 else []
    else:
        answer = await client.ask("POST", "/v1/batch_get", {"requests": requests})
        rows = answer.json()["results"] if answer.status == 200 else []
    for user, least, row in zip(users, before, rows, strict=False):
        count = row.get("n", 0)
        right = least <= count <= pushed.sent[user] and (row.get("total") or 0) == count * 2.0
        client.check(right, lambda: f"u{user} has {row}, not between {least} and {pushed.sent[user]}")  # noqa: B023
    return answer.status == 200


class Registrations:
    """Another app, whose table changes again and again; every other table has another feature more."""

    _FEATURES = (
        {"shops": _op("n_unique", field="shop")},
        {"mean": _op("mean", field="amount")},
        {"largest": _op("max", field="amount"), "late": _op("count", window="10m")},
    )

    def __init__(self, pushed: Pushed) -> None:
        self._pushed, self._round = pushed, 0

    async def __call__(self, client: Client) -> None:
        """Register and get until the load ends."""
        while client.load.running:
            await self._register(client)
            await client.load.pause(5)

    async def _register(self, client: Client) -> None:
        self._round += 1
        features = {"n": _op("count"), **self._FEATURES[self._round % len(self._FEATURES)]}
        body = {"app": "rounds", "force": True, "descriptors": [_table(_ROUNDS_TABLE, features)]}
        await client.insist("POST", "/v1/register", body)
        for _ in range(5):
            user = client.load.random.randrange(USERS)
            least = self._pushed.acknowledged[user]
            answer = await client.ask("POST", "/v1/get", {"table": _ROUNDS_TABLE, "key": f"u{user}"})
            if answer.status == 200 and answer.headers.get("headrace-coverage") == "complete":
                count = answer.json().get("n", 0)
                right = least <= count <= self._pushed.sent[user]
                client.check(right, lambda: f"u{user} has {count} and {least} were acknowledged")  # noqa: B023
            await client.load.pause(1)
