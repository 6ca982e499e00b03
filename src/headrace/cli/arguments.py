"""Parsing and formatting of command-line arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter, Token

from headrace.cli.output import UsageError
from headrace.errors import BadRequest

if TYPE_CHECKING:
    from headrace.client import Client

_RETRY_FOR_S = 30.0


@Parameter(name="*")
@dataclass(frozen=True)
class Remote:
    """The URL and the key of a server."""

    url: Annotated[str, Parameter(env_var="HEADRACE_URL", help="The server.")] = "http://127.0.0.1:4437"
    key: Annotated[str | None, Parameter(env_var="HEADRACE_KEY", help="An API key.")] = None
    ca_file: Annotated[str | None, Parameter(help="Certificates to trust, in PEM.")] = None

    def __post_init__(self) -> None:
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise UsageError("The key (--key, or HEADRACE_KEY) is none: keys are plain ASCII, such as hr_…")

    def connect(self, *, retries: bool = False) -> Client:
        """A client that fails at once, or one that retries for a while."""
        from headrace.client import Client

        retry_for = _RETRY_FOR_S if retries else 0.0
        return Client(self.url, self.key or None, retry_for=retry_for, ca_file=self.ca_file)


LOCAL = Remote()


def positive_integer(kind: Any, tokens: Sequence[Token]) -> int:
    """A number from 1 on; cyclopts itself would round fractions and take negative numbers."""
    text = tokens[0].value
    if not (text.isascii() and text.isdigit()) or not int(text):
        raise ValueError(f"{text} is not a whole number from 1 on")
    return int(text)


def moment(text: str) -> datetime | str:
    """A date, or a date and time, in UTC by default; other text is left to the server."""
    if text.isdigit():
        return text
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return text
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def format_moment(text: str | None) -> str | None:
    """A moment as the API expects it; None stays None."""
    if text is None:
        return None
    parsed = moment(text)
    return parsed if isinstance(parsed, str) else parsed.isoformat()


@contextmanager
def mark_query_faults(query: str, *, as_json: bool) -> Iterator[None]:
    """Mark every fault of a refused query in its error message."""
    try:
        yield
    except BadRequest as refusal:
        marks = _marks(refusal)
        if as_json or not marks:
            raise
        line = "".join("^" if at in marks else " " for at in range(max(marks) + 1))
        # A query may have several lines, and then the marks would stand anywhere.
        shown = "".join(" " if letter.isspace() else letter for letter in query)
        raise BadRequest(f"{refusal.message}\n  {shown}\n  {line}", **refusal.facts) from refusal


def _marks(refusal: BadRequest) -> set[int]:
    faults = refusal.facts.get("problems") or [refusal.facts]
    return {fault["position"] for fault in faults if "position" in fault}


def document(file: Path) -> Any:
    """The JSON value that a file holds."""
    try:
        return msgspec.json.decode(content(file))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise UsageError(f"{file} is not JSON: {reason}") from reason


def rows(file: Path) -> Iterator[Any]:
    """The JSON values of a file: the items of its array, else one on each line that is not blank."""
    text = content(file)
    if text.lstrip()[:1] == b"[":
        yield from document(file)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
                raise UsageError(f"line {number} of {file} is not JSON: {reason}") from reason


def content(file: Path) -> bytes:
    """The bytes of a file."""
    try:
        return file.read_bytes()
    except OSError as reason:
        raise UsageError(f"{file} cannot be read: {reason.strerror}") from reason
