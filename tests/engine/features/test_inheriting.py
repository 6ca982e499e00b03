"""A tail that goes on under another definition: no feature loses the events that come meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.feature_rig import ORDERS, SPENT, Pipelines, op, table


def described(hours: int) -> list[dict[str, Any]]:
    """Two tables over one source, of which one has a feature that starts afresh with every other window."""
    fresh = {**SPENT, "fresh": op("count", window=f"{hours}h")}
    return [ORDERS, table("Users", "Order", ["user"], SPENT), table("All", "Order", [], fresh)]


def test_events_that_come_while_a_tail_is_handed_on_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}) as pipelines:
        pipelines.register(*described(1))
        for _ in range(4):
            pipelines.push("Order", {"user": "a", "amount": 1.0})
        pipelines.seal("Order")
        pipelines.work()
        assert pipelines.get("Users", "a")["n"] == pipelines.get("All", [])["n"] == 4
        builder, gate = pipelines.engine.feature_reader.builder, asyncio.Event()
        hold_files = builder.hold_files

        async def slowly(*given: Any) -> Any:
            await gate.wait()
            return await hold_files(*given)

        monkeypatch.setattr(builder, "hold_files", slowly)
        pipelines.register(*described(2), force=True)
        assert pipelines.get("All", []) == {"n": 4, "total": 4.0, "fresh": 0}
        pipelines.push("Order", {"user": "a", "amount": 1.0}, {"user": "a", "amount": 1.0})
        assert pipelines.get("Users", "a")["n"] == 6

        async def opened() -> None:
            gate.set()
            await asyncio.gather(*pipelines.engine.feature_reader._building.values())

        pipelines.run(opened())
        assert pipelines.get("All", []) == {"n": 6, "total": 6.0, "fresh": 2}
