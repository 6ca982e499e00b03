"""What can fail on the caller's side of the wire, and how an answer becomes an error again.

::

    HeadraceError
     ├─ …                  every class of headrace.errors, rebuilt from its wire code
     └─ ClientError
         ├─ ApiError       the server answered with a code this version does not know
         ├─ Unreachable    no whole answer came: refused, cut or timed out
         ├─ BadAnswer      an answer came that the protocol does not allow
         ├─ OutcomeUnknown a producer cannot know whether its batch was appended
         ├─ ProducerInUse  another producer appends with the same id and epoch
         └─ ProducerClosed the producer takes no more events
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace import errors
from headrace.errors import HeadraceError

_KNOWN: tuple[type[HeadraceError], ...] = (
    errors.BadRequest,
    errors.Unauthorized,
    errors.Forbidden,
    errors.ProducerFenced,
    errors.NotFound,
    errors.MethodNotAllowed,
    errors.Conflict,
    errors.StreamClosed,
    errors.ProducerGap,
    errors.ManagedStream,
    errors.RegistryFull,
    errors.NotRepresentable,
    errors.LensUnsound,
    errors.Gone,
    errors.OffsetFenced,
    errors.OffsetGone,
    errors.PreconditionFailed,
    errors.TooLarge,
    errors.UriTooLong,
    errors.UnsupportedMedia,
    errors.HeadersTooLarge,
    errors.TimedOut,
    errors.AppendTimedOut,
    errors.Overloaded,
    errors.Unavailable,
    errors.StoreUnavailable,
    errors.Fenced,
    errors.CorruptData,
    errors.ObjectMissing,
)
BY_CODE = {kind.code: kind for kind in _KNOWN}
# The plainest class of each status speaks for answers that carry no code.
_BY_STATUS = {kind.status: kind for kind in reversed(_KNOWN) if kind.status != 500}
_NUMBERS = {"producer_epoch", "expected_seq", "received_seq", "retry_after"}


class ClientError(HeadraceError):
    """Something failed on this side of the wire."""

    code = "client_error"


class ApiError(ClientError):
    """The server answered with a code this version does not know; ``code`` and ``status`` are the answer's."""

    def __init__(self, status: int, code: str, message: str, facts: Mapping[str, Any]) -> None:
        super().__init__(message, **facts)
        # The tree declares both on the class; here each answer has its own.
        self.__dict__.update(status=status, code=code)

    def __reduce__(self) -> tuple[Any, ...]:
        return ApiError, (self.status, self.code, self.message, self.facts)


class Unreachable(ClientError):
    """No whole answer came; ``sent`` is False where the request cannot have reached the server."""

    code = "unreachable"

    @property
    def sent(self) -> bool:
        """Whether the server may have seen the request."""
        return bool(self.facts.get("sent", True))


class BadAnswer(ClientError):
    """An answer came that the protocol does not allow."""

    code = "bad_answer"


class OutcomeUnknown(ClientError):
    """The batch may have been appended, and sending it again could append it twice."""

    code = "outcome_unknown"


class ProducerInUse(ClientError):
    """The server holds events under this producer id and epoch that this producer did not send."""

    code = "producer_in_use"


class ProducerClosed(ClientError):
    """The producer takes no more events."""

    code = "producer_closed"


def from_answer(status: int, headers: Mapping[str, str], body: bytes) -> HeadraceError:
    """The error that an answer stands for, with the facts of its body and headers."""
    code, message, facts = _read_body(body)
    kind = BY_CODE.get(code) or (_from_headers(status, headers) if not code else None)
    if kind is None:
        return ApiError(status, code or "unknown", message or f"the server answered {status}", facts)
    for fact, header in kind.header_facts.items():
        if fact not in facts and header in headers:
            facts[fact] = _fact(fact, headers[header])
    return kind(message or f"the server answered {status}", **facts)


def _read_body(body: bytes) -> tuple[str, str, dict[str, Any]]:
    try:
        document = msgspec.json.decode(body)
        facts = dict(document["error"])
        return str(facts.pop("code", "")), str(facts.pop("message", "")), facts
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError, ValueError):
        # Other servers of the protocol answer in plain text.
        return "", body[:200].decode("utf-8", "replace").strip(), {}


def _from_headers(status: int, headers: Mapping[str, str]) -> type[HeadraceError] | None:
    if status == 403 and "producer-epoch" in headers:
        return errors.ProducerFenced
    if status == 409 and "producer-expected-seq" in headers:
        return errors.ProducerGap
    if status == 409 and headers.get("stream-closed", "").lower() == "true":
        return errors.StreamClosed
    return _BY_STATUS.get(status)


def _fact(name: str, text: str) -> int | str:
    return int(text) if name in _NUMBERS and text.isascii() and text.isdigit() else text
