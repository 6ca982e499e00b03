"""`python -m bench --against COMMIT`: server CPU time per operation, an earlier commit and this tree in pairs.

Wall-clock rates move with the load of the machine; the CPU time that a server spends on a fixed number of operations
hardly does. Each pair starts both servers on empty directories, in alternating order.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.driver import DriverFailed, drive, job
from bench.features import folding
from bench.features.asked import Asked, asked
from bench.features.pipelines import DATED, MEASURED, TIMED, TWO, Pipeline
from bench.searching import shape
from bench.searching.filling import Load, fill
from bench.serving import Refused, Running, running
from bench.targets import TARGETS, Target

LEAST_PAIRS = 10
#: What the interval of before/after must reach.
LEAST_RATIO = 0.95
CONFIDENCE = 0.95

FOLDING = "folding"
#: Pushes of the same events: before without event time, after with it.
EVENT_TIME = "event_time"
ARRAY = 100
CONNECTIONS = 64
USERS = 10_000
_SINGLE_APPENDS = 60_000
_ARRAY_APPENDS = 20_000
_READ_ARRAYS = 2_000
_READ_CONNECTIONS = 8
_READ_PASSES = 15
_SEARCHED_EVENTS = 200_000
_SUBSCRIBERS, _LIVE_EVENTS, _LONGEST_LIVE_S = 500, 80, 240.0
_TIMED_OUT = 408
#: A server that uses less CPU than this in each of so many such times has finished its background work. It waits two
#: seconds before it makes states itself: an operation that is measured for longer must not be charged alone for them.
_IDLE_SECONDS, _IDLE_CPU_SECONDS, _IDLE_TIMES, _LONGEST_WORK = 0.25, 0.02, 12, 240
_PUSHES, _ARRAY_PUSHES, _GETS = 50_000, 3_000, 50_000


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one server for so many operations of a kind."""

    cpu_seconds: float
    operations: int

    @property
    def microseconds(self) -> float:
        """CPU time per operation."""
        return self.cpu_seconds * 1e6 / self.operations


