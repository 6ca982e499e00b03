"""The SDK: blocking and awaiting clients of a Headrace server, and producers that never append twice."""

from __future__ import annotations

from headrace.client.aio import AsyncClient, AsyncStream
from headrace.client.answers import AppendResult, Batch, CreateResult, StreamInfo
from headrace.client.client import Client, Stream
from headrace.client.errors import (
    ApiError,
    BadAnswer,
    ClientError,
    OutcomeUnknown,
    ProducerClosed,
    ProducerInUse,
    Unreachable,
)
from headrace.client.ledger import AsyncDelivery, Delivery
from headrace.client.producer import AsyncProducer, Producer
from headrace.client.schemas import Misfit, Plan, Revision, Verification, Verified
from headrace.client.searching import AggregateResult, Bucket, Group, Hit, SearchResult

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
