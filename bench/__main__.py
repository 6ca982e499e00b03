"""`python -m bench`: measure every server in turn, round after round, and print the report."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import against, report
from bench.driver import DriverFailed, Times
from bench.ingest import ingest
from bench.measures import LEFT_OUT, MEASURES, ONCE, REPEATED, SIZED
from bench.observations import STEP
from bench.peers import Missing
from bench.report import Results
from bench.scale import FEW_OBSERVATIONS, FEW_SEARCHED_EVENTS, OBSERVATIONS, SEARCHED_EVENTS, Scale, scale_of
from bench.searching.data import ARRAY
from bench.soak import run as soaking
from bench.stalls import run as stalling
from bench.streams import many_streams
from bench.targets import TARGETS, Target

RESULTS = Path(__file__).parent / "results"
STREAMS, INGEST, SOAK, STALLS = "streams", "ingest", "soak", "stalls"
QUIET = 0.7
#: Options that are numbers, and what they are where none is given: in a whole run, and in a quick one.
_DEFAULTS = {
    "rounds": (3, 1),
    "warm": (0.4, 0.3),
    "seconds": (1.3, 1.0),
    "streams": (1_000_000, 50_000),
    "events": (SEARCHED_EVENTS, FEW_SEARCHED_EVENTS),
    "observations": (OBSERVATIONS, FEW_OBSERVATIONS),
}


def main() -> int:
    """Measure, print, save; 1 when a bar is missed or a count is wrong."""
    options = _options()
    _allow_many_sockets()
    RESULTS.mkdir(exist_ok=True)
    space = Path(tempfile.mkdtemp(prefix="space-", dir=RESULTS))
    try:
        if options.only == [SOAK]:
            return _soak(options, space)
        if options.only == [STALLS]:
            return _stalls(options, space)
        if options.against:
            return _compare(options, space)
        facts = _facts(space, options)
        chosen = [target for target in TARGETS if target.name in options.targets]
        scale = scale_of(
            Times(options.warm, options.seconds), options.quick, space, options.events, options.observations
        )
        _print_opening(facts, chosen)
        results = _measure(options, chosen, space, scale)
    finally:
        shutil.rmtree(space, ignore_errors=True)
    return _print_report(results, chosen, facts)


def _options() -> argparse.Namespace:
    measures = [*MEASURES, STREAMS, INGEST]
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, less data, 50,000 streams")
    parser.add_argument(
        "--only",
        help=f"some of {','.join(measures)}; or {SOAK} or {STALLS}; with --against, of {','.join(against.TITLES)}",
    )
    parser.add_argument("--targets", help=f"some of {','.join(names)}")
    parser.add_argument("--rounds", type=int, help="rounds over all servers (3)")
    parser.add_argument("--warm", type=float, help="seconds of warm-up before counting (0.4)")
    parser.add_argument("--seconds", type=float, help="seconds counted (1.3)")
    parser.add_argument("--streams", type=int, help="how many streams are many (1,000,000)")
    parser.add_argument("--events", type=int, help="how many events are searched (1,000,000), in hundreds")
    parser.add_argument("--observations", type=int, help="how many are imported (1,000,000), in ten thousands")
    parser.add_argument("--against", metavar="COMMIT", help="CPU time per operation: this tree and an earlier commit")
    parser.add_argument("--pairs", type=int, default=against.LEAST_PAIRS, help="pairs of --against (at least 10)")
    parser.add_argument("--minutes", type=float, default=30.0, help=f"how long {SOAK} takes (30)")
    parser.add_argument("--auto-tune", type=int, metavar="MB", help=f"the memory limit of {SOAK} (that of the machine)")
    options = parser.parse_args()
    if options.pairs < against.LEAST_PAIRS:
        parser.error(f"--pairs must be at least {against.LEAST_PAIRS}: fewer give no interval to speak of")
    for name, (whole, quick) in _DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else whole)
    if options.events % ARRAY or options.events <= 0:
        parser.error(f"--events must be a multiple of {ARRAY}")
    if options.observations % STEP or options.observations <= 0:
        parser.error(f"--observations must be a multiple of {STEP}")
    known = list(against.TITLES) if options.against else measures
    options.only = [options.only] if options.only in (SOAK, STALLS) else _chosen(parser, options.only, known)
    options.targets = _chosen(parser, options.targets, names)
    return options


def _chosen(parser: argparse.ArgumentParser, given: str | None, known: list[str]) -> list[str]:
    wanted = given.split(",") if given else known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return wanted


def _compare(options: argparse.Namespace, space: Path) -> int:
    """Compare this tree with an earlier commit; 1 when an operation has become too expensive."""
    try:
        compared = against.compare(options.against, options.pairs, space, _progress, options.only)
    except (Missing, DriverFailed, OSError) as reason:
        print(f"The comparison failed: {reason}")
        return 1
    print(against.lines(options.against, options.pairs, compared))
    return 0 if all(comparison.holds for comparison in compared) else 1


def _soak(options: argparse.Namespace, space: Path) -> int:
    """Put a server under mixed load for a while; 1 where it goes beyond a bound or answers wrong."""
    found = soaking.soak(options.minutes * 60, space, auto_tune=options.auto_tune, progress=_progress)
    print(soaking.lines(found))
    for trouble in found.troubles:
        print(f"TROUBLE  {trouble}")
    return 1 if found.troubles else 0


def _stalls(options: argparse.Namespace, space: Path) -> int:
    """Append beside loads at the limits; 1 where an append waited for too long."""
    try:
        rows = stalling.measure(space, _progress, options.against)
    except (Missing, DriverFailed, OSError) as reason:
        print(f"The measurement failed: {reason}")
        return 1
    print(stalling.lines(rows, options.against))
    return 0 if all(row.holds for row in rows) else 1


def _measure(options: argparse.Namespace, chosen: list[Target], space: Path, scale: Scale) -> Results:
    results = Results()
    for name in (name for name in MEASURES if name in options.only):
        rounds = 1 if name in ONCE else options.rounds * (1 if options.quick else REPEATED.get(name, 1))
        for number in range(1, rounds + 1):
            for target in (target for target in chosen if target.name not in results.skipped and target.joins(name)):
                if target.name in LEFT_OUT.get(name, ()):
                    results.leave_out(name, target, LEFT_OUT[name][target.name])
                    continue
                _progress(f"{name}, round {number} of {rounds}: {target.title}")
                _measure_one(results, name, target, space, scale)
    if "headrace" in options.targets:
        _measure_alone(results, options, space, scale)
    results.remarks += scale.remarks if {*SIZED, INGEST} & set(options.only) else ()
    return results


def _measure_one(results: Results, name: str, target: Target, space: Path, scale: Scale) -> None:
    try:
        results.add(target, MEASURES[name](target, space, scale))
    except Missing as reason:
        if target is TARGETS[0]:
            results.broken.append(f"{target.title}, {name}: {reason}")
        else:
            results.skipped[target.name] = str(reason)
    except (DriverFailed, OSError) as reason:
        results.broken.append(f"{target.title}, {name}: {reason}")


def _measure_alone(results: Results, options: argparse.Namespace, space: Path, scale: Scale) -> None:
    """What is measured on Headrace only, once."""
    if STREAMS in options.only:
        _progress(f"{options.streams:,} streams")
        try:
            results.streams = many_streams(options.streams, scale.times, space)
        except (Missing, DriverFailed) as reason:
            results.broken.append(f"many streams: {reason}")
    if INGEST in options.only:
        _progress(f"ingest of {scale.ingest_bytes:,} bytes")
        try:
            results.ingest = ingest(scale.ingest_bytes, space)
        except (Missing, DriverFailed, OSError) as reason:
            results.broken.append(f"ingest: {reason}")


def _allow_many_sockets() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _facts(space: Path, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "fsync_ms": report.fsync_seconds(space) * 1e3,
        "rounds": options.rounds,
        "warm_seconds": options.warm,
        "counted_seconds": options.seconds,
    }


def _print_opening(facts: dict[str, Any], chosen: list[Target]) -> None:
    print(f"{facts['cores']} cores, Python {facts['python']}, fsync of 4 KiB takes {facts['fsync_ms']:.2f} ms.")
    if facts["load_average"] > QUIET:
        print(f"This machine is busy (load average {facts['load_average']:.1f}): expect noise.")
    print("Every server but beava acknowledges an append only after it is on disk:")
    for target in chosen:
        print(f"  {target.title:<18}{target.durability}")
    print(
        "One event is 115 bytes of JSON, a large one (for schemas) 250, a searched one 290. Redis has no HTTP: it is\n"
        "given XADD, arrays as 100 XADD in one write, reads as XRANGE of 1000, subscribers as XREAD BLOCK.\n"
        "Medians over the rounds.\n",
        flush=True,
    )


def _print_report(results: Results, chosen: list[Target], facts: dict[str, Any]) -> int:
    names = [target.name for target in chosen if results.has(target)]
    for name, reason in results.skipped.items():
        print(f"skipped {report.TITLES[name]}: {reason}")
    for (name, reason), titles in results.left_out.items():
        print(f"left out of {name}: {', '.join(titles)}: {reason}")
    for remark in results.remarks:
        print(remark)
    if results.samples:
        print(f"\n{report.table(results, names)}")
        print("(in brackets: how many times better Headrace is)")
    if results.streams:
        print(f"\n{report.stream_lines(results.streams)}")
    if results.ingest:
        print(f"\n{report.ingest_lines(results.ingest)}")
    judged = report.bars(results)
    if judged:
        print(f"\n{report.bar_lines(judged)}")
    troubles = results.troubles()
    for line in troubles:
        print(f"TROUBLE  {line}")
    print(f"\nSaved in {report.save(results, RESULTS, facts).relative_to(Path.cwd())}")
    return 0 if all(bar.holds for bar in judged) and not troubles else 1


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