@dataclass(frozen=True)
class Comparison:
    """One operation in both versions: medians of CPU time, and the ratio before/after with its interval."""

    operation: str
    before: float
    after: float
    ratio: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether the interval reaches the least ratio: the current tree may be at most 5 % more expensive."""
        return self.high >= folding.LEAST_RATIOS.get(self.operation, LEAST_RATIO)


Costs = dict[str, Cost]


def compare(
    commit: str, pairs: int, space: Path, progress: Callable[[str], None], kinds: Collection[str]
) -> list[Comparison]:
    """Measure both versions `pairs` times, and compare them operation by operation."""
    samples: list[tuple[Costs, Costs]] = []
    with checked_out(commit, space) as tree:
        before, after = version_of(tree / "src"), version_of(Path.cwd() / "src")
        for number in range(pairs):
            progress(f"pair {number + 1} of {pairs}")
            if number % 2:
                newer = _measure(after, space, kinds, TIMED)
                samples.append((_measure(before, space, kinds, DATED), newer))
            else:
                samples.append((_measure(before, space, kinds, DATED), _measure(after, space, kinds, TIMED)))
    return [_compared(operation, samples) for operation in samples[0][0]]


def lines(commit: str, pairs: int, comparisons: list[Comparison]) -> str:
    """The table that is printed."""
    head = f"Server CPU time per operation, {commit} and this tree, {pairs} alternating pairs; before/after above 1 is"
    rows = [f"{head} cheaper now.", "", f"{'operation':<44}{'before':>10}{'after':>10}  before/after  95 % interval"]
    for row in comparisons:
        verdict = "PASS" if row.holds else "FAIL"
        times = f"{row.before:>7.1f} µs{row.after:>7.1f} µs"
        rows.append(f"{row.operation:<44}{times}{row.ratio:>14.3f}  {row.low:.3f} to {row.high:.3f}  {verdict}")
    return "\n".join(rows)


def median_interval(values: list[float]) -> tuple[float, float]:
    """An interval that holds the median with 95 % confidence, whatever the distribution: two of the sorted values."""
    ordered, count = sorted(values), len(values)
    lower, outside = 0, 0.5**count
    while 2 * (outside + math.comb(count, lower + 1) * 0.5**count) <= 1 - CONFIDENCE:
        lower += 1
        outside += math.comb(count, lower) * 0.5**count
    return ordered[lower], ordered[count - 1 - lower]


def _compared(operation: str, samples: list[tuple[Costs, Costs]]) -> Comparison:
    before = [older[operation].microseconds for older, _ in samples]
    after = [newer[operation].microseconds for _, newer in samples]
    ratios = [old / new for old, new in zip(before, after, strict=True)]
    middle = statistics.median
    return Comparison(operation, middle(before), middle(after), middle(ratios), *median_interval(ratios))


@contextmanager
def checked_out(commit: str, space: Path) -> Iterator[Path]:
    """A commit of this repository in a directory of its own."""
    tree = space / "before"
    _git("worktree", "add", "--detach", str(tree), commit)
    try:
        yield tree
    finally:
        _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DriverFailed(f"git {' '.join(arguments)}: {done.stderr.strip()}")


def version_of(source: Path) -> Target:
    """Headrace from a source tree, with the packages that are installed here."""
    start = "import sys; from headrace.cli.main import main; sys.exit(main())"

    def command(port: int, directory: Path) -> list[str]:
        return [sys.executable, "-c", start, "serve", "--port", str(port), "--data-dir", str(directory)]

    return replace(TARGETS[0], command=command, environment={"PYTHONPATH": str(source)})


def _measure(target: Target, space: Path, kinds: Collection[str], dated: Pipeline) -> Costs:
    costs: Costs = {}
    if EVENT_TIME in kinds:
        with asked(target, space, dated, USERS) as features:
            features.look()
            costs[TITLES[EVENT_TIME]] = _FEATURE_KINDS["push"](features)
    if chosen := [kind for kind in _STREAM_KINDS if kind in kinds]:
        with running(target, space) as server:
            costs |= {TITLES[kind]: _STREAM_KINDS[kind](server) for kind in chosen}
    if chosen := [kind for kind in _FEATURE_KINDS if kind in kinds]:
        with asked(target, space, TWO, USERS) as features:
            features.look()
            costs |= {TITLES[kind]: _FEATURE_KINDS[kind](features) for kind in chosen}
    for pipeline in MEASURED if FOLDING in kinds else ():
        seconds = folding.fold_seconds(Path(target.environment["PYTHONPATH"]), pipeline, space)
        costs[folding.title(pipeline)] = Cost(seconds, folding.EVENTS[pipeline.name])
    return costs


def _append_cost(server: Running) -> Cost:
    server.create("single")
    settings = {"connections": CONNECTIONS, "count": _SINGLE_APPENDS}
    return _cost(server, lambda: _drive(server, "append", "single", **settings)["acknowledged"])


def _arrays_cost(server: Running) -> Cost:
    server.create("arrays")
    settings = {"connections": CONNECTIONS, "batch": ARRAY, "count": _ARRAY_APPENDS}
    return _cost(server, lambda: _drive(server, "append", "arrays", **settings)["acknowledged"])


def _read_cost(server: Running) -> Cost:
    server.create("read")
    _drive(server, "append", "read", connections=16, batch=ARRAY, count=_READ_ARRAYS)
    _await_idle(server)
    return _cost(server, lambda: _read_passes(server))


def _live_cost(server: Running) -> Cost:
    server.create("live")
    settings = {"connections": _SUBSCRIBERS, "count": _LIVE_EVENTS, "seconds": _LONGEST_LIVE_S}
    return _cost(server, lambda: int(_drive(server, "live", "live", **settings)["samples"]))


def _search_cost(server: Running) -> Cost:
    server.create(shape.STREAM)
    server.ask("POST", f"/v1/stream/{shape.STREAM}/_schema", json.dumps(shape.UPDATE).encode())

    def append_and_search() -> int:
        fill(Load(server.port, shape.STREAM, 0, _SEARCHED_EVENTS))
        while not _is_complete(server):
            pass
        return _SEARCHED_EVENTS

    return _cost(server, append_and_search)


def _is_complete(server: Running) -> bool:
    """Ask for a word, which needs the columns of every event; one version extracts them earlier than the other."""
    question = json.dumps({"q": "title:nothing", "track_total_hits": True}).encode()
    try:
        answer = json.loads(server.ask("POST", f"/v1/stream/{shape.STREAM}/_search", question))
    except Refused as refused:
        if refused.status != _TIMED_OUT:
            raise
        return False
    return bool(answer["coverage"]["complete"])


def _load_cost(features: Asked, kind: str, count: int, batch: int = 1) -> Cost:
    settings = {"connections": CONNECTIONS, "count": count, "batch": batch}

    def work() -> int:
        acknowledged = features.load(kind, **settings)["acknowledged"]
        features.get(0)  # once all that was pushed is in the rows
        return int(acknowledged)

    return _cost(features.server, work)


def _read_passes(server: Running) -> int:
    passes = (_drive(server, "pass", "read", connections=_READ_CONNECTIONS) for _ in range(_READ_PASSES))
    return sum(int(result["requests"]) for result in passes)


def _drive(server: Running, kind: str, stream: str, **settings: Any) -> dict[str, Any]:
    result = drive(job(server, kind, stream, **settings))
    if result["errors"]:
        raise DriverFailed(f"{kind}: {result['first_error']}")
    return result


def _cost(server: Running, work: Callable[[], int]) -> Cost:
    """What some work costs, with everything that the server does because of it afterwards."""
    before = _cpu_seconds(server)
    operations = work()
    _await_idle(server)
    return Cost(_cpu_seconds(server) - before, operations)


def _await_idle(server: Running) -> None:
    idle = 0
    for _ in range(_LONGEST_WORK):
        before = _cpu_seconds(server)
        time.sleep(_IDLE_SECONDS)
        idle = idle + 1 if _cpu_seconds(server) - before <= _IDLE_CPU_SECONDS else 0
        if idle == _IDLE_TIMES:
            return


def _cpu_seconds(server: Running) -> float:
    """CPU time of all threads of the server's process, in user and in kernel mode."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


#: What is measured on a server with streams, and on one with a feature table, by the names that ``--only`` takes.
_STREAM_KINDS: dict[str, Callable[[Running], Cost]] = {
    "append": _append_cost,
    "arrays": _arrays_cost,
    "read": _read_cost,
    "live": _live_cost,
    "search": _search_cost,
}
_FEATURE_KINDS: dict[str, Callable[[Asked], Cost]] = {
    "push": lambda features: _load_cost(features, "push", _PUSHES),
    "get": lambda features: _load_cost(features, "get", _GETS),
    "push_arrays": lambda features: _load_cost(features, "push", _ARRAY_PUSHES, ARRAY),
}
TITLES = {
    "append": "append",
    "arrays": "append in arrays of 100, per event",
    "read": "read of a page",
    "live": "event to one of 500 SSE readers",
    "search": "append and first complete search, per event",
    "push": "push",
    "get": "get",
    "push_arrays": "push in arrays of 100, per event",
    EVENT_TIME: "push, before without event time, after with it",
    FOLDING: "events folded into states by one core",
}
