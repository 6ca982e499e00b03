"""``headrace search``: events that match, as a table for people and one hit per line for programs."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from headrace.cli import output
from headrace.cli.arguments import LOCAL, Remote, mark_query_faults
from headrace.cli.output import AsJson, UsageError
from headrace.types import rfc3339

if TYPE_CHECKING:
    from rich.text import Text

    from headrace.client import Hit, SearchResult, Stream
    from headrace.client.search import SearchOptions

#: The longest page that a server gives.
_PAGE = 500
#: Fields that are shown where none are chosen, alone and beside snippets.
_SHOWN, _BESIDE = 4, 2
_OFFSET_WIDTH, _TIME_WIDTH = 26, 20
#: The first millisecond of the year 10000, which has no plain date.
_FAR_MS = 253_402_300_800_000
_EM = re.compile(r"</?em>")

Query = Annotated[str, Parameter(allow_leading_hyphen=True, help="What to look for, such as 'status:>=500 timeout'.")]


def search(
    stream: Annotated[str, Parameter(help="The stream.")],
    query: Query,
    /,
    *,
    sort: Annotated[list[str] | None, Parameter(negative=(), help="field[:asc|desc]; may be repeated.")] = None,
    size: Annotated[int, Parameter(help="So many hits at most.")] = 50,
    after: Annotated[str | None, Parameter(help="Go on after this hit: its sort, as JSON.")] = None,
    all_hits: Annotated[bool, Parameter(name="--all", negative=(), help="Every hit, page after page.")] = False,
    snippets: Annotated[bool, Parameter(negative=(), help="Show where the texts of a hit match.")] = False,
    total: Annotated[bool, Parameter(negative=(), help="Count all hits.")] = False,
    timeout_ms: Annotated[int | None, Parameter(help="Answer by then, with what was found so far.")] = None,
    field: Annotated[list[str] | None, Parameter(negative=(), help="A field to show; may be repeated.")] = None,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Find events by a query, the newest first or the best first; fresh events are always among them."""
    options: SearchOptions = {
        "sort": sort or [],
        "search_after": _parse_after(after),
        "snippets": snippets,
        "track_total_hits": total,
    }
    if timeout_ms is not None:
        options["timeout_ms"] = timeout_ms
    with remote.connect() as client, mark_query_faults(query, as_json=json):
        source = client.stream(stream)
        pages = _pages(source, query, options, None if all_hits else size)
        if output.wants_table(json):
            return _show(pages, _Columns(source, field), total)
        return _print(pages, total)


def _parse_after(text: str | None) -> list[Any] | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=list[Any])
    except msgspec.DecodeError as reason:
        raise UsageError(f"--after takes the sort of a hit, a JSON array: {reason}") from reason


def _pages(stream: Stream, query: str, options: SearchOptions, limit: int | None) -> Iterator[SearchResult]:
    """Pages of at most ``limit`` hits."""
    left = limit
    sized: SearchOptions = {**options, "size": _PAGE if left is None else min(left, _PAGE)}
    for page in stream.search_pages(query, **sized):
        hits = page.hits[:left]
        yield msgspec.structs.replace(page, hits=hits)
        if left is not None:
            left -= len(hits)
            if left <= 0:
                return


def _print(pages: Iterator[SearchResult], total: bool) -> int:
    """Print hits for programs, one per line."""
    code, counted = output.OK, None
    for page in pages:
        for hit in page.hits:
            print(output.encode(hit))
        code, counted = code or _exit_code(page), counted or page.total
    if total:
        print(output.encode({"total": counted}))
    return code


