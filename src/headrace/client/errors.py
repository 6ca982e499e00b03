"""Errors of the client, and errors of the server rebuilt from its answers.

::

    HeadraceError
     ├─ …                  every class of headrace.errors, rebuilt from its wire code
     └─ ClientError
         ├─ ApiError       the server answered with a code this version does not know
         │   └─ RegistrationRefused      the registry of features stays as it is
         │       ├─ RegistrationInvalid  the descriptors are wrong; ``errors`` has every reason
         │       └─ RegistrationConflict the registry does not allow it; ``diff`` shows what would change
         ├─ HistoryFailed  rows of the past were asked for, and not found
         ├─ PushRefused    some events of many were refused, the others are stored
         ├─ RowsRefused    some rows of a frame were refused, the others are appended
         ├─ Unreachable    no whole answer came: refused, cut or timed out
         ├─ BadAnswer      an answer came that the protocol does not allow
         ├─ OutcomeUnknown a producer cannot know whether its batch was appended
         ├─ ProducerInUse  another producer appends with the same id and epoch
         └─ ProducerClosed the producer takes no more events
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace import decoding, errors
from headrace.client.diffs import Diff, Problem
from headrace.client.error_text import ADVICE, describe, list_lines
from headrace.errors import HeadraceError

#: Every error that a server may answer with, in the order of the tree: of several with one code the first is meant.
_SERVER_ERRORS: tuple[type[HeadraceError], ...] = tuple(
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HeadraceError) and kind not in (HeadraceError, errors.RequestError)
)
BY_CODE = {kind.code: kind for kind in reversed(_SERVER_ERRORS)}
# The plainest class of each status speaks for answers that carry no code.
_BY_STATUS = {kind.status: kind for kind in reversed(_SERVER_ERRORS) if kind.status != 500}
# The answer to a HEAD has no words, and only streams are asked so.
_WORDLESS = {404: "there is no such stream"}
#: How the server begins the refusal of an event, and where a registration has a descriptor.
_EVENT, _DESCRIPTOR = re.compile(r"^event \d+ does"), re.compile(r"^descriptors\[(\d+)\]")
_NUMBERS = {"producer_epoch", "expected_seq", "received_seq", "retry_after"}


class ClientError(HeadraceError):
    """Something failed on this side of the wire."""

    code = "client_error"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        explain(self)


class ApiError(ClientError):
    """The server answered with a code this version does not know; ``code`` and ``status`` are the answer's."""

    def __init__(self, status: int, code: str, message: str, facts: Mapping[str, Any]) -> None:
        super().__init__(message, **facts)
        # The tree declares both on the class; here each answer has its own.
        self.__dict__.update(status=status, code=code)
        explain(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.code, self.message, self.facts), {"args": self.args}


class RegistrationRefused(ApiError):
    """The registry of features stays as it is; ``diff`` is what would have changed."""

    @property
    def diff(self) -> Diff:
        """What the registration would change."""
        return decoding.convert(self.facts["envelope"], Diff)

    @property
    def errors(self) -> list[Problem]:
        """Every reason, with the path of what is wrong."""
        return decoding.convert(self.facts.get("errors", []), list[Problem])

    def __str__(self) -> str:
        names = self.facts.get("names", ())
        reasons = [_DESCRIPTOR.sub(lambda path: _descriptor_name(path, names), str(problem)) for problem in self.errors]
        advice = {ADVICE[problem.code]: None for problem in self.errors if problem.code in ADVICE}
        is_repeated = any(problem.message == self.message for problem in self.errors)
        first = "the registration is refused, and changes nothing"
        return "\n".join([first if is_repeated else f"{first}: {self.message}", *list_lines(reasons), *advice])


class RegistrationInvalid(RegistrationRefused):
    """The descriptors are wrong, whatever the registry holds."""


