"""Subscriptions in a test: one that workers pull, where it is served, and how a worker proves that it holds a wake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.engine.subscriptions.subscription import Definition
from headrace.engine.subscriptions.subscriptions import Claim, Proof

BASE = "http://here.example/v1/stream/__ds"
PULL = Definition(type="pull-wake", pattern="events/*", wake_stream="wake/pool", lease_ttl_ms=5_000)

#: The fixture ``world``.
Opened = Callable[..., Any]


def proof_of(claim: Claim) -> Proof:
    """What a worker shows who claimed a wake."""
    return Proof(claim.token, claim.wake_id, claim.generation)
