"""Failures that nobody expected: the log and the answer name them by the same request id."""

from __future__ import annotations

import logging

from headrace.errors import HeadraceError
from headrace.storage.damage import Damage

log = logging.getLogger("headrace.server")


def unexpected_failure(damage: Damage, reason: Exception, request_id: str) -> HeadraceError:
    """Log a failure with its traceback, and give the error that tells the caller where to look for it."""
    log.error("request %s failed", request_id, exc_info=reason)
    error = damage.note(reason) or HeadraceError("the server failed; its log has the details under this request_id")
    error.facts["request_id"] = request_id
    return error
