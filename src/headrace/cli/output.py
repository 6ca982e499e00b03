"""Output of commands: tables for people, JSON for programs, errors on stderr, and exit codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter

from headrace.errors import HeadraceError, NotFound

if TYPE_CHECKING:
    from rich.console import Console

_LATER = "Try again in a moment."
OK, FAILED, USAGE, TIMED_OUT, UNREACHABLE, PARTIAL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

AsJson = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.")]
DryRun = Annotated[bool, Parameter(negative=(), help="Change nothing; say what would change.")]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), help="Do not ask.")]

#: What to do next, by the code of an error; where a code has many meanings, by its message.
_NEXT_STEPS = {
    "unreachable": "Start a server with `headrace up`, or name another with --url or HEADRACE_URL.",
    "unauthorized": "Pass a key with --key or HEADRACE_KEY; `headrace key create` makes one.",
    "forbidden": "Use a key whose scopes and prefix allow this; `headrace key ls` shows them.",
    "there is no such stream": "`headrace stream ls` lists what there is; `headrace stream create NAME` makes one.",
    "touch not enabled": "Give the stream the profile state-protocol with touch: `headrace profile set --help`.",
    "search is not configured for this stream; see _schema": "Declare what can be asked: "
    "`headrace schema apply NAME --search FILE`.",
    "RESOURCE_NOT_FOUND": "`headrace entity ls TYPE` lists what there is.",
    "unknown_entity_type": "`headrace entity-type ls` lists what there is; `entity-type register FILE` makes one.",
    "version_taken": "Raise schema_version in the file, or let `headrace entity-type update` count on.",
    "key_shape_mismatch": "Give a word for each key field: `headrace table get TABLE KEY…`.",
    "unknown_table": "`headrace table ls` lists what there is; `headrace register FILE` makes tables.",
    "stream_closed": "A closed stream stays closed; `headrace stream fork OLD NEW` makes an open copy.",
    "offset_gone": "Read from the earliest offset that is left: --offset -1.",
    "offset_fenced": "Take an offset that this stream has given, or start over with --offset -1.",
    "precondition_failed": "Someone else appended first; read on, then try again with the new offset.",
    "request_timeout": "Try again in a moment, or raise server.resolver_timeout_s on the server.",
    "append_timeout": "Look at `headrace stream info NAME` before sending it again.",
    "outcome_unknown": "Look at the end of the stream before sending it again.",
    "overloaded": _LATER,
    "payload_too_large": "Send smaller events, or raise limits.body_bytes on the server.",
    "invalid_config": "`headrace config show` lists every setting.",
    "store_unavailable": "Look at storage.object_store, and at the credentials in the environment.",
}
#: Columns whose values are typed again in other commands, and so are not broken up to this width.
_IDS = ("name", "stream", "entity_id", "entity_type", "id", "offset")
_ID_WIDTH = 60
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_MOMENT = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.\d+Z$")
#: Facts that name what is not there.
_SUBJECTS = ("stream", "table", "entity_type", "entity_id", "event")
_EXIT_CODES = {"unreachable": UNREACHABLE, "invalid_config": USAGE, "usage": USAGE}


Row = TypeVar("Row", bound=Mapping[str, Any])


class UsageError(HeadraceError):
    """The arguments of a command are wrong."""

    code = "usage"
    status = 400


def print_error(error: Exception, *, as_json: bool) -> int:
    """Print an error and the next step to stderr; returns the exit code."""
    failure = error if isinstance(error, HeadraceError) else _to_headrace_error(error)
    hint = _hint(failure)
    if as_json:
        body = failure.body()
        body["error"] |= {"hint": hint} if hint else {}
        print(encode(body), file=sys.stderr)
    else:
        notes: list[str] = getattr(failure, "__notes__", [])
        print(f"headrace: {_message(failure)}", *notes, *([hint] if hint else []), sep="\n", file=sys.stderr)
    return _EXIT_CODES.get(failure.code, FAILED)


def _hint(error: HeadraceError) -> str:
    # Where there is a reason, waiting does not help or the message says so.
    later = _LATER if "retry_after" in error.facts and "reason" not in error.facts else ""
    return _NEXT_STEPS.get(error.message) or _NEXT_STEPS.get(error.code, later)


def _message(error: HeadraceError) -> str:
    """The message of an error, with its subject if the message lacks it."""
    subject = next((str(error.facts[name]) for name in _SUBJECTS if name in error.facts), "")
    is_missing = error.status == NotFound.status and subject not in error.message
    return f"{error.message}: {subject}" if is_missing else error.message


def _to_headrace_error(error: Exception) -> HeadraceError:
    if isinstance(error, ImportError) and error.name and not error.name.startswith("headrace"):
        return HeadraceError(f"{error.name} is not installed; run: pip install 'headrace[server]'")
    return UsageError(str(error)) if isinstance(error, ValueError) else HeadraceError(str(error))


def encode(value: Any) -> str:
    """Compact JSON text on one line."""
    return on_one_line(msgspec.json.encode(value)).decode()


def on_one_line(document: bytes) -> bytes:
    """JSON without line breaks, which can only stand between its tokens."""
    return document.translate(_LINE_BREAKS) if b"\n" in document or b"\r" in document else document


def examples(*lines: str) -> str:
    """The end of a help text: commands that can be copied."""
    return "\n".join(("**Examples**", "", "```", *lines, "```"))


def format_default(value: Any) -> str | None:
    """How help shows a default; None where the default means no choice."""
    return None if value in (None, False, "") else str(value)


def wants_table(as_json: bool) -> bool:
    """Whether to print tables for people: on a terminal, without --json."""
    return not as_json and sys.stdout.isatty()


def show(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one object: a line per member for people, JSON otherwise."""
    if not wants_table(as_json):
        print(encode(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<{width}}  {cell(value)}")


def show_all(
    rows: Iterable[Row], columns: Sequence[str], *, as_json: bool, format_row: Callable[[Row], Mapping[str, Any]] = dict
) -> None:
    """Print many objects: a table of formatted rows for people, one JSON object per line otherwise."""
    if not wants_table(as_json):
        for row in rows:
            print(encode(row))
        return
    from rich.table import Table
    from rich.text import Text

    # As text: what stands in brackets would be taken for markup.
    cells = [[Text(_short(cell(row.get(column)))) for column in columns] for row in map(format_row, rows)]
    if not cells:
        console().print(Text("There is nothing yet.", "dim"))
        return
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        widest = max(row[number].cell_len for row in cells)
        table.add_column(
            column.replace("_", " "), overflow="fold", min_width=min(widest, _ID_WIDTH) if column in _IDS else None
        )
    for line in cells:
        table.add_row(*line)
    console().print(table)


def _short(text: str) -> str:
    """A moment to the second, in UTC; anything else as it is."""
    return _MOMENT.sub(r"\1 \2", text)


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout, and flush."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation; without a terminal --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is here to answer: pass --yes to do it.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise HeadraceError("Nothing was changed.")


@contextmanager
def running_count(what: str) -> Iterator[Any]:
    """A running count on a terminal's stderr; yields ``advance(number)``."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        yield lambda number: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} " + what), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda number: progress.advance(task, number)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr; yields ``report(done, total)``, whose total may grow."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def console(*, stderr: bool = False) -> Console:
    """The terminal, in colour where it has some and NO_COLOR is not set."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def cell(value: Any) -> str:
    """A value as text in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
