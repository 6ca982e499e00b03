"""SIGKILL of the Spark driver, its JVM and its executors at random moments: work is redone, nothing is doubled."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from headrace.format.object_names import companion_key
from headrace.pipeline.work import Work, is_open
from support.spark_stories import SETTINGS, Story, companions, pipeline

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


class Round(NamedTuple):
    """Who is killed, by a part of its command line, and after how many leases of a run on which master."""

    victim: str
    leases: int
    master: str = "local[2]"


ROUNDS = [
    Round("headrace.pipeline.driver", 2),
    Round("org.apache.spark.deploy.SparkSubmit", 1),
    Round("CoarseGrainedExecutorBackend", 2, "local-cluster[2,1,1024]"),
]
LONGEST_S = 1.0
ENVIRON = {**os.environ, "HEADRACE_PIPELINE__LEASE_UNITS": "6", "HEADRACE_PIPELINE__TASKS": "2"}


def family(root: int) -> Iterator[tuple[int, str]]:
    """A process and all that came of it, with their command lines."""
    pending = [root]
    while pending:
        process = pending.pop()
        place = Path(f"/proc/{process}")
        try:
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            children = [(thread / "children").read_text().split() for thread in (place / "task").iterdir()]
        except OSError:
            continue  # it has just ended
        yield process, command
        pending += [int(child) for found in children for child in found]


def killed(run: subprocess.Popen[str], part: str) -> bool:
    """Kill the first process of a run whose command line holds a text; whether there was one."""
    for process, command in family(run.pid):
        if part in command and process != run.pid:
            os.kill(process, signal.SIGKILL)
            return True
    return False


def ended(run: subprocess.Popen[str]) -> int:
    """The exit code of a run, which leaves nobody behind."""
    everyone = [process for process, _ in family(run.pid)]
    _, said = run.communicate(timeout=240)
    until = time.monotonic() + 30
    while left := [process for process in everyone if _lives(process)]:
        assert time.monotonic() < until, (left, said)
        time.sleep(0.05)
    return run.returncode


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_listed(server: ServerProcess, story: Story) -> None:
    """What is listed lies in the store as it was written, and describes every event at most once."""
    found = companions(server.data_dir)
    for stream, listed in found.items():
        for one in listed:
            for name, part in one.parts.items():
                [path] = (server.data_dir / "objects").glob(f"companions/*/*/{one.name}.{name}.parquet")
                assert path.as_posix().endswith(companion_key(stream, path.parent.name, one.name, name))
                content = path.read_bytes()
                assert len(content) == part.bytes
                assert hashlib.sha256(content).hexdigest() == part.sha256
        for one, following in pairwise(listed):
            assert one.end_seq <= following.first_seq, f"{stream}: {one.name} and {following.name} overlap"
    story.check_counts()


def wait_for_leases(work: Work, run: subprocess.Popen[str], count: int) -> None:
    """Wait until a run has leased so many times; what others had is in the past."""
    seen: set[str] = set()
    while len(seen) < count:
        assert run.poll() is None, "there is too little work"
        seen |= {lease["id"] for lease in work.status()["leases"]}
        time.sleep(0.05)


def test_a_killed_pipeline_leaves_everything_as_it_was_or_as_it_shall_be(start_server: StartServer) -> None:
    server = start_server(**SETTINGS)
    story, chance = Story(server.url), random.Random(5)
    with closing(Work(server.url)) as work:
        for victim, leases, master in ROUNDS:
            story.append("first", 300)
            story.append("second", 100)
            story.published()
            run = pipeline(server.url, "--master", master, environ=ENVIRON)
            try:
                wait_for_leases(work, run, leases)
                time.sleep(chance.uniform(0, LONGEST_S))
                while not killed(run, victim):
                    assert run.poll() is None, "it ended before it was killed"
                    time.sleep(0.05)
                assert ended(run) == 0
            finally:
                run.kill()
            check_listed(server, story)
            told = work.status()
            assert not told["due"] and not told["parked"], told
    story.check_covered()
    story.check()


def agreed(work: Work) -> dict[str, Any]:
    """What a server says about work, whose counts are those of its lists."""
    status = work.status()
    in_work = [unit for lease in status["leases"] for unit in lease["units"] if unit["outcome"] is None]
    assert {name: count for name, count in status["counts"].items() if name != "pipelines"} == {
        "due": len(status["due"]),
        "leases": len(status["leases"]),
        "units": len(in_work),
        "resting": len(status["resting"]),
        "parked": len(status["parked"]),
        "workers": sum(one["alive"] for one in status["workers"]),
    }
    assert status["complete"]
    return status


def kill_with_last_lease(work: Work, run: subprocess.Popen[str]) -> None:
    """Kill a whole pipeline while its driver holds the last lease, so that nobody gives it back."""
    while True:
        assert run.poll() is None, "it ended before it was killed"
        if work.status()["leases"]:
            stopped = [process for process, command in family(run.pid) if "headrace" in command]
            for process in stopped:
                os.kill(process, signal.SIGSTOP)
            status = agreed(work)
            if (status["due"], status["counts"]["leases"]) == ([], 1):
                for process in reversed(stopped):
                    os.kill(process, signal.SIGKILL)
                run.communicate(timeout=30)
                return
            for process in stopped:
                os.kill(process, signal.SIGCONT)
        time.sleep(0.02)


def test_the_last_lease_of_a_killed_driver_is_done_again_although_nothing_is_appended(
    start_server: StartServer,
) -> None:
    server = start_server(**SETTINGS, pipeline__lease_s="5")
    story = Story(server.url)
    story.append("only", 150)
    story.published()
    environ = ENVIRON | {"HEADRACE_PIPELINE__LEASE_UNITS": "256"}
    with closing(Work(server.url)) as work:
        assert is_open(agreed(work))
        first = pipeline(server.url, "--master", "local[1]", environ=environ)
        second = None
        try:
            kill_with_last_lease(work, first)
            status = agreed(work)
            assert (status["due"], status["counts"]["leases"]) == ([], 1), "nobody has given it back"
            second = pipeline(server.url, "--master", "local[1]", environ=environ)
            while second.poll() is None:
                assert is_open(agreed(work)) or second.wait(30) == 0
                time.sleep(0.05)
            assert ended(second) == 0
        finally:
            for run in (first, second):
                if run is not None:
                    run.kill()
        status = agreed(work)
    assert not is_open(status) and not status["parked"]
    dead, alive = sorted((one for one in status["workers"] if not one["local"]), key=lambda one: one["first_seen_at"])
    assert dead["done"] == 0
    assert dead["lost"] > 0
    assert dead["master"] == "local[1]"
    assert alive["done"] >= dead["lost"]
    assert alive["failed"] == 0
    assert alive["lost"] == 0
    check_listed(server, story)
    story.check_covered()