class RegistrationConflict(RegistrationRefused, errors.RegistrationConflict):
    """The registry does not allow it: state would be lost, or names and versions are another's."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.diff}" if self.diff else super().__str__()


class HistoryFailed(ClientError):
    """A history query failed."""

    code = "history_failed"


class PushRefused(ClientError):
    """Some events of many were refused, and the others are stored; ``refusals`` says which."""

    code = "push_refused"

    @property
    def refusals(self) -> dict[int, HeadraceError]:
        """Why, by the index of the event among those that were pushed."""
        results: list[dict[str, Any]] = self.facts["results"]
        return {
            index: _from_error(400, {}, _renumber(outcome["error"], index))
            for index, outcome in enumerate(results)
            if "error" in outcome
        }

    def __str__(self) -> str:
        reasons = [
            f"rows[{index}]: {refusal.message.removeprefix(f'event {index + 1} does not fit: ')} ({refusal.code})"
            for index, refusal in self.refusals.items()
        ]
        event = f"{self.facts['event']}: " if "event" in self.facts else ""
        advice = "Push the refused events again when they are mended; `refusals` has each by its index."
        return "\n".join([f"{event}{self.message}", *list_lines(reasons), advice])


class RowRefusal(NamedTuple):
    """Why a row of a frame was refused: its position, counted from 0, and the field, "" for the row as a whole."""

    row: int
    field: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}{f', field {self.field!r}' if self.field else ''}: {self.reason}"


class RowsRefused(ClientError):
    """Some rows of a frame were refused, and the others are appended; ``facts`` has the counts."""

    code = "rows_refused"

    @property
    def refusals(self) -> list[RowRefusal]:
        """Every reason, in the order of the rows."""
        refusals: list[RowRefusal] = self.facts["refusals"]
        return refusals


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


def explain(error: HeadraceError, target: str = "") -> None:
    """Let the text of an error say what its facts say, and what to do; ``target`` is that of the request."""
    code = "connection_lost" if isinstance(error, Unreachable) and error.sent else error.code
    error.args = (describe(error.message, code, error.facts, target),)


def _renumber(refusal: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The refusal of an event by its index among all events, where the server counts those of one request."""
    failures = [{**failure, "index": index} for failure in refusal.get("failures", ())]
    message = _EVENT.sub(f"event {index + 1} does", str(refusal.get("message", "")))
    return {**refusal, "message": message, **({"failures": failures} if failures else {})}


def _descriptor_name(path: re.Match[str], names: Sequence[str]) -> str:
    return names[int(path[1])] if int(path[1]) < len(names) else path[0]


def from_answer(status: int, headers: Mapping[str, str], body: bytes) -> HeadraceError:
    """The error that an answer stands for, with the facts of its body and headers."""
    document = _document(body)
    if "registry_version" in document and "added" in document:
        return _from_envelope(status, document)
    if "results" in document:
        return PushRefused("no event was taken", results=document["results"])
    if "error" in document:
        return _from_error(status, headers, document["error"])
    # Other servers of the protocol answer in plain text.
    return _from_error(status, headers, {"message": body[:200].decode("utf-8", "replace").strip()})


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return document if isinstance(document.get("error", {}), dict) else {}


def _from_error(status: int, headers: Mapping[str, str], error: Mapping[str, Any]) -> HeadraceError:
    facts = dict(error)
    code, message = str(facts.pop("code", "")), str(facts.pop("message", ""))
    kind = BY_CODE.get(code) or (_from_headers(status, headers) if not code else None)
    if kind is None:
        return ApiError(status, code or "unknown", message or f"the server answered {status}", facts)
    for fact, header in kind.header_facts.items():
        if fact not in facts and header in headers:
            facts[fact] = _fact(fact, headers[header])
    rebuilt = kind(message or _WORDLESS.get(status, f"the server answered {status}"), **facts)
    explain(rebuilt)
    return rebuilt


def _from_envelope(status: int, document: Mapping[str, Any]) -> RegistrationRefused:
    """A registration that was refused: the error stands beside what would have changed."""
    envelope = dict(document)
    facts = dict(envelope.pop("error", {}))
    code, message = str(facts.pop("code", "unknown")), str(facts.pop("message", ""))
    kind = RegistrationConflict if status == 409 else RegistrationInvalid
    return kind(status, code, message or f"the server answered {status}", {**facts, "envelope": envelope})


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
