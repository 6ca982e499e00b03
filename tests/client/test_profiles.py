"""Profiles through both clients, against a real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from tests.conftest import ServerProcess


def test_a_stream_gets_a_profile_with_its_schema(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    assert stream.profile() == {"kind": "generic"}
    plan = stream.plan_profile("evlog", {"redactKeys": ["PIN"]})
    assert (plan.from_version, plan.to_version, plan.refusals) == (0, 1, [])
    assert stream.profile() == {"kind": "generic"}
    assert stream.set_profile("evlog", {"redactKeys": ["PIN"]}) == {"kind": "evlog", "redactKeys": ["pin"]}
    assert stream.profile() == {"kind": "evlog", "redactKeys": ["pin"]}
    assert "requests" in stream.schema()["search"]["rollups"]


def test_a_profile_that_cannot_be_is_refused(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    stream.append({"n": 1})
    plan = stream.plan_profile("evlog")
    assert [refusal["pointer"] for refusal in plan.refusals] == ["/profile/kind"]
    with pytest.raises(HeadraceError, match="before appending data"):
        stream.set_profile("evlog")
    with pytest.raises(HeadraceError, match="kind"):
        stream.set_profile("diary")


def test_the_awaiting_client_does_the_same(server: ServerProcess, name: str) -> None:
    async def main() -> None:
        async with hr.AsyncClient(server.url) as client:
            stream = client.stream(name)
            await stream.create()
            plan = await stream.plan_profile("metrics")
            assert plan.to_version == 1
            assert await stream.set_profile("metrics") == {"kind": "metrics"}
            assert await stream.profile() == {"kind": "metrics"}

    asyncio.run(main())
