"""The report: a table with ratios, the bars, and the same as JSON."""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import answers, evlog, file_import, keyed, observations, schemas, sealed, sealing, touch
from bench.driver import Sample
from bench.features import rows as features
from bench.ingest import Ingest
from bench.search import Marked
from bench.searching.rows import promises
from bench.streams import FEW, ManyStreams
from bench.targets import TARGETS, Target

TITLES = {target.name: target.title for target in TARGETS}
#: Units of which less is better.
TIMES = ("µs", "ms", "s", "KB", "MB")
MOST_MEMORY = 500.0
MOST_SLOWER = 1.5
LEAST_PROMOTED = 150_000.0
MOST_INGEST_MEMORY = 400.0


@dataclass(frozen=True)
class Bar:
    """One promise: what it says, the number measured, and whether it holds."""

    text: str
    measured: float
    holds: bool


class Results:
    """All samples of a run, by row and server."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[str, list[Sample]]] = {}
        self.skipped: dict[str, str] = {}
        #: By measure and reason, the titles of the servers.
        self.left_out: dict[tuple[str, str], list[str]] = {}
        self.remarks: list[str] = []
        self.broken: list[str] = []
        self.streams: ManyStreams | None = None
        self.ingest: Ingest | None = None

    def add(self, target: Target, samples: list[Sample]) -> None:
        """Keep one server's samples of one round."""
        for sample in samples:
            self.samples.setdefault(sample.row, {}).setdefault(target.name, []).append(sample)
            if isinstance(sample, Marked) and sample.mark:
                self.remarks.append(f"{target.title}, {sample.row}: {sample.mark}")

    def leave_out(self, name: str, target: Target, reason: str) -> None:
        """Note that a measure does without a server."""
        titles = self.left_out.setdefault((name, reason), [])
        if target.title not in titles:
            titles.append(target.title)

    def has(self, target: Target) -> bool:
        """Whether anything was measured of a server."""
        return any(target.name in by_name for by_name in self.samples.values())

    def value(self, row: str, name: str) -> float | None:
        """The median over the rounds."""
        measured = self.samples.get(row, {}).get(name)
        return statistics.median(sample.value for sample in measured) if measured else None

    def unit(self, row: str) -> str:
        """The unit of a row."""
        return next(iter(self.samples[row].values()))[0].unit

    def troubles(self) -> list[str]:
        """Errors, and every difference between what was acknowledged and what was stored."""
        found = list(self.broken)
        for row, by_name in self.samples.items():
            for name, samples in by_name.items():
                found += [
                    f"{TITLES[name]}, {row}: {sample.errors} errors. {sample.note}"
                    for sample in samples
                    if sample.errors or sample.note
                ]
                found += [f"{TITLES[name]}, {row}: nothing was measured" for sample in samples if not sample.value]
        if self.streams and self.streams.errors:
            found.append(f"many streams: {self.streams.errors} errors")
        return found + [f"ingest: {trouble}" for trouble in (self.ingest.troubles if self.ingest else ())]


def table(results: Results, names: list[str]) -> str:
    """Absolute values; in brackets how many times better Headrace is (above 1: Headrace is ahead)."""
    width = max((len(row) for row in results.samples), default=0)
    lines = [" " * width + "".join(f"{TITLES[name]:>21}" for name in names)]
    for row in results.samples:
        ours = results.value(row, "headrace")
        unit = results.unit(row)
        cells = (_cell(unit, results.value(row, name), ours, name) for name in names)
        lines.append(f"{row:<{width}}" + "".join(f"{cell:>21}" for cell in cells))
    return "\n".join(lines)


