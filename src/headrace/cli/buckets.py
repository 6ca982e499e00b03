"""Buckets for people: a chart of one measure over time, then a table of all that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.cli import output
from headrace.cli.output import UsageError

if TYPE_CHECKING:
    from headrace.client import AggregateResult, Bucket, Group


Number = int | float
#: One number for each step of time; None where there is none.
Series = Sequence[Number | None]
#: What several steps become that share a column.
Fold = Callable[[list[Number]], Number]

_BLOCKS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = 8


def bars(series: Series, *, width: int, height: int, fold: Fold = max) -> list[str]:
    """Lines of a bar chart, the topmost first, with the greatest and the least value at their left."""
    least, greatest = bounds([series])
    margin = max(len(number(least)), len(number(greatest)))
    columns = squeezed(series, width - margin - 2, fold)
    least, greatest = bounds([columns])
    levels = [_level(value, least, greatest, height * _EIGHTHS) for value in columns]
    lines = []
    for row in reversed(range(height)):
        label = number(greatest) if row == height - 1 else number(least) if row == 0 else ""
        cells = (_BLOCKS[min(max(level - row * _EIGHTHS, 0), _EIGHTHS)] for level in levels)
        lines.append(f"{label:>{margin}} ┤{''.join(cells)}")
    return lines


def sparkline(series: Series, *, width: int, scale: tuple[Number, Number], fold: Fold = max) -> str:
    """One line of bars between two bounds."""
    levels = (_level(value, *scale, _EIGHTHS) for value in squeezed(series, width, fold))
    return "".join(_BLOCKS[level] for level in levels)


def bounds(many: Sequence[Series]) -> tuple[Number, Number]:
    """Zero or the least value, and the greatest."""
    values = [value for series in many for value in series if value is not None]
    return min([0, *values]), max([0, *values])


def squeezed(series: Series, width: int, fold: Fold) -> list[Number | None]:
    """As many numbers as there are columns at most, each of neighbours."""
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


def _level(value: Number | None, least: Number, greatest: Number, most: int) -> int:
    """How many eighths high a value stands; what is there is seen."""
    if value is None or greatest == least or not value:
        return 0
    return max(1, round((value - least) / (greatest - least) * most))


_HEIGHT = 6
#: Series that are drawn.
_SERIES = 10
#: Of every kind of measure the part that is drawn, and those that stand in the table.
_DRAWN = ("distinct", "avg", "p50", "count")
_PERCENTILES = ("p50", "p95", "p99")
_SHOWN = {"avg": ("avg", "min", "max", "p95"), "p50": ("p50", "p95", "p99"), "distinct": ("distinct",)}


class Part(NamedTuple):
    """One number of a measure, such as the p95 of a latency; a measure with a single one is called by its name."""

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


def show(result: AggregateResult, measures: Sequence[str], drawn: str) -> None:
    """Print what there is."""
    console = output.console()
    if not result.buckets:
        console.print(f"No events from {result.start} to {result.end}.")
        return
    part = _choose_part(result.buckets[0].groups[0], result.rollup, measures, drawn)
    if all(_has_year(bucket) for bucket in result.buckets):
        for line in _chart(result, part, console.width):
            console.print(line, markup=False, no_wrap=True, overflow="crop")
        console.print()
    _table(result, measures)


def _chart(result: AggregateResult, part: Part, width: int) -> Iterator[str]:
    series = _series(result, part)
    fold = sum if part.name == "count" else max
    yield f"{part} by {result.interval}, {_short(result.buckets[0].start)} to {_short(result.buckets[-1].end)}"
    if len(series) == 1:
        yield from bars(next(iter(series.values())), width=width, height=_HEIGHT, fold=fold)
        return
    largest = sorted(series, key=lambda label: -sum(value or 0 for value in series[label]))
    shown = {label: series[label] for label in largest[:_SERIES]}
    margin = max(map(len, shown))
    room = width - margin - 16
    columns = {label: squeezed(values, room, fold) for label, values in shown.items()}
    scale = bounds(list(columns.values()))
    for label, values in columns.items():
        peak = number(max((value for value in values if value is not None), default=0))
        yield f"{label:<{margin}}  {sparkline(values, width=room, scale=scale)}  {peak}"
    if len(series) > _SERIES:
        yield f"and {len(series) - _SERIES:,} more"


def _series(result: AggregateResult, part: Part) -> dict[str, list[Any]]:
    """The numbers of every group, one for each pane from the first to the last."""
    first, last = result.buckets[0], result.buckets[-1]
    begun, length = _time(first.start), _time(first.end) - _time(first.start)
    count = (_time(last.start) - begun) // length + 1
    series: dict[str, list[Any]] = {}
    for bucket in result.buckets:
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


def _table(result: AggregateResult, measures: Sequence[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    dimensions = list(result.buckets[0].groups[0].key)
    parts = _parts(result.buckets, measures)
    table = Table(box=None, pad_edge=False)
    table.add_column("start", no_wrap=True)
    for name in dimensions:
        table.add_column(Text(name))
    for part in parts:
        table.add_column(Text(str(part)), justify="right")
    for bucket in result.buckets:
        for group in bucket.groups:
            keys = (Text(output.cell(group.key[name])) for name in dimensions)
            numbers = ("-" if (value := part.of(group)) is None else number(value) for part in parts)
            table.add_row(_short(bucket.start), *keys, *numbers)
    output.console().print(table)


def _parts(buckets: Sequence[Bucket], measures: Sequence[str]) -> list[Part]:
    """The columns of the table: parts that are nowhere null."""
    group = buckets[0].groups[0]
    parts = []
    for measure in measures or group.measures:
        numbers = _numbers(group, measure)
        kind = next(part for part in _DRAWN if part in numbers)
        parts += [_part(group, measure, name) for name in _SHOWN.get(kind, (kind,))]
    groups = [group for bucket in buckets for group in bucket.groups]
    return [part for part in parts if any(part.of(group) is not None for group in groups)]


def _short(moment: str) -> str:
    """A moment without what is zero in it."""
    return moment.removesuffix("Z").removesuffix(".000").removesuffix(":00").replace("T", " ")


def _has_year(bucket: Bucket) -> bool:
    """Whether Python knows the year; rollups go farther."""
    return bucket.start[0].isdigit() and bucket.end[0].isdigit() and not bucket.start.startswith("0000")


def _time(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
