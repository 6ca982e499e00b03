"""``headrace import``: rows of files become events, with a schema that is inferred over all of them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from headrace.cli import output
from headrace.cli.arguments import LOCAL, Remote
from headrace.cli.output import AsJson, UsageError, Yes
from headrace.errors import HeadraceError, NotFound
from headrace.types import JSON, media_type

if TYPE_CHECKING:
    from headrace.client import Client, Stream
    from headrace.client.importer.proposal import Proposal
    from headrace.client.importer.reader import RowReader
    from headrace.client.row_batches import BadRow
    from headrace.client.stream_copy import RejectedEvent

#: Bad rows that are shown; --rejects has all of them.
_SHOWN = 5
_SHOWN_CHARACTERS = 80


def import_files(
    *files: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Files, directories, URLs of objects, or - for stdin.")
    ],
    stream: Annotated[str, Parameter(help="The stream; it is created if there is none.")],
    format: Annotated[
        Literal["csv", "tsv", "jsonl", "json", "parquet"] | None, Parameter(help="Default: by the file's name.")
    ] = None,
    timestamp: Annotated[str | None, Parameter(help="The field with an event's time; default: the likeliest.")] = None,
    open_schema: Annotated[bool, Parameter(name="--open", negative=(), help="Allow fields that no row has.")] = False,
    rejects: Annotated[Path | None, Parameter(help="Write rows that cannot be imported to this file.")] = None,
    dry_run: output.DryRun = False,
    yes: Yes = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Import rows of files as events of a stream."""
    from headrace.client.importer import importer, proposal

    if not files:
        raise UsageError("Name a file, or - for stdin.")
    with ExitStack() as stack:
        reader = stack.enter_context(open_rows(files, format))
        client = stack.enter_context(remote.connect())
        target = client.stream(stream)
        report = stack.enter_context(Rejects(rejects))
        proposed = None
        if _needs_schema(client, target):
            with output.running_count("rows read") as advance:
                facts = importer.scan(reader, advance, report.preview)
            if not facts.count:
                raise HeadraceError("There is no row that could be imported.")
            proposed = proposal.propose(facts, timestamp=timestamp, is_open=open_schema)
            if dry_run or output.wants_table(json):
                show_proposal(stream, proposed, report.previewed, as_json=not output.wants_table(json))
        if dry_run:
            if proposed is None:
                print(
                    f"{stream} exists: its schema is kept, and rows that do not fit it are rejected.", file=sys.stderr
                )
            return output.OK
        if proposed is not None:
            output.confirm(f"Create {stream} with this schema and import {proposed.rows:,} rows?", yes=yes)
            target.create()
            target.evolve(proposed.schema, search=proposed.search)
        with output.progress_bar("importing") as show_progress:
            imported = 0

            def advance_by(count: int) -> None:
                nonlocal imported
                imported += count
                show_progress(imported, max(imported, proposed.rows if proposed is not None else imported))

            summary = importer.Importer(client, stream, reader).run(advance_by, report.add)
        output.show({"stream": stream, **msgspec.structs.asdict(summary)}, as_json=json)
        return output.PARTIAL if summary.rejected else output.OK


def _needs_schema(client: Client, stream: Stream) -> bool:
    """Whether the stream is new, or has neither a schema nor events."""
    try:
        content_type = stream.info().content_type
    except NotFound:
        return True
    if media_type(content_type) != JSON:
        raise UsageError(f"{stream.name} holds {content_type}; rows are imported into JSON streams")
    details = stream.details()
    return not details["schema"]["currentVersion"] and details["stream"]["next_offset"] == "0"


@contextmanager
def open_rows(files: tuple[str, ...], file_format: Any, text_columns: Collection[str] = ()) -> Iterator[RowReader]:
    """The rows of files, and of copies of what is read from elsewhere; cells of ``text_columns`` are text."""
    from headrace.cli.import_sources import collect_files
    from headrace.client.importer.reader import RowReader

    with tempfile.TemporaryDirectory(prefix="headrace-import-") as directory:
        names = collect_files(files, file_format, Path(directory))
        reader = RowReader(list(names), file_format, names, text_columns)
        try:
            yield reader
        finally:
            reader.close()


class Rejects:
    """Reports rows or events that are not stored: the first on stderr, all in a file."""

    def __init__(self, path: Path | None, noun: str = "rows") -> None:
        self._path, self._noun = path, noun
        self._file: Any = None
        self._count = 0
        self.previewed = 0

    def __enter__(self) -> Rejects:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._count > _SHOWN:
            print(f"headrace: {self._count - _SHOWN:,} more {self._noun} were not stored", file=sys.stderr)
        if self._count:
            hint = f"They are in {self._path}." if self._path else "Pass --rejects FILE to keep them."
            print(hint, file=sys.stderr)

    def preview(self, _: BadRow) -> None:
        """Count a row that will not be imported."""
        self.previewed += 1

    def add(self, row: BadRow | RejectedEvent) -> None:
        """Report a row or an event that was not stored."""
        self._count += 1
        if self._path is not None:
            if self._file is None:
                self._file = self._path.open("wb")
            self._file.write(msgspec.json.encode(row._asdict()) + b"\n")
        if self._count <= _SHOWN:
            text = row.text if len(row.text) <= _SHOWN_CHARACTERS else row.text[:_SHOWN_CHARACTERS] + "…"
            print(f"headrace: {row.where}: {row.reason}: {text}", file=sys.stderr)


def show_proposal(stream: str, proposed: Proposal, bad_rows: int = 0, *, as_json: bool) -> None:
    """Print what a stream of these rows would be: a table on a terminal, the document with ``as_json``."""
    if as_json:
        print(output.encode({"stream": stream, "bad_rows": bad_rows, **msgspec.structs.asdict(proposed)}))
        return
    print(f"{stream}: {proposed.rows:,} rows" + (f", {bad_rows:,} that cannot be imported" if bad_rows else ""))
    rows = [
        {
            "field": field.pointer,
            "type": " or ".join(field.types),
            "search": field.search,
            "without_value": field.missing,
        }
        for field in proposed.fields
    ]
    output.show_all(rows, ("field", "type", "search", "without_value"), as_json=False)
    search = proposed.search or {}
    if "rollups" in search:
        rollup = search["rollups"]["overview"]
        print(f"event time   {search['primaryTimestampField']}")
        print(
            f"rollup       overview: {', '.join(rollup['measures'])} by {', '.join(rollup['dimensions']) or 'nothing'}"
        )
    for note in proposed.notes:
        print(f"note: {note}")
