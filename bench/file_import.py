"""Import of files: rows a second from a cold command to the last row on disk, and what they cost both processes.

Each file has the same web requests, in six fields. A fresh server, with its default settings, takes them; the stream,
the schema, the search fields and the rollup are made by the import, and segments are sealed meanwhile. The command is
timed whole: the start of its process, both passes over the file, and every append.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

from bench.driver import DriverFailed, Sample, difference
from bench.scale import Scale
from bench.search import Marked
from bench.searching.rows import Promise
from bench.serving import Running, running
from bench.targets import Target

LEFT_OUT = dict.fromkeys(("prisma", "prisma-tuned", "reference", "redis"), "they have no import")

FORMATS = {"csv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet"}
#: The formats that have a bar.
JUDGED = ("csv", "jsonl")
LEAST_ROWS, MOST_CPU_US = 300_000.0, 6.6
_COPIES = {"csv": "(FORMAT csv, HEADER)", "jsonl": "(FORMAT json)", "parquet": "(FORMAT parquet)"}
_ROWS = """
    SELECT strftime(TIMESTAMP '2026-11-15' + to_milliseconds(number * 430), '%Y-%m-%dT%H:%M:%S.%gZ') AS "at",
        ['web', 'api', 'auth', 'cart'][1 + (hash(number) % 4)::INT] AS service,
        '/p/' || (hash(number * 7) % 1000) AS path,
        [200, 200, 200, 404, 503][1 + (hash(number * 3) % 5)::INT] AS status,
        round(-ln((hash(number * 5) % 1000000 + 1) / 1000000) * 80, 2) AS duration_ms,
        CASE WHEN hash(number * 11) % 10 > 0 THEN 'user' || (hash(number * 13) % 5000) END AS user
    FROM range({rows}) AS numbers(number)"""
_TICKS = os.sysconf("SC_CLK_TCK")

Value = Callable[[str, str], float | None]


def rate_row(name: str) -> str:
    return f"import of {FORMATS[name]}"


def cpu_row(name: str, process: str) -> str:
    return f"import of {FORMATS[name]}, CPU of the {process} per row"


def file_imports(target: Target, space: Path, scale: Scale) -> list[Sample]:
    """Import a file of each format into a server of its own."""
    samples: list[Sample] = []
    for name in FORMATS:
        path = space / f"requests.{name}"
        with duckdb.connect() as connection:
            connection.execute(f"COPY ({_ROWS.format(rows=scale.imported_rows)}) TO '{path}' {_COPIES[name]}")
        try:
            with running(target, space) as server:
                samples += _measure(server, name, path, scale.imported_rows)
        finally:
            path.unlink()
    return samples


def promises(value: Value) -> Iterator[Promise]:
    """What a run can judge."""
    for name in JUDGED:
        if rate := value(rate_row(name), "headrace"):
            yield Promise(f"{rate_row(name)}, rows per second (at least {LEAST_ROWS:,.0f})", rate, rate >= LEAST_ROWS)
            cpu = sum(value(cpu_row(name, process), "headrace") or 0 for process in ("command", "server"))
            text = f"{rate_row(name)}, CPU of both processes per row in µs (at most {MOST_CPU_US:g})"
            yield Promise(text, cpu, cpu <= MOST_CPU_US)


def _measure(server: Running, name: str, path: Path, rows: int) -> Iterator[Sample]:
    command = [str(Path(sys.executable).with_name("headrace")), "import", str(path), "--stream", "requests", "--yes"]
    began, before = time.perf_counter(), _cpu_seconds(server)
    environ = {**os.environ, "HEADRACE_URL": f"http://127.0.0.1:{server.port}"}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds, server_seconds = time.perf_counter() - began, _cpu_seconds(server) - before
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise DriverFailed(f"the import of {path.name} ended with {process.returncode}")
    note = difference(rows, json.loads(printed)["appended"])
    command_seconds = used.ru_utime + used.ru_stime
    mark = f"the command held {used.ru_maxrss / 1024:,.0f} MB at most"
    yield Marked(rate_row(name), rows / seconds, "/s", 0, note, mark=mark)
    for kind, taken in (("command", command_seconds), ("server", server_seconds)):
        yield Sample(cpu_row(name, kind), taken / rows * 1e6, "µs")


def _cpu_seconds(server: Running) -> float:
    """The processor time that the server's process has taken."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