def _show(pages: Iterator[SearchResult], columns: _Columns, total: bool) -> int:
    """Print hits for people, and the option for the next page."""
    code, shown, first = output.OK, 0, None
    for page in pages:
        if page.hits:
            columns.show(page.hits)
        shown, first, last = shown + len(page.hits), first or page, page
        code = code or _exit_code(page)
    assert first is not None, "there is always a first page"
    count = f"{shown:,} of {first.total.value:,} hits" if total else f"{shown:,} hit{'' if shown == 1 else 's'}"
    console = output.console()
    console.print(f"{count}, {first.took_ms:,} ms", style="dim")
    if last.next_search_after is not None and last.hits:
        console.print(f"more: --after '{output.encode(last.hits[-1].sort)}'", style="dim", markup=False, soft_wrap=True)
    return code


def _exit_code(page: SearchResult) -> int:
    """The exit code of a page; prints a warning if it is partial."""
    if page.complete:
        return output.OK
    events = page.coverage["possible_missing_events_upper_bound"]
    why = f"not looked at within {page.timeout_ms} ms" if page.timed_out else "not readable"
    print(f"headrace: The answer is not complete: up to {events:,} events were {why}.", file=sys.stderr)
    return output.PARTIAL


class _Columns:
    """The columns of a table of hits, and their cells."""

    def __init__(self, stream: Stream, chosen: list[str] | None) -> None:
        search = stream.schema().get("search") or {}
        self._time: str = search.get("primaryTimestampField", "")
        self._kinds = {name: declared["kind"] for name, declared in search.get("fields", {}).items()}
        self._chosen = chosen

    def show(self, hits: Sequence[Hit]) -> None:
        """Print a table."""
        from rich.table import Table

        scored, snippets = any(hit.score for hit in hits), any(hit.snippets for hit in hits)
        fields = self._default_fields(hits, beside_snippets=snippets) if self._chosen is None else self._chosen
        table = Table(box=None, pad_edge=False)
        table.add_column("offset", min_width=_OFFSET_WIDTH)
        if scored:
            table.add_column("score", justify="right", no_wrap=True)
        table.add_column("time", min_width=_TIME_WIDTH, no_wrap=True)
        for name in fields:
            table.add_column(_plain(name), no_wrap=True, overflow="ellipsis")
        if snippets:
            table.add_column("snippet")
        for hit in hits:
            score = ["" if hit.score is None else f"{hit.score:.3f}"] if scored else []
            cells = (self._moment(hit), *(output.cell(hit.fields.get(name)) for name in fields))
            table.add_row(hit.offset, *score, *map(_plain, cells), *([_highlight(hit)] if snippets else []))
        output.console().print(table)

    def _default_fields(self, hits: Sequence[Hit], *, beside_snippets: bool) -> list[str]:
        """The first fields of the hits, with one text unless snippets show it."""
        there = {name for hit in hits for name in hit.fields} - {self._time}
        texts = [name for name, kind in self._kinds.items() if kind == "text" and name in there]
        others = [name for name, kind in self._kinds.items() if kind != "text" and name in there]
        if beside_snippets:
            return others[:_BESIDE]
        return [*others[: _SHOWN - len(texts[:1])], *texts[:1]]

    def _moment(self, hit: Hit) -> str:
        """The time as the event has it; a number of milliseconds as a moment."""
        value = hit.fields.get(self._time)
        if not isinstance(value, int) or not 0 <= value < _FAR_MS:
            return output.cell(value)
        return re.sub("000Z$", "Z", rfc3339(value * 1000))


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(text)


def _highlight(hit: Hit) -> Text:
    """The snippets of a hit, with matches in bold."""
    from rich.text import Text

    marked = Text()
    for name, snippet in hit.snippets.items():
        marked.append(f"{name}: ", style="dim").append_text(_bold(snippet)).append("\n")
    marked.rstrip()
    return marked


def _bold(snippet: str) -> Text:
    from rich.text import Text

    # Marks come in pairs, and those of the event itself are escaped.
    pieces = map(html.unescape, _EM.split(snippet))
    return Text.assemble(*((piece, "bold" if at % 2 else "") for at, piece in enumerate(pieces)))
