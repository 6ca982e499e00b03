"""Requests that take a while: answered from a task of their own, so that the others need not wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from headrace.errors import HeadraceError
from headrace.server.exchange import Exchange, Reply

log = logging.getLogger("headrace.server")


class Aside:
    """Holds the tasks of one resource."""

    def __init__(self) -> None:
        self._working: set[asyncio.Task[None]] = set()

    def begin(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Go on with a request; what the work raises is the answer."""
        task = asyncio.get_running_loop().create_task(_answered(exchange, work))
        self._working.add(task)
        task.add_done_callback(self._working.discard)


async def _answered(exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except HeadraceError as refusal:
        exchange.reply(Reply.failure(refusal))
    except Exception:
        log.exception("a request failed")
        exchange.reply(Reply.failure(HeadraceError("the server failed; the log has the details")))
