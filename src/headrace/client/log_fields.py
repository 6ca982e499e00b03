"""What log events are made of: errors, moments, the span that is open, and any value as JSON."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.types import rfc3339

_DEEPEST = 16
_LONGEST_STACK = 16_000
_ENCODER = msgspec.json.Encoder(enc_hook=str)
#: Whole numbers that every JSON reader takes as they are.
_SAFE = 2**53


def encoded(event: Mapping[str, Any]) -> bytes:
    """An event as JSON; what JSON has no form for becomes text."""
    try:
        return _ENCODER.encode(event)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return _ENCODER.encode(_plain(event, _DEEPEST))


def moment(seconds: float) -> str:
    """A moment in seconds since 1970 as the protocol writes it."""
    return rfc3339(int(seconds * 1_000_000))


def error(exception: BaseException) -> dict[str, str]:
    """An error as events tell it; its message is searched."""
    stack = "".join(traceback.format_exception(exception))
    return {"type": type(exception).__qualname__, "message": str(exception), "stack": stack[-_LONGEST_STACK:]}


def error_of(exc_info: Any) -> dict[str, str] | None:
    """The error that ``exc_info`` stands for: an error, what ``sys.exc_info`` gives, or a flag to look there."""
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1] if len(exc_info) == 3 else None
    elif exc_info and not isinstance(exc_info, BaseException):
        exc_info = sys.exc_info()[1]
    return error(exc_info) if isinstance(exc_info, BaseException) else None


def trace_ids() -> dict[str, str]:
    """The trace and the span that OpenTelemetry has open here; nothing where it is not loaded."""
    get_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    context = None if get_span is None else get_span().get_span_context()
    if context is None or not context.is_valid:
        return {}
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < _SAFE else str(value)
    if depth and isinstance(value, Mapping):
        return {_plain(str(name), 0): _plain(member, depth - 1) for name, member in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(member, depth - 1) for member in value]
    return _plain("..." if isinstance(value, Mapping | list | tuple) else str(value), 0)
