"""``headrace aggregate``: what a rollup measures over time, as a chart and a table, or a group per line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from headrace.cli import output
from headrace.cli.arguments import LOCAL, Remote, mark_query_faults, moment
from headrace.cli.output import AsJson, UsageError
from headrace.types import parse_duration_us

if TYPE_CHECKING:
    from headrace.client import AggregateResult, Bucket, Group, Stream

#: The most panes of an interval that was chosen automatically.
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
        length = interval or _choose_interval(source, rollup, start, end)
        answer = source.aggregate(
            rollup, start, end, length, q=where, group_by=by or [], measures=_with_charted(measure, chart)
        )
    if output.wants_table(json):
        show_buckets(answer, measure or [], chart)
    else:
        output.show_all(_lines(answer), (), as_json=True)
    return _exit_code(answer)


def _span(since: str | None, until: str | None, last: str | None) -> tuple[datetime | str, datetime | str]:
    now = datetime.now(UTC)
    if last is not None:
        if since or until:
            raise UsageError("--last goes without --from and --to.")
        return now - timedelta(microseconds=parse_duration_us(last, "--last")), now
    if since is None:
        raise UsageError("Say from when on: --from MOMENT, or --last 24h.")
    return moment(since), now if until is None else moment(until)


def _choose_interval(stream: Stream, rollup: str, start: datetime | str, end: datetime | str) -> str:
    """The shortest interval that makes few panes, else the longest."""
    declared: list[str] = (stream.schema().get("search") or {}).get("rollups", {}).get(rollup, {}).get("intervals", [])
    lengths = sorted(declared, key=lambda text: parse_duration_us(text, "interval"))
    if not lengths or not isinstance(start, datetime) or not isinstance(end, datetime):
        return lengths[0] if lengths else ""
    micros = (end - start) // timedelta(microseconds=1)
    fitting = (text for text in lengths if micros <= _PANES * parse_duration_us(text, "interval"))
    return next(fitting, lengths[-1])


def _with_charted(measures: Names, chart: str) -> list[str]:
    """The measures to request: those to show, and the one to draw."""
    drawn = chart.partition(".")[0]
    return [*measures, *([drawn] if drawn and drawn not in measures else [])] if measures else []


def _lines(answer: AggregateResult) -> Iterator[dict[str, Any]]:
    for bucket in answer.buckets:
        for group in bucket.groups:
            yield {"start": bucket.start, "end": bucket.end, "key": group.key, "measures": group.measures}


def _exit_code(answer: AggregateResult) -> int:
    """The exit code; prints a warning if the answer is partial."""
    if answer.complete:
        return output.OK
    events = answer.coverage["possible_missing_events_upper_bound"]
    print(f"headrace: The answer is not complete: up to {events:,} events were not looked at.", file=sys.stderr)
    return output.PARTIAL


Number = int | float
#: One number for each step of time; None where there is none.
Series = Sequence[Number | None]
#: What several steps become that share a column.
Fold = Callable[[list[Number]], Number]

_BLOCKS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = 8


def draw_bars(series: Series, *, width: int, height: int, fold: Fold = max) -> list[str]:
    """Lines of a bar chart, the topmost first, with the greatest and the least value at their left."""
    least, greatest = find_bounds([series])
    margin = max(len(number(least)), len(number(greatest)))
    columns = fold_to_width(series, width - margin - 2, fold)
    least, greatest = find_bounds([columns])
    levels = [_level(value, least, greatest, height * _EIGHTHS) for value in columns]
    lines = []
    for row in reversed(range(height)):
        label = number(greatest) if row == height - 1 else number(least) if row == 0 else ""
        cells = (_BLOCKS[min(max(level - row * _EIGHTHS, 0), _EIGHTHS)] for level in levels)
        lines.append(f"{label:>{margin}} ┤{''.join(cells)}")
    return lines


def draw_sparkline(series: Series, *, width: int, scale: tuple[Number, Number], fold: Fold = max) -> str:
    """One line of bars between two bounds."""
    levels = (_level(value, *scale, _EIGHTHS) for value in fold_to_width(series, width, fold))
    return "".join(_BLOCKS[level] for level in levels)


def find_bounds(many: Sequence[Series]) -> tuple[Number, Number]:
    """Zero or the least value, and the greatest."""
    values = [value for series in many for value in series if value is not None]
    return min([0, *values]), max([0, *values])


def fold_to_width(series: Series, width: int, fold: Fold) -> list[Number | None]:
    """At most as many numbers as there are columns, each folded from neighbours."""
    each = -(-len(series) // max(width, 1))
    return list(_fold_series(series, each, fold)) if each > 1 else list(series)


def number(value: Number) -> str:
    """A number with few digits."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _fold_series(series: Series, each: int, fold: Fold) -> Iterator[Number | None]:
    for at in range(0, len(series), each):
        numbers = [value for value in series[at : at + each] if value is not None]
        yield fold(numbers) if numbers else None


def _level(value: Number | None, least: Number, greatest: Number, max_level: int) -> int:
    """The height of a value in eighths of a line; a value that is not zero has at least one."""
    if value is None or greatest == least or not value:
        return 0
    return max(1, round((value - least) / (greatest - least) * max_level))


_HEIGHT = 6
#: Series that are drawn.
_SERIES = 10
#: Of every kind of measure the part that is drawn, and those that stand in the table.
_DRAWN = ("distinct", "avg", "p50", "count")
_PERCENTILES = ("p50", "p95", "p99")
_SHOWN = {"avg": ("avg", "min", "max", "p95"), "p50": ("p50", "p95", "p99"), "distinct": ("distinct",)}


