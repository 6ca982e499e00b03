"""``headrace pipeline``: what people and programs are told about work, and the wait for it. No Spark runs here."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.cli import output
from headrace.cli import pipeline as cli_pipeline
from headrace.cli.pipeline import Parked, RepeatFilter, wait_until_indexed
from headrace.pipeline.work import Work
from headrace.storage import database
from headrace.storage.work import FailureRow
from headrace.storage.work import Work as Rows
from support.log_stream import SEARCH, Logs
from support.plain_worker import Worker
from support.polling import wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

COMMAND = [sys.executable, "-c", "from headrace.cli.main import main; main()"]


@pytest.fixture(scope="module")
def sealing(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that publishes at once; few events are not worth the work unless someone asks."""
    soon = type(server)(tmp_path_factory.mktemp("soon") / "data", {"storage__seal_age_s": "0"}).start()
    yield soon
    soon.kill()


@pytest.fixture
def at(sealing: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    monkeypatch.setenv("HEADRACE_URL", sealing.url)
    monkeypatch.delenv("HEADRACE_KEY", raising=False)
    return sealing


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone is looking, at a wide terminal."""
    monkeypatch.setattr(output, "wants_table", lambda as_json: not as_json)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def stream(at: ServerProcess, name: str) -> Iterator[str]:
    """A stream with 50 published events that nobody has indexed."""
    logs = Logs(at.url)
    logs.create(name, SEARCH)
    logs.append(name, 0, 50)
    wait_until(lambda: logs.published(name) >= 50)
    yield name
    logs.ask("DELETE", f"/v1/stream/{name}")


def leased(at: ServerProcess) -> Any:
    return Logs(at.url).ask("POST", "/v1/work/lease", {"worker": "somebody", "limit": 4})


def test_programs_get_the_whole_story(at: ServerProcess, headrace: Headrace, stream: str) -> None:
    assert headrace("pipeline", "run", "--stream", stream).lines == [{"stream": stream, "due": True}]
    (told,) = headrace("pipeline", "status").lines
    assert set(told) == {*("paused", "counts", "complete", "due", "streams", "leases", "resting", "parked", "workers")}
    assert {"stream": stream, "done": 0, "total": 50} in told["streams"]


def test_nothing_published_is_said_where_nobody_waits(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, headrace: Headrace, name: str
) -> None:
    monkeypatch.setenv("HEADRACE_URL", server.url)
    logs = Logs(server.url)
    logs.create(name, SEARCH)
    logs.append(name, 0, 3)
    run = headrace("pipeline", "run", "--stream", name)
    assert run.code == 0
    assert f"None of the 3 events of {name} is published" in run.err
    assert f"headrace stream seal {name}" in run.err
    assert headrace("stream", "seal", name).code == 0
    assert headrace("pipeline", "run", "--stream", name).err == ""


def test_people_see_streams_leases_and_what_is_parked(
    at: ServerProcess, headrace: Headrace, stream: str, people: None
) -> None:
    assert "streams due    0" in headrace("pipeline", "status").out.decode()
    headrace("pipeline", "run", "--stream", stream)
    due = headrace("pipeline", "status").out.decode()
    assert "pipeline       running" in due
    assert due.splitlines()[-1].split() == [stream, "0", "50", "0%"]
    granted = leased(at)
    working_on = headrace("pipeline", "status").out.decode()
    assert "somebody" in working_on
    assert "0 of 1" in working_on
    assert "workers alive  2" in working_on
    assert {"server", "somebody"} <= {line.split()[0] for line in working_on.splitlines() if line}
    park(at, stream, "list[int] of [bold]")
    parked = headrace("pipeline", "status").out.decode()
    assert "events 0 to 9" in parked
    assert "list[int] of [bold]" in parked
    lease = granted["lease"]
    Logs(at.url).ask("POST", f"/v1/work/leases/{lease['id']}/release", {"token": lease["token"]})


def park(at: ServerProcess, stream: str, reason: str) -> None:
    """Write down that the first ten events cannot be indexed."""
    now = time.time_ns() // 1000
    with closing(database.connect(at.data_dir / "headrace.db", cache_bytes=2**20)) as connection:
        (number,) = connection.execute("SELECT id FROM streams WHERE name = ?", (stream,)).fetchone()
        Rows(connection).save_failure(FailureRow(number, "index", 0, 10, 5, now, now, 0, 1, reason))


def test_waiting_ends_when_the_stream_is_indexed(at: ServerProcess, headrace: Headrace, stream: str) -> None:
    worker = threading.Thread(target=work_when_due, args=(at.url, stream))
    worker.start()
    done = headrace("pipeline", "run", "--stream", stream, "--wait")
    worker.join()
    assert done.code == 0
    assert done.err == ""
    assert done.lines == [{"stream": stream, "published": 50, "complete": True}]
    assert headrace("pipeline", "status").lines[0]["due"] == []


def work_when_due(url: str, stream: str) -> None:
    with Work(url) as work:
        wait_until(lambda: stream in work.status()["due"])
    Worker(url).work()


def test_waiting_says_so_where_nobody_works(
    at: ServerProcess, headrace: Headrace, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_pipeline, "_REST_S", 0.2)
    later = threading.Timer(2.0, Worker(at.url).work)
    later.start()
    done = headrace("pipeline", "run", "--stream", stream, "--wait")
    later.join()
    assert done.code == 0
    assert done.err.count("is `headrace pipeline` running?") == 1


def test_waiting_ends_where_a_part_is_parked(at: ServerProcess, headrace: Headrace, stream: str) -> None:
    headrace("pipeline", "run", "--stream", stream)
    park(at, stream, "no such thing")
    expected = pytest.raises(Parked, match="5 times on events 0 to 9: no such thing")
    with Work(at.url) as work, hr.Client(at.url) as client, expected:
        wait_until_indexed(work, client.stream(stream))


@pytest.fixture
def unpublished(server: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """A server that publishes late, with a stream of 30 events that are in its log alone."""
    monkeypatch.setenv("HEADRACE_URL", server.url)
    monkeypatch.delenv("HEADRACE_KEY", raising=False)
    logs = Logs(server.url)
    logs.create(name, SEARCH)
    logs.append(name, 0, 30)
    assert logs.published(name) == 0
    yield server
    logs.ask("DELETE", f"/v1/stream/{name}")


def test_waiting_publishes_first_and_says_so(unpublished: ServerProcess, name: str) -> None:
    waits = subprocess.Popen(
        [*COMMAND, "pipeline", "run", "--stream", name, "--wait", "--timeout", "60s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    work_when_due(unpublished.url, name)
    out, said = waits.communicate(timeout=60)
    assert waits.returncode == 0
    assert said == "headrace: 30 events are not published yet; they are published first.\n"
    assert json.loads(out) == {"stream": name, "published": 30, "complete": True}


def test_waiting_ends_with_3_and_the_reason_where_nobody_works(unpublished: ServerProcess, name: str) -> None:
    words = [*COMMAND, "pipeline", "run", "--stream", name, "--wait", "--timeout", "5s"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert json.loads(done.stdout) == {"stream": name, "published": 30, "complete": False}
    assert "The time is up: nobody has taken the work" in done.stderr
    assert "is `headrace pipeline` running?" in done.stderr


def test_waiting_for_a_stream_without_events_says_that_there_are_none(
    at: ServerProcess, headrace: Headrace, name: str
) -> None:
    Logs(at.url).create(name, SEARCH)
    done = headrace("pipeline", "run", "--stream", name, "--wait")
    assert done.code == 0
    assert done.lines == [{"stream": name, "published": 0, "complete": True}]
    assert f"{name} has no events" in done.err


def test_a_timeout_without_a_wait_is_refused(at: ServerProcess, headrace: Headrace, stream: str) -> None:
    done = headrace("pipeline", "run", "--stream", stream, "--timeout", "5s")
    assert done.code == 2
    assert done.out == b""
    assert "--wait" in done.err


def test_waiting_ends_with_1_where_a_part_is_parked_meanwhile(unpublished: ServerProcess, name: str) -> None:
    waits = subprocess.Popen(
        [*COMMAND, "pipeline", "run", "--stream", name, "--wait"], stderr=subprocess.PIPE, text=True
    )
    with Work(unpublished.url) as work:
        wait_until(lambda: name in work.status()["due"])
    park(unpublished, name, "no such thing")
    _, said = waits.communicate(timeout=60)
    assert waits.returncode == 1
    assert "5 times on events 0 to 9: no such thing" in said


def test_a_paused_pipeline_is_not_waited_for(at: ServerProcess, headrace: Headrace, stream: str) -> None:
    assert headrace("pipeline", "pause").lines == [{"paused": True}]
    try:
        done = headrace("pipeline", "run", "--stream", stream, "--wait")
        assert done.code == 1
        assert "headrace pipeline resume" in done.err
        headrace("pipeline", "run", "--stream", stream)
        once = headrace("pipeline", "--once")
        assert once.code == 1
        assert "work is left" in once.err
    finally:
        assert headrace("pipeline", "resume").lines == [{"paused": False}]


def test_a_stream_without_search_has_nothing_to_do(at: ServerProcess, headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    done = headrace("pipeline", "run", "--stream", name, "--wait")
    assert done.code == 0
    assert done.lines == [{"stream": name, "due": False}]
    assert "no search configuration" in done.err


def test_a_stream_that_is_not_there_is_refused(at: ServerProcess, headrace: Headrace, name: str) -> None:
    done = headrace("pipeline", "run", "--stream", name)
    assert done.code == 1
    assert "headrace stream ls" in done.err


def test_a_pipeline_with_nothing_to_do_ends_if_told_to(at: ServerProcess, headrace: Headrace) -> None:
    done = headrace("pipeline", "--once", "--master", "local[1]")
    assert done.code == 0
    assert done.out == b""
    assert f"Looks for work at {at.url}, and does it on local[1]." in done.err


def test_a_pipeline_without_a_server_ends_with_4(headrace: Headrace) -> None:
    assert headrace("pipeline", "--once", "--url", "http://127.0.0.1:1").code == 4
    assert headrace("pipeline", "status", "--url", "http://127.0.0.1:1").code == 4


def test_a_pipeline_waits_for_its_server_and_says_so_once(tmp_path: Path) -> None:
    words = [*COMMAND, "pipeline", "--url", "http://127.0.0.1:1"]
    environ = {"HEADRACE_PIPELINE__POLL_S": "0.01", "PATH": "/usr/bin"}
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environ, cwd=tmp_path)
    assert running.stderr is not None
    assert "Looks for work at" in running.stderr.readline()
    assert "no server answers" in running.stderr.readline()
    running.send_signal(signal.SIGTERM)
    _, rest = running.communicate(timeout=20)
    assert running.returncode == 0
    assert rest == ""


def test_only_news_passes() -> None:
    news = RepeatFilter()
    said = ["down", "down", "up", "down", "down"]
    records = [logging.LogRecord("x", logging.INFO, "", 0, text, (), None) for text in said]
    assert [news.filter(record) for record in records] == [True, False, True, True, False]
