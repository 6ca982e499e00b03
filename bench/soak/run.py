"""One soak from start to end: a server as `headrace up`, the load, what it holds meanwhile, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.search import with_pipeline
from bench.serving import Running, serving
from bench.soak import entities, judging, searching, streams, tables, waking
from bench.soak.load import Client, Load, Unexpected
from bench.soak.probe import Probe, Probed
from bench.soak.sampling import Sample, Sampler
from bench.soak.written import Written
from bench.targets import TARGETS, Target

SEED = 20
#: An idle server gives memory back within this time, down to what it had at the start, what it says that its caches
#: hold, and so much more: libraries that it has loaded meanwhile, pages of files, and what allocators keep.
REST_S = 60.0
UNACCOUNTED_BYTES = 300 * judging.MB
_DRAIN_S = 120.0
_PROGRESS_S = 30.0
_STOP_S = 60.0
#: Little is sealed and indexed often, so that an hour of every day happens in minutes.
SETTINGS = {
    "HEADRACE_STORAGE__SEAL_AGE_S": "10",
    "HEADRACE_STORAGE__SEAL_ROWS": "20000",
    "HEADRACE_PIPELINE__MIN_ROWS": "5000",
    "HEADRACE_PIPELINE__MASTER": "local[2]",
}


@dataclass
class Soak:
    """What came of a soak."""

    seconds: float
    auto_tune: int | None
    sampler: Sampler
    load: Load
    started_rss: int = 0
    rested_rss: int = 0
    floor: int = 0
    rested_files: int = 0
    #: The samples that were taken under load.
    loaded: list[Sample] = field(default_factory=list)
    probed: Probed | None = None
    read_back: int = 0
    troubles: list[str] = field(default_factory=list)

    @property
    def memory_limit(self) -> float:
        """What the server's own process may hold, in bytes."""
        if self.auto_tune is not None:
            return self.auto_tune * 2.0**20
        return self.sampler.metrics.get("headrace_memory_limit_bytes", 0.0)


class Everything:
    """All clients of the load, and what they know."""

    def __init__(self, hooks: waking.Hooks) -> None:
        self.singles = [Written(f"single-{number}") for number in range(3)]
        self.arrays = [Written(f"array-{number}") for number in range(2)]
        self.produced = [Written(f"produced-{number}") for number in range(2)]
        self.searched, self.redeclared = Written("searched"), Written("redeclared")
        self.large, self.retained = Written("large"), Written("retained")
        self.pushed, self.observed = tables.Pushed(), entities.Observed()
        self._changes, self._hooks = waking.Changes(), hooks

    @property
    def kept(self) -> list[Written]:
        """Streams of which everything is retained."""
        return [*self.singles, *self.arrays, self.large, *self.produced, self.searched, self.redeclared]

    async def prepare(self, client: Client) -> None:
        """Make every stream, table and type that clients ask for."""
        for written in [*self.singles, *self.arrays, self.large, *self.produced]:
            await streams.create(client, written)
        await streams.create(client, self.retained, **streams.RETENTION)
        for written in (self.searched, self.redeclared):
            await searching.declare(client, written)
        await tables.register(client)
        await entities.register(client)
        await waking.follow_rows(client)

    def clients(self) -> list[tuple[str, Callable[[Client], Awaitable[None]]]]:
        """Every client with its kind."""
        single, array = self.singles, self.arrays
        return [
            *(("append", streams.Singles(written)) for written in single),
            *(("append array", streams.Arrays(written)) for written in array),
            ("append large array", streams.Arrays(self.large, 10_000, 3.0)),
            ("catch-up", streams.CatchUp([self.large])),
            *(("producer", streams.Producer(written)) for written in self.produced),
            *(("catch-up", streams.CatchUp([*single, *array, *self.produced])) for _ in range(2)),
            *(("long-poll", streams.LongPoll(written)) for written in single * 3),
            *(("server-sent events", streams.Events(written)) for written in single * 3),
            ("read by key", streams.Keys(single[0])),
            *(("fork and delete", streams.Forks(number)) for number in range(2)),
            ("append array", streams.Arrays(self.retained)),
            ("retained read", streams.Retained(self.retained)),
            ("append searched", streams.Arrays(self.searched)),
            *(("search", searching.Search(self.searched)) for _ in range(2)),
            *(("aggregate", searching.Aggregate(self.searched, "requests", "service", "1h", "1m")) for _ in range(2)),
            ("aggregate users", searching.Aggregate(self.searched, "users", "user", "1h", pause_s=5.0)),
            ("filtered read", searching.Filtered(self.searched)),
            ("search configuration", searching.Redeclared(self.redeclared)),
            *(("schema versions", searching.Versions(number)) for number in range(2)),
            ("push", tables.Push(self.pushed, 1, 0.02)),
            ("push", tables.Push(self.pushed, 100, 0.3)),
            ("get", tables.Rows(self.pushed, 1, 0.05)),
            ("push large", tables.Push(self.pushed, 5_000, 5.0)),
            ("batch get", tables.Rows(self.pushed, 200, 0.5)),
            ("batch get large", tables.Rows(self.pushed, 5_000, 5.0)),
            ("register", tables.Registrations(self.pushed)),
            *(("observe", entities.Observe(self.observed)) for _ in range(2)),
            ("observe many", entities.Observe(self.observed, 200, 5.0)),
            ("read entity", entities.Read(self.observed)),
            ("correct", entities.Correct(0, self.observed)),
            ("erase", entities.Erase(self.observed)),
            ("change rows", waking.Change(self._changes)),
            *(("wait for touch", waking.Wait(self._changes, row)) for row in range(waking.ROWS)),
            *(("webhook", waking.Subscribe(self._hooks, f"single-{number}", number)) for number in range(2)),
        ]

    async def read_back(self, client: Client, probed: Written) -> int:
        """Hold everything that was acknowledged against what is there; answers how many events that were."""
        for written in [*self.kept, probed]:
            _, number = await streams.read_on(client, written, streams.START, 0, pages=sys.maxsize)
            there = written.may_follow(number, written.acknowledged)
            client.check(there, lambda: f"{written.name} ends at {number} of {written.acknowledged}")  # noqa: B023
        for first in range(0, tables.USERS, 100):
            await _patiently(client, tables.check_rows, self.pushed, list(range(first, first + 100)))
        for person in self.observed.ids:
            await _patiently(client, entities.check_person, self.observed, person)
        for entity in self.observed.erased:
            await entities.check_erased(client, entity)
        return sum(written.acknowledged for written in [*self.kept, probed])