def bars(results: Results) -> list[Bar]:
    """The promises that this run can judge."""
    single, tuned = "single appends, 64 connections", ("prisma-tuned",)
    prisma = ("prisma", "prisma-tuned")
    arrays = "events in arrays of 100, 64 connections"
    wanted = [
        (single, tuned, 2.0, "single appends at 64 connections, against Prisma tuned"),
        (single, ("redis",), 0.7, "single appends at 64 connections, against Redis"),
        (arrays, tuned, 5.0, "events in arrays of 100, against Prisma tuned"),
        ("catch-up read, 1 connection", prisma, 10.0, "catch-up read, against Prisma at its best"),
        ("append to 1,000 subscribers, p99", prisma, 1.0, "p99 to 1,000 subscribers, against Prisma at its best"),
    ]
    judged = [*(_bar(results, *promise) for promise in wanted), *_schema_bars(results), *_segment_bars(results)]
    judged += [Bar(*promise) for promise in (*promises(results.value), *features.promises(results.value))]
    judged += [Bar(*promise) for promise in (*touch.promises(results.value), *observations.promises(results.value))]
    judged += [Bar(*promise) for promise in file_import.promises(results.value)]
    judged += [Bar(*promise) for promise in (*evlog.promises(results.value), *answers.promises(results.value))]
    alone = _stream_bars(results.streams) if results.streams else []
    return [bar for bar in judged if bar] + alone + (_ingest_bars(results.ingest) if results.ingest else [])


def bar_lines(judged: list[Bar]) -> str:
    """One line per bar."""
    return "\n".join(f"{'pass' if bar.holds else 'FAIL'}  {bar.text}: {bar.measured:,.2f}" for bar in judged)


def stream_lines(streams: ManyStreams) -> str:
    """The many-streams measure, one line per number."""
    few, many = f"beside {FEW:,} streams", f"beside {streams.count:,} streams"
    lines = [
        (f"creating {streams.count:,} streams", streams.created_per_second, "/s"),
        (f"listing a page {few}", streams.pages.beside_few, "/s"),
        (f"listing a page {many}", streams.pages.beside_many, "/s"),
        (f"append to a random stream {few}", streams.appends.beside_few, "/s"),
        (f"append to a random stream {many}", streams.appends.beside_many, "/s"),
        (f"server memory {many}", streams.memory_mb, " MB"),
    ]
    return "\n".join(f"{text:<52}{value:>10,.0f}{unit}" for text, value, unit in lines)


def ingest_lines(found: Ingest) -> str:
    """The way of a large load, one line per phase."""
    title = f"ingest of {found.bytes:,} bytes"
    lines = [f"{title:<52}{'seconds':>11}{'highest memory':>17}"]
    lines += [f"  {phase.name:<50}{phase.seconds:>11,.1f}{phase.memory_mb:>14,.0f} MB" for phase in found.phases]
    return "\n".join(lines)


def save(results: Results, directory: Path, facts: dict[str, Any]) -> Path:
    """Write everything measured, round by round, as JSON."""
    path = directory / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    rounds = {
        row: {name: [sample.value for sample in samples] for name, samples in by_name.items()}
        for row, by_name in results.samples.items()
    }
    document = {
        "facts": facts,
        "rounds": rounds,
        "streams": asdict(results.streams) if results.streams else None,
        "ingest": asdict(results.ingest) if results.ingest else None,
        "bars": [vars(bar) for bar in bars(results)],
        "skipped": results.skipped,
        "left_out": {f"{name}: {', '.join(titles)}": reason for (name, reason), titles in results.left_out.items()},
        "remarks": results.remarks,
        "troubles": results.troubles(),
    }
    path.write_text(json.dumps(document, indent=2))
    return path


def fsync_seconds(directory: Path, times: int = 200) -> float:
    """The median time that this disk takes to make 4 KiB durable."""
    path = directory / "fsync-probe"
    taken = []
    with path.open("wb", buffering=0) as probe:
        for _ in range(times):
            probe.write(b"\0" * 4096)
            began = time.perf_counter()
            os.fdatasync(probe.fileno())
            taken.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(taken)