class Part(NamedTuple):
    """One number of a measure, such as the p95 of a latency; a measure with only one has no name for it."""

    measure: str
    name: str
    alone: bool
    #: Whether the true number may be greater: percentiles of histograms are lower ends of buckets.
    is_bound: bool

    def __str__(self) -> str:
        name = self.measure if self.alone else f"{self.measure} {self.name}"
        return f"{name} ≥" if self.is_bound else name

    def of(self, group: Group) -> Any:
        """The number, None where the group has none."""
        return group.measures[self.measure].get(self.name)


def show_buckets(answer: AggregateResult, measures: Sequence[str], drawn: str) -> None:
    """Print a table of the buckets and below it, where a long table leaves it in sight, a chart."""
    console = output.console()
    if not answer.buckets:
        console.print(f"No events from {answer.start} to {answer.end}.")
        return
    part = _choose_part(answer.buckets[0].groups[0], answer.rollup, measures, drawn)
    _table(answer, measures)
    if all(_has_year(bucket) for bucket in answer.buckets):
        console.print()
        for line in _chart(answer, part, console.width):
            console.print(line, markup=False, no_wrap=True, overflow="crop")


def _chart(answer: AggregateResult, part: Part, width: int) -> Iterator[str]:
    series = _series(answer, part)
    fold = sum if part.name == "count" else max
    yield f"{part} by {answer.interval}, {_short(answer.buckets[0].start)} to {_short(answer.buckets[-1].end)}"
    if len(series) == 1:
        yield from draw_bars(next(iter(series.values())), width=width, height=_HEIGHT, fold=fold)
        return
    largest = sorted(series, key=lambda label: -sum(value or 0 for value in series[label]))
    shown = {label: series[label] for label in largest[:_SERIES]}
    margin = max(map(len, shown))
    room = width - margin - 16
    columns = {label: fold_to_width(values, room, fold) for label, values in shown.items()}
    scale = find_bounds(list(columns.values()))
    for label, values in columns.items():
        peak = number(max((value for value in values if value is not None), default=0))
        yield f"{label:<{margin}}  {draw_sparkline(values, width=room, scale=scale)}  {peak}"
    if len(series) > _SERIES:
        yield f"and {len(series) - _SERIES:,} more"


def _series(answer: AggregateResult, part: Part) -> dict[str, list[Any]]:
    """The numbers of each group, one for each pane from the first to the last."""
    first, last = answer.buckets[0], answer.buckets[-1]
    begun, length = _time(first.start), _time(first.end) - _time(first.start)
    count = (_time(last.start) - begun) // length + 1
    series: dict[str, list[Any]] = {}
    for bucket in answer.buckets:
        at = (_time(bucket.start) - begun) // length
        for group in bucket.groups:
            label = ", ".join(map(output.cell, group.key.values()))
            series.setdefault(label, [None] * count)[at] = part.of(group)
    return series


def _choose_part(group: Group, rollup: str, measures: Sequence[str], chart: str) -> Part:
    """The part to draw: that of --chart, else of the measure that the rollup is named after, else of a plain count."""
    measure, _, name = chart.partition(".")
    measure_names = list(group.measures)
    plain = [name for name in measure_names if set(group.measures[name]) == {"count"}]
    usual = [name for name in (rollup, *plain, *measure_names) if name in measure_names]
    measure = measure or (measures[0] if measures else usual[0])
    if measure not in measure_names:
        raise UsageError(f"--chart: there is no measure {measure}; there are {', '.join(measure_names)}.")
    numbers = _numbers(group, measure)
    name = name or next(part for part in _DRAWN if part in numbers)
    if name not in numbers:
        raise UsageError(f"--chart: {measure} has no {name}; it has {', '.join(numbers)}.")
    return _part(group, measure, name)


def _part(group: Group, measure: str, name: str) -> Part:
    is_bound = group.measures[measure].get("histogram") is not None and name in _PERCENTILES
    return Part(measure, name, len(_numbers(group, measure)) == 1, is_bound)


def _numbers(group: Group, measure: str) -> list[str]:
    return [name for name in group.measures[measure] if name != "histogram"]


def _table(answer: AggregateResult, measures: Sequence[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    dimensions = list(answer.buckets[0].groups[0].key)
    parts = _parts(answer.buckets, measures)
    table = Table(box=None, pad_edge=False)
    table.add_column("start", no_wrap=True)
    for name in dimensions:
        table.add_column(Text(name))
    for part in parts:
        table.add_column(Text(str(part)), justify="right")
    for bucket in answer.buckets:
        for group in bucket.groups:
            keys = (Text(output.cell(group.key[name])) for name in dimensions)
            numbers = ("-" if (value := part.of(group)) is None else number(value) for part in parts)
            table.add_row(_short(bucket.start), *keys, *numbers)
    output.console().print(table)


def _parts(buckets: Sequence[Bucket], measures: Sequence[str]) -> list[Part]:
    """The columns of the table: parts with a value in some group."""
    group = buckets[0].groups[0]
    parts = []
    for measure in measures or group.measures:
        numbers = _numbers(group, measure)
        kind = next(part for part in _DRAWN if part in numbers)
        parts += [_part(group, measure, name) for name in _SHOWN.get(kind, (kind,))]
    groups = [group for bucket in buckets for group in bucket.groups]
    return [part for part in parts if any(part.of(group) is not None for group in groups)]


def _short(moment: str) -> str:
    """A moment without trailing zeros."""
    return moment.removesuffix("Z").removesuffix(".000").removesuffix(":00").replace("T", " ")


def _has_year(bucket: Bucket) -> bool:
    """Whether the year is one that Python can represent; rollups have more."""
    return bucket.start[0].isdigit() and bucket.end[0].isdigit() and not bucket.start.startswith("0000")


def _time(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