async def _patiently(client: Client, check: Callable[..., Awaitable[bool]], *values: object) -> None:
    for _ in range(30):
        if await check(client, *values):
            return
        await asyncio.sleep(1)
    raise Unexpected(f"the server was too busy to tell {values[1:]}")


def soak(
    seconds: float, space: Path, *, auto_tune: int | None = None, progress: Callable[[str], None] = lambda _: None
) -> Soak:
    """Put a server on an empty directory under load for so long, and hold it to its bounds."""
    target = _target(auto_tune)
    with serving(target, space) as server:
        with Sampler(server.process.pid, server.port, space) as sampler:
            found = Soak(seconds, auto_tune, sampler, Load(server.port, SEED), sampler.rss())
            asyncio.run(_under_load(found, server, progress))
            found.troubles += [*found.load.troubles, *judging.troubles(found.loaded, found.memory_limit)]
            _rest(found)
        _stop(found, server)
    _verify(found, space)
    return found


def _target(auto_tune: int | None) -> Target:
    target = with_pipeline(TARGETS[0]).with_settings(**SETTINGS)
    if auto_tune is not None:
        target = target.with_flags(f"--auto-tune={auto_tune}")
    return target


async def _under_load(found: Soak, server: Running, progress: Callable[[str], None]) -> None:
    load, probe = found.load, Probe(server.port)
    async with waking.Hooks().listening() as hooks:
        everything = Everything(hooks)
        async with load.client("prepare") as client:
            await everything.prepare(client)
        clients = [asyncio.create_task(load.keep(kind, client)) for kind, client in everything.clients()]
        began = time.monotonic()
        while (passed := time.monotonic() - began) < found.seconds:
            last = found.sampler.samples[-1]
            progress(f"{passed:,.0f} s: {last.rss / judging.MB:,.0f} MB, {last.descriptors} descriptors")
            await asyncio.sleep(min(_PROGRESS_S, found.seconds - passed))
        found.loaded = found.sampler.samples[:]
        load.stopping.set()
        _, late = await asyncio.wait(clients, timeout=_DRAIN_S)
        for client in late:
            client.cancel()
            load.trouble(f"a client got no answer for {_DRAIN_S:g} s: {client}")
        found.probed = await asyncio.to_thread(probe.end)
        try:
            async with load.client("read back") as client:
                found.read_back = await everything.read_back(client, found.probed.written)
        except (Unexpected, OSError) as wrong:
            load.trouble(f"read back: {wrong!r}")


