"""``/v1/tables/{table}/history``: rows of feature tables as they were, for many keys and moments."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace import decoding
from headrace.engine.assembly import Engine
from headrace.engine.features.past_reader import PastRows
from headrace.engine.features.registry import EVENTS
from headrace.engine.features.training_sets import HistoryAnswer
from headrace.errors import BatchTooLarge
from headrace.reduce.features.replay import Question
from headrace.server.http.parameters import refuse_unknown_parameters
from headrace.server.http.starlette_json import json_response, read_json, require_json
from headrace.storage.background_requests import HistoryRow
from headrace.types import parse_timestamp_us, rfc3339

HISTORY = "/v1/tables/{table}/history"
MOST_ROWS = 10_000


class HistoryKeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A key at a moment."""

    at: str
    key: Any = ""


class HistoryBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which rows, and which of their features."""

    rows: list[HistoryKeyBody]
    features: list[str] | None = None


def routes(engine: Engine) -> list[Route]:
    """Every route of this file."""
    api = FeatureTableRoutes(engine)
    return [
        Route(HISTORY, api.ask, methods=["POST"]),
        Route(HISTORY + "/{id}", api.find, methods=["GET"]),
    ]


class FeatureTableRoutes:
    """One method per verb: reads the request, asks the engine, writes the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def ask(self, request: Request) -> Response:
        """POST: the rows where few events are to be folded, else where they will be found."""
        table = self._admitted(request)
        require_json(request)
        body = await read_json(request, HistoryBody, limit=self._engine.config.limits.body_bytes)
        if len(body.rows) > MOST_ROWS:
            raise BatchTooLarge(f"a question is about {MOST_ROWS} rows at most", limit=MOST_ROWS)
        moments = await self._engine.computing.run(0, _moments, body)
        past = await self._engine.training.request(table, moments, body.features)
        if isinstance(past, HistoryRow):
            where = request.url.path + f"/{past.id}"
            return json_response({"history": self._row_document(past)}, status=202, headers={"location": where})
        document = {"results": past.rows, **_history_extent(past)}
        return await self._engine.computing.run(0, json_response, document, headers=_coverage(past.complete))

    async def find(self, request: Request) -> Response:
        """GET: the status of a history request, with its rows once they are computed."""
        row = self._engine.training.find(self._admitted(request), request.path_params["id"])
        if row.answer is None:
            return json_response(self._row_document(row))
        answer = decoding.decode(row.answer, HistoryAnswer)
        return json_response({**self._row_document(row), "results": answer.rows}, headers=_coverage(answer.complete))

    def _row_document(self, row: HistoryRow) -> dict[str, Any]:
        total = len(decoding.decode(row.question, Question).asked)
        ended = None if row.ended_us is None else rfc3339(row.ended_us)
        document = {
            "id": row.id,
            "table": row.table,
            "state": row.state,
            "begun": rfc3339(row.begun_us),
            "ended": ended,
            "rows": total if row.answer is not None else 0,
            "total": total,
            "reason": row.reason,
        }
        if row.answer is not None:
            answer = decoding.decode(row.answer, HistoryAnswer)
            stream = self._engine.log.find(self._engine.feature_reader.defined(row.table).stream)
            document |= {"complete": answer.complete, "since": stream.offset_at(answer.since)}
        return document

    def _admitted(self, request: Request) -> str:
        """The table; the caller must be allowed to read the events that it is computed from."""
        table: str = request.path_params["table"]
        refuse_unknown_parameters(request.query_params)
        current = self._engine.features.current
        current.table(table)
        request.state.principal.require("read", EVENTS + current.root_of(table))
        return table


def _moments(body: HistoryBody) -> list[tuple[Any, int]]:
    return [(row.key, parse_timestamp_us(row.at, f"rows[{index}].at")) for index, row in enumerate(body.rows)]


def _history_extent(past: PastRows) -> dict[str, Any]:
    """From where on the rows know everything."""
    reaches = None if past.reaches_us is None else rfc3339(past.reaches_us)
    return {"complete": past.complete, "since": past.since, "events_from": reaches}


def _coverage(complete: bool) -> dict[str, str]:
    return {"headrace-coverage": "complete" if complete else "partial"}
