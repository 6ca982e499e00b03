"""Spark that is killed, in part or as a whole: every unit is done in the end, and none has failed."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.config import PipelineConfig
from headrace.pipeline import runner
from headrace.pipeline.driver import DriverConfig, orders_line
from headrace.pipeline.reports import take
from spark.clusters import PATIENCE_S, connect_server, environ, standalone_cluster
from support import s3
from support.spark_stories import SETTINGS, Story, pipeline

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SMALL = {"HEADRACE_PIPELINE__LEASE_UNITS": "4", "HEADRACE_PIPELINE__TASKS": "2"}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.service() as backend:
        made = s3.bucket(backend)
        for name, value in made.environ.items():
            monkeypatch.setenv(name, value)
        yield made
        made.close()


def story_of(server: ServerProcess) -> Story:
    """A stream whose segments are published."""
    story = Story(server.url)
    story.append("logs", 210)
    story.published()
    return story


def outcomes(server: ServerProcess) -> dict[str | None, int]:
    """How the units of all leases have ended."""
    with closing(sqlite3.connect(f"file:{server.data_dir}/headrace.db?mode=ro", uri=True)) as database:
        return dict(database.execute("SELECT outcome, count(*) FROM units GROUP BY outcome").fetchall())


def check_all_done(server: ServerProcess, story: Story) -> None:
    """Everything is indexed, and no unit has ever failed or been lost."""
    assert set(outcomes(server)) <= {"committed", "released", "gone"}, outcomes(server)
    story.check_covered()
    story.check_counts()


def kill_while_writing(bucket: s3.S3, run: subprocess.Popen[str], kill: Callable[[], None]) -> None:
    """Call ``kill`` while executors wait for the store to take a companion."""
    before = len(bucket.seen)
    bucket.released.clear()
    bucket.plan("PUT", "hang", "hang")
    until = time.monotonic() + PATIENCE_S
    while not any(method == "PUT" and "/companions/" in path for method, path in bucket.seen[before:]):
        assert run.poll() is None and time.monotonic() < until, (run.poll(), bucket.seen[before:])
        time.sleep(0.02)
    kill()
    bucket.released.set()


def ended(run: subprocess.Popen[str]) -> str:
    """What a run has said that ended well."""
    _, said = run.communicate(timeout=240)
    assert run.returncode == 0, said
    return said


def test_units_are_done_after_a_connect_server_was_restarted(
    bucket: s3.S3, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(**SETTINGS, storage__object_store=bucket.url)
    story = story_of(server)
    with connect_server(tmp_path / "spark", bucket.environ) as (url, spark):
        run = pipeline(server.url, "--remote", url, environ={**os.environ, **SMALL})
        try:
            kill_while_writing(bucket, run, spark.kill)
            spark.start()
            said = ended(run)
        finally:
            run.kill()
    check_all_done(server, story)
    assert re.search(r"the Spark driver failed, and starts again in \d+ s; its units are given back", said), said


def descendants(root: int) -> Iterator[tuple[int, str]]:
    """The processes that a process has started, with their command lines."""
    for entry in Path(f"/proc/{root}/task").glob("*/children"):
        for child in entry.read_text().split():
            yield int(child), Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            yield from descendants(int(child))


def kill(root: int, command: str) -> None:
    """SIGKILL for the first descendant with such a command."""
    os.kill(next(process for process, line in descendants(root) if command in line), signal.SIGKILL)


def test_units_are_done_after_executor_worker_and_driver_were_killed(
    bucket: s3.S3, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(**SETTINGS, storage__object_store=bucket.url)
    story = story_of(server)
    with standalone_cluster(tmp_path / "spark", bucket.environ) as (url, worker):
        given = environ(tmp_path / "spark", SMALL)
        run = pipeline(server.url, "--master", url, environ=given)
        try:
            kill_while_writing(bucket, run, lambda: kill(worker.pid, "CoarseGrainedExecutorBackend"))
            kill_while_writing(bucket, run, worker.kill)
            worker.start()
            kill_while_writing(bucket, run, lambda: kill(run.pid, "headrace.pipeline.driver"))
            said = ended(run)
        finally:
            run.kill()
    check_all_done(server, story)
    assert "it was killed by SIGKILL" in said


#: Loaded by every Python process: a worker of Spark that opens one segment is killed, as by a lack of memory.
POISON = """
import os, sys
if "pyspark.daemon" in sys.orig_argv:
    plain = os.stat
    def stat(path, *more, **named):
        if str(path).endswith(os.environ["POISON"]):
            os.kill(os.getpid(), 9)
        return plain(path, *more, **named)
    os.stat = stat