def _rest(found: Soak) -> None:
    """Wait until the memory of an idle server is down to its floor, but not for long."""
    until = time.monotonic() + REST_S
    while True:
        found.floor = found.started_rss + UNACCOUNTED_BYTES + found.sampler.caches()
        found.rested_rss, found.rested_files = found.sampler.rss(), found.sampler.rss("RssFile")
        if found.rested_rss <= found.floor:
            return
        if time.monotonic() > until:
            break
        time.sleep(1)
    held, most = found.rested_rss / judging.MB, found.floor / judging.MB
    found.troubles.append(f"the idle server holds {held:,.0f} MB after {REST_S:g} s, and may hold {most:,.0f}")


def _stop(found: Soak, server: Running) -> None:
    server.process.terminate()
    try:
        code = server.process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        found.troubles.append(f"the server did not stop within {_STOP_S:g} s")
        return
    if code:
        found.troubles.append(f"the server ended with {code}")


def _verify(found: Soak, space: Path) -> None:
    headrace = str(Path(sys.executable).with_name("headrace"))
    command = [headrace, "verify", "--data-dir", str(space), "--json"]
    run = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    if run.returncode:
        found.troubles.append(f"verify answers {run.returncode}: {run.stdout[-500:]} {run.stderr[-500:]}")


def lines(found: Soak) -> str:
    """The table that is printed."""
    samples, probed, mb = found.sampler.samples, found.probed, judging.MB
    assert probed is not None
    tuned = "default settings" if found.auto_tune is None else f"--auto-tune={found.auto_tune}"
    rows = [
        ("memory of the server (RSS), most", f"{found.sampler.most('rss') / mb:,.0f} MB"),
        ("  at the start, idle at the end", f"{found.started_rss / mb:,.0f} MB, {found.rested_rss / mb:,.0f} MB"),
        ("  pages of files, idle at the end", f"{found.rested_files / mb:,.0f} MB"),
        ("  limit, floor of the idle server", f"{found.memory_limit / mb:,.0f} MB, {found.floor / mb:,.0f} MB"),
        ("memory of the pipeline, most", f"{found.sampler.most('others_rss') / mb:,.0f} MB"),
        *((name, _course(found.loaded, key)) for name, key in _ROWS),
        ("disk, at the end", f"{samples[-1].disk / mb:,.0f} MB"),
        ("appends beside the load", f"{len(probed.seconds):,}"),
        ("  p50, p99, longest", ", ".join(f"{probed.quantile(share) * 1e3:,.0f} ms" for share in (0.5, 0.99, 1.0))),
        *((name, f"{value:,g}") for name, value in sorted(found.sampler.metrics.items()) if "limit" not in name),
        ("events read back", f"{found.read_back:,}"),
        ("answers held against the model", f"{sum(found.load.checks.values()):,}"),
        *((f"answers {status} {code}".strip(), count) for (status, code), count in _statuses(found)),
    ]
    head = f"A soak of {found.seconds / 60:g} minutes with {tuned}"
    return "\n".join([head, *(f"  {name:<40}{value}" for name, value in rows)])


_ROWS = (
    ("descriptors", "descriptors"),
    ("  of deleted files", "deleted"),
    ("threads", "threads"),
    ("write-ahead log, bytes", "wal"),
    ("memory, bytes", "rss"),
)


def _course(samples: list[Sample], name: str) -> str:
    """From where to where something went under load."""
    values = [getattr(sample, name) for sample in samples]
    grown = judging.growth(samples, name)
    return f"{values[0]:,}, at most {max(values):,}; grew by {grown:,.0f} after the warm-up"


def _statuses(found: Soak) -> list[tuple[tuple[int, str], str]]:
    """How often there was each status and code, with the kinds of clients that got an error."""
    counts: Counter[tuple[int, str]] = Counter()
    kinds: dict[tuple[int, str], Counter[str]] = {}
    for (kind, status, code), count in found.load.answers.items():
        counts[status, code] += count
        kinds.setdefault((status, code), Counter())[kind] += count
    for status, count in (found.probed.refused if found.probed else {}).items():
        counts[status, ""] += count
        kinds.setdefault((status, ""), Counter())["probe"] += count
    return [(key, f"{count:,}{_named(kinds[key]) if key[0] >= 400 else ''}") for key, count in sorted(counts.items())]


def _named(kinds: Counter[str]) -> str:
    return f"  ({', '.join(f'{kind} {count:,}' for kind, count in kinds.most_common(4))})"