def _bar(results: Results, row: str, names: tuple[str, ...], least: float, text: str) -> Bar | None:
    ours = results.value(row, "headrace")
    theirs = [value for name in names if (value := results.value(row, name))]
    if ours is None or not theirs:
        return None
    lower_is_better = results.unit(row) in TIMES
    best = min(theirs) if lower_is_better else max(theirs)
    ratio = _times_better(results.unit(row), ours, best)
    return Bar(f"{text} (at least {least:g} times as good)", ratio, ratio >= least)


def _schema_bars(results: Results) -> list[Bar | None]:
    tuned = ("prisma-tuned",)
    return [
        _share(results, *schemas.SINGLE, 0.5, "single appends of large events, with a schema against without"),
        _share(results, *schemas.ARRAYS, 0.4, "large events in arrays of 100, with a schema against without"),
        _bar(
            results, schemas.ARRAYS[1], tuned, 3.0, "large events in arrays of 100 with a schema, against Prisma tuned"
        ),
        _promoted(results.value(schemas.PROMOTED, "headrace")),
        _bar(results, schemas.PROMOTED, tuned, 3.0, "events read through three lenses, against Prisma tuned"),
        _share(results, *schemas.READS, 0.9, "events read, with a schema and none old, against without"),
    ]


def _segment_bars(results: Results) -> list[Bar | None]:
    tuned = ("prisma-tuned",)
    return [
        _bar(results, sealed.COLD, tuned, 10.0, "catch-up read of sealed history, cold, against Prisma tuned"),
        _bar(results, sealed.WARM, tuned, 10.0, "catch-up read of sealed history, warm, against Prisma tuned"),
        _share(results, sealing.OFF, sealing.ON, 0.85, "single appends at 64 connections, sealing against not"),
        _bar(results, keyed.ROW, tuned, 5.0, "all events of one key, against Prisma tuned"),
    ]


def _ingest_bars(found: Ingest) -> list[Bar]:
    text = f"server memory in MB during ingest, restart, recovery and reading, below {MOST_INGEST_MEMORY:g}"
    return [Bar(text, found.memory_mb, found.memory_mb < MOST_INGEST_MEMORY)]


def _share(results: Results, without: str, row: str, least: float, text: str) -> Bar | None:
    """How much of Headrace's rate is left where it has more to do."""
    free, checked = results.value(without, "headrace"), results.value(row, "headrace")
    if free is None or checked is None:
        return None
    share = checked / free
    return Bar(f"{text} (at least {least:g} times as many)", share, share >= least)


def _promoted(rate: float | None) -> Bar | None:
    text = f"events read through three lenses per second, at least {LEAST_PROMOTED:,.0f}"
    return None if rate is None else Bar(text, rate, rate >= LEAST_PROMOTED)


def _stream_bars(streams: ManyStreams) -> list[Bar]:
    page, append, memory = streams.pages.slowdown, streams.appends.slowdown, streams.memory_mb
    most = f"costs at most {MOST_SLOWER} times that beside a thousand"
    return [
        Bar(f"a page {most}", page, page <= MOST_SLOWER),
        Bar(f"an append {most}", append, append <= MOST_SLOWER),
        Bar(f"server memory in MB, below {MOST_MEMORY:g}", memory, memory < MOST_MEMORY),
    ]


def _times_better(unit: str, ours: float, theirs: float) -> float:
    """How many times better Headrace is; without bound where the other did nothing at all."""
    better, worse = (theirs, ours) if unit in TIMES else (ours, theirs)
    return better / worse if worse else float("inf")


def _cell(unit: str, value: float | None, ours: float | None, name: str) -> str:
    if value is None:
        return "-"
    gap = "" if unit.startswith("/") else " "
    shown = f"{value:,.2f}{gap}{unit}" if value < 100 else f"{value:,.0f}{gap}{unit}"
    if ours is None or name == "headrace":
        return shown
    ratio = _times_better(unit, ours, value)
    return f"{shown} ({ratio:,.2f}x)" if ratio < 10 else f"{shown} ({ratio:,.0f}x)"