"""


def test_only_a_unit_that_kills_its_worker_fails(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(**{**SETTINGS, "pipeline__unit_bytes": "1"})
    story = story_of(server)
    first = min((server.data_dir / "objects" / "segments").rglob("*.parquet"), key=lambda path: path.name)
    (tmp_path / "sitecustomize.py").write_text(POISON)
    given = environ(tmp_path / "spark", {"PYTHONPATH": str(tmp_path), "POISON": first.name})
    script = str(Path(__file__).with_name("poisoned.py"))
    run = subprocess.run(
        [sys.executable, script, server.url], env=given, capture_output=True, text=True, timeout=240, check=True
    )
    said = run.stdout.splitlines()
    # The first two blame nobody; whether the unit is tried once more before nothing is due is a matter of time.
    assert len(said) >= 3 and all(line.startswith("executors were lost: ") for line in said), run
    counts = outcomes(server)
    assert set(counts) == {"released", "committed", "failed"} and counts["committed"] >= 3, counts
    with closing(sqlite3.connect(f"file:{server.data_dir}/headrace.db?mode=ro", uri=True)) as database:
        found = database.execute("SELECT job, first_seq, count, attempts, parked FROM failures").fetchall()
    assert found == [("index", 0, 50, counts["failed"], 0)]
    story.check_counts()


def broken_java(directory: Path, runs: str = "false") -> str:
    """A Java that has a version, and does something else than to run a program."""
    script = directory / "java" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text('#!/bin/sh\necho \'openjdk version "17.0.1"\' >&2\n[ "$1" = -version ] || ' + runs)
    script.chmod(0o755)
    return str(script.parent.parent)


@pytest.fixture
def broken(start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    """A server with work, on a machine where Spark cannot start; drivers follow each other without a pause."""
    server = start_server(**SETTINGS)
    story_of(server)
    monkeypatch.setenv("JAVA_HOME", broken_java(tmp_path))
    monkeypatch.setattr(runner, "_BACKOFF_S", (0.01, 0.01))
    return server


def test_once_gives_up_with_the_reason_where_spark_never_starts(
    broken: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    assert runner.Runner(broken.url, PipelineConfig(master="local[1]"), once=True).run() == 1
    last = caplog.records[-1]
    assert last.levelname == "ERROR"
    assert last.getMessage().startswith("the Spark driver failed 5 times in a row: Spark did not start: ")
    assert "JAVA_GATEWAY_EXITED" in last.getMessage()
    assert set(outcomes(broken)) == {"released"}


def test_a_pipeline_that_is_to_go_on_never_gives_up(
    broken: ServerProcess, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = runner.Runner(broken.url, PipelineConfig(master="local[1]"))
    thread = threading.Thread(target=running.run, daemon=True)
    with monkeypatch.context() as without_python:
        without_python.setattr(runner.sys, "executable", "/no/such/python")
        thread.start()
        await_message(caplog, "the pipeline failed, and goes on", runner.ATTEMPTS + 1)
    await_message(caplog, "its units are given back", 1)
    assert thread.is_alive()
    running.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_driver_whose_spark_never_starts_ends_and_holds_nothing(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(**SETTINGS)
    story_of(server)
    report = tmp_path / "report.json"
    orders = DriverConfig(server.url, None, None, PipelineConfig(master="local[1]"), once=True, report=str(report))
    script = "from headrace.pipeline import driver; driver._START_S = 2.0; driver.main()"
    started = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "JAVA_HOME": broken_java(tmp_path, "exec cat > /dev/null")},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert started.stdin is not None
    started.stdin.write(orders_line(orders))
    started.stdin.flush()
    assert started.wait(60) == 1
    started.communicate()
    assert take(report).reason == "Spark performed no task within 2 s; are there executors?"
    assert set(outcomes(server)) == {"released"}


def await_message(caplog: pytest.LogCaptureFixture, text: str, times: int) -> None:
    """Wait until something was logged so often."""
    until = time.monotonic() + 60
    while sum(text in record.getMessage() for record in caplog.records) < times:
        assert time.monotonic() < until, caplog.text
        time.sleep(0.01)
