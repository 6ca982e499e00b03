"""Headrace: durable event streams over HTTP. ``import headrace as hr``, then ``hr.Client(url)``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client import (
        AggregateResult,
        ApiError,
        AppendResult,
        AsyncClient,
        AsyncDelivery,
        AsyncProducer,
        AsyncStream,
        BadAnswer,
        Batch,
        Bucket,
        Client,
        ClientError,
        CreateResult,
        Delivery,
        Group,
        Hit,
        Misfit,
        OutcomeUnknown,
        Plan,
        Producer,
        ProducerClosed,
        ProducerInUse,
        Revision,
        SearchResult,
        Stream,
        StreamInfo,
        Unreachable,
        Verification,
        Verified,
    )

__all__ = [
    "AggregateResult",
    "ApiError",
    "AppendResult",
    "AsyncClient",
    "AsyncDelivery",
    "AsyncProducer",
    "AsyncStream",
    "BadAnswer",
    "Batch",
    "Bucket",
    "Client",
    "ClientError",
    "CreateResult",
    "Delivery",
    "Group",
    "Hit",
    "Misfit",
    "OutcomeUnknown",
    "Plan",
    "Producer",
    "ProducerClosed",
    "ProducerInUse",
    "Revision",
    "SearchResult",
    "Stream",
    "StreamInfo",
    "Unreachable",
    "Verification",
    "Verified",
]


def __getattr__(name: str) -> Any:
    """Load the client with its first use, so that server and command line start without it."""
    if name not in __all__:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module("headrace.client"), name)
