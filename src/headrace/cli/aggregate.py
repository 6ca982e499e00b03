"""``headrace aggregate``: what a rollup measures over time, as a chart and a table, or a group per line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headrace.cli import output
from headrace.cli.arguments import mark_query_faults, moment
from headrace.cli.output import AsJson, UsageError
from headrace.cli.remote import LOCAL, Remote
from headrace.types import parse_duration_us

if TYPE_CHECKING:
    from headrace.client import AggregateResult, Stream

#: The most panes of an interval that nobody chose.
_PANES = 120

Names = list[str] | None


def aggregate(
    stream: Annotated[str, Parameter(help="The stream.")],
    rollup: Annotated[str, Parameter(help="One of the rollups that it declares.")],
    /,
    *,
    since: Annotated[str | None, Parameter(name="--from", help="From this moment on.")] = None,
    until: Annotated[str | None, Parameter(name="--to", help="Before this moment; default: now.")] = None,
    last: Annotated[str | None, Parameter(help="In place of both: so long until now, such as 24h.")] = None,
    interval: Annotated[str | None, Parameter(help="One of the rollup's; default: one that fits.")] = None,
    by: Annotated[Names, Parameter(negative=(), help="A dimension to group by; may be repeated.")] = None,
    measure: Annotated[Names, Parameter(negative=(), help="What to show; may be repeated; default: all.")] = None,
    where: Annotated[str, Parameter(allow_leading_hyphen=True, help="Only events that match this query.")] = "",
    chart: Annotated[str, Parameter(help="What to draw: a measure, or a part of one such as latency.p95.")] = "",
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Measure events per pane of time and per group; fresh events always count."""
    start, end = _span(since, until, last)
    with remote.connect() as client, mark_query_faults(where, as_json=json):
        source = client.stream(stream)
        length = interval or _fitting(source, rollup, start, end)
        result = source.aggregate(
            rollup, start, end, length, q=where, group_by=by or [], measures=_with_charted(measure, chart)
        )
    if output.wants_table(json):
        from headrace.cli import buckets

        buckets.show(result, measure or [], chart)
    else:
        output.show_all(_lines(result), (), as_json=True)
    return _exit_code(result)


def _span(since: str | None, until: str | None, last: str | None) -> tuple[datetime | str, datetime | str]:
    now = datetime.now(UTC)
    if last is not None:
        if since or until:
            raise UsageError("--last goes without --from and --to.")
        return now - timedelta(microseconds=parse_duration_us(last, "--last")), now
    if since is None:
        raise UsageError("Say from when on: --from MOMENT, or --last 24h.")
    return moment(since), now if until is None else moment(until)


def _fitting(stream: Stream, rollup: str, start: datetime | str, end: datetime | str) -> str:
    """The shortest interval that makes few panes, else the longest."""
    declared: list[str] = (stream.schema().get("search") or {}).get("rollups", {}).get(rollup, {}).get("intervals", [])
    lengths = sorted(declared, key=lambda text: parse_duration_us(text, "interval"))
    if not lengths or not isinstance(start, datetime) or not isinstance(end, datetime):
        return lengths[0] if lengths else ""
    micros = (end - start) // timedelta(microseconds=1)
    fitting = (text for text in lengths if micros <= _PANES * parse_duration_us(text, "interval"))
    return next(fitting, lengths[-1])


def _with_charted(measures: Names, chart: str) -> list[str]:
    """What is asked for: what is drawn is needed too, where not everything is asked for."""
    drawn = chart.partition(".")[0]
    return [*measures, *([drawn] if drawn and drawn not in measures else [])] if measures else []


def _lines(result: AggregateResult) -> Iterator[dict[str, Any]]:
    for bucket in result.buckets:
        for group in bucket.groups:
            yield {"start": bucket.start, "end": bucket.end, "key": group.key, "measures": group.measures}


def _exit_code(result: AggregateResult) -> int:
    """The exit code; says so where something is missing."""
    if result.complete:
        return output.OK
    events = result.coverage["possible_missing_events_upper_bound"]
    print(f"headrace: The answer is not complete: up to {events:,} events were not looked at.", file=sys.stderr)
    return output.PARTIAL
