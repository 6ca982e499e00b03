"""The answer of a rollup by the book: gather the values of every group, then compute each measure from scratch.

Nothing of the package's reducers is used, only the reference's reading of values and queries.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import msgspec

from headrace.query import predicate
from headrace.query.search import (
    Count,
    Distinct,
    Kind,
    OperatorMeasure,
    Quantiles,
    Rollup,
    Search,
    Summary,
    SummaryParts,
)
from headrace.query.tree import Node
from headrace.query.values import resolve, values
from operators import oracle as operators
from operators.events import Event


def buckets(
    rollup: Rollup,
    search: Search,
    documents: list[Any],
    *,
    interval: int,
    start: int,
    end: int,
    group_by: tuple[str, ...] = (),
    measures: tuple[str, ...] = (),
    where: Node | None = None,
) -> list[dict[str, Any]]:
    groups: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for document in documents:
        times = values(search[rollup.timestamp], document)
        dimensions = {name: values(search[name], document) for name in rollup.dimensions}
        if len(times) != 1 or any(len(found) > 1 for found in dimensions.values()):
            continue
        if not all(predicate.compile(tree, search)(document) for tree in (rollup.include, where) if tree):
            continue
        time = int(times[0])
        if start <= time < end and abs(time) <= 8.64e15:
            key = {name: dimensions[name][0] if dimensions[name] else None for name in sorted(group_by)}
            groups[time // interval][text(key)].append(document)
    return [
        {
            "start": moment(at * interval),
            "end": moment((at + 1) * interval),
            "groups": [
                {
                    "key": msgspec.json.decode(key),
                    "measures": {
                        name: measured(rollup.measures[name], rollup.timestamp, search, groups[at][key])
                        for name in sorted(measures or rollup.measures)
                    },
                }
                for key in sorted(groups[at])
            ],
        }
        for at in sorted(groups)
    ]


def text(key: dict[str, Any]) -> str:
    return msgspec.json.encode(key).decode()


def moment(millis: int) -> str:
    # Four hundred years have a whole number of days, so any date has a twin that Python knows.
    cycles, day = divmod(millis // 86_400_000, 146_097)
    twin = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day, milliseconds=millis % 86_400_000)
    year = twin.year + 400 * cycles
    sign = "" if 0 <= year <= 9999 else "-" if year < 0 else "+"
    return f"{sign}{abs(year):0{6 if sign else 4}d}-{twin:%m-%dT%H:%M:%S}.{twin.microsecond // 1000:03d}Z"


def measured(measure: Any, timestamp: str, search: Search, documents: list[Any]) -> dict[str, Any]:
    match measure:
        case Count(include=include):
            matches = predicate.compile(include, search) if include else lambda _: True
            return {"count": sum(1 for document in documents if matches(document))}
        case Summary(field=name, histogram=has_histogram):
            numbers = alone(name, search, documents)
            counted = [(number, 1) for number in numbers]
            return summary(len(numbers), numbers, numbers, numbers, counted if has_histogram else None)
        case SummaryParts():
            return summary_parts(measure, documents)
        case Quantiles(field=name):
            return quantiles([float(number) for number in alone(name, search, documents) if abs(number) < 2**1024])
        case Distinct(field=name):
            return {"distinct": len({value for document in documents for value in values(search[name], document)})}
        case OperatorMeasure():
            return {measure.operator: operator(measure, timestamp, search, documents)}
    raise TypeError(measure)


#: A field of each kind that the oracle of operators knows.
NAMES = {Kind.FLOAT: "x", Kind.KEYWORD: "s", Kind.BOOL: "b"}


def operator(measure: OperatorMeasure, timestamp: str, search: Search, documents: list[Any]) -> Any:
    """What the oracle of operators says."""
    matches = predicate.compile(measure.include, search) if measure.include else lambda _: True
    params = dict(measure.params)
    fields = {name: search[name] for name in measure.fields}
    if fields:
        params["field"] = NAMES[search[params["field"]].kind]
    events = []
    for seq, document in enumerate(documents):
        single = {NAMES[field.kind]: values(field, document) for field in fields.values()}
        row = {name: found[0] for name, found in single.items() if len(found) == 1}
        events.append(Event(int(values(search[timestamp], document)[0]), seq, row, matches(document)))
    return plain(operators.answer(measure.operator, params, sorted(events, key=lambda event: event[:2]), 2**60))


def plain(answer: Any) -> Any:
    """An answer as JSON has it."""
    if isinstance(answer, dict):
        return {name: plain(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [plain(value) for value in answer]
    return float(answer) if isinstance(answer, Fraction) else answer


def alone(name: str, search: Search, documents: list[Any]) -> list[Any]:
    found = (values(search[name], document) for document in documents)
    return [given[0] for given in found if len(given) == 1]


def summary(
    count: int, sums: list[Any], least: list[Any], greatest: list[Any], counted: list[tuple[float, int]] | None
) -> dict[str, Any]:
    total = sum(sums)
    answer: dict[str, Any] = {
        "count": count,
        "sum": total,
        "min": min(least, default=None),
        "max": max(greatest, default=None),
        "avg": average(total, count),
        "p50": None,
        "p95": None,
        "p99": None,
    }
    if counted is None:
        return answer
    labels = [(label(number), many) for number, many in counted]
    everything = sum(many for _, many in labels)
    for percent in (50, 95, 99):
        for candidate, _ in sorted(labels):
            if sum(many for other, many in labels if other <= candidate) * 100 >= percent * everything:
                answer[f"p{percent}"] = candidate
                break
    histogram: dict[str, int] = defaultdict(int)
    for candidate, many in sorted(labels):
        histogram[str(candidate)] += many
    return {**answer, "histogram": dict(histogram)}


def average(total: Any, count: int) -> float | None:
    try:
        return total / count if count else None
    except OverflowError:
        return None  # no double is that large


def label(number: float) -> int:
    found = 1
    while found * 2 <= abs(number):
        found *= 2
    return found


def summary_parts(measure: SummaryParts, documents: list[Any]) -> dict[str, Any]:
    given = []
    for document in documents:
        places = (measure.count, measure.sum, measure.min, measure.max)
        numbers = [resolve(document, place)[1] for place in places]
        if all(type(number) in (int, float) for number in numbers) and numbers[0] > 0 == numbers[0] % 1:
            given.append((*numbers, resolve(document, measure.histogram or ("none",))[1] or {}))
    counted = [(float(at), many) for *_, histogram in given for at, many in histogram.items()]
    return summary(
        sum(count for count, *_ in given),
        [total for _, total, *_ in given],
        [least for _, _, least, *_ in given],
        [greatest for _, _, _, greatest, _ in given],
        None if measure.histogram is None else counted,
    )


def quantiles(numbers: list[float]) -> dict[str, Any]:
    ordered = sorted(numbers)
    ranks = {f"p{percent}": -(-percent * len(ordered) // 100) - 1 for percent in (50, 90, 95, 99)}
    shares = {name: ordered[rank] if ordered else None for name, rank in ranks.items()}
    return {"count": len(ordered), "min": min(ordered, default=None), "max": max(ordered, default=None), **shares}
