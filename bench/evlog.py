"""What the profile evlog costs: request logs in arrays, each made an envelope, routed and redacted."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bench.driver import DriverFailed, Sample, Times, append
from bench.events import request_log
from bench.requests import stream_path
from bench.searching.rows import Promise, Value
from bench.serving import Running

LEFT_OUT = {
    "prisma": "it is measured tuned",
    "reference": "it has no profiles",
    "redis": "it has no profiles",
}
ROW = "evlog events in arrays of 100, 64 connections"
FREE = "the same events, no profile"
CONNECTIONS, ARRAY = 64, 100
LEAST = 2.0
PEER = "prisma-tuned"


def evlog_appends(server: Running, times: Times) -> list[Sample]:
    """A hundred events per request, with the profile and without."""
    samples = []
    for row, stream in ((ROW, "evlog"), (FREE, "free")):
        server.create(stream)
        if row == ROW:
            server.ask("POST", f"{stream_path(stream)}/_profile", json.dumps({"profile": {"kind": "evlog"}}).encode())
        settings = {"connections": CONNECTIONS, "batch": ARRAY, "event": "request"}
        samples.append(append(server, stream, row, times, **settings))
    _check_stored(server, "evlog")
    return samples


def _check_stored(server: Running, stream: str) -> None:
    """The first page must hold envelopes, and no secret."""
    for event in json.loads(server.ask("GET", f"{stream_path(stream)}?offset=-1")):
        sent = json.loads(request_log(int(event["context"]["id"])))
        envelope = {name: sent[name] for name in ("timestamp", "requestId", "traceId", "status", "duration")}
        kept = {name: event[name] for name in envelope}
        redacted = event["context"].get("headers", {}).get("authorization", "[REDACTED]")
        if kept != envelope or event["context"]["cart"] != sent["cart"] or redacted != "[REDACTED]":
            raise DriverFailed(f"{stream} holds another envelope than was sent: {event}")


def promises(value: Value) -> Iterator[Promise]:
    """What a run can judge: at least twice as many as the peer takes with the same profile."""
    ours, theirs = value(ROW, "headrace"), value(ROW, PEER)
    if ours and theirs:
        text = f"{ROW}, against Prisma tuned (at least {LEAST:g} times as good)"
        yield Promise(text, ours / theirs, ours >= LEAST * theirs)
