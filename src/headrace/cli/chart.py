"""Numbers over time in a terminal: bars of one series, sparklines of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
    return list(_folded(series, each, fold)) if each > 1 else list(series)


def number(value: Number) -> str:
    """A number with few digits."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _folded(series: Series, each: int, fold: Fold) -> Iterator[Number | None]:
    for at in range(0, len(series), each):
        given = [value for value in series[at : at + each] if value is not None]
        yield fold(given) if given else None


def _level(value: Number | None, least: Number, greatest: Number, most: int) -> int:
    """How many eighths high a value stands; what is there is seen."""
    if value is None or greatest == least or not value:
        return 0
    return max(1, round((value - least) / (greatest - least) * most))
