"""``headrace pipeline``: compute derived data on Spark, and show the progress."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from headrace.cli import output
from headrace.cli.arguments import LOCAL, Remote
from headrace.cli.config import ConfigFile, SparkSettings
from headrace.cli.output import AsJson, UsageError
from headrace.errors import HeadraceError, Unavailable
from headrace.types import parse_duration_us

if TYPE_CHECKING:
    from headrace.client import Stream
    from headrace.pipeline.work import Work

app = App(
    name="pipeline",
    help="Compute derived data on Spark.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace pipeline --master 'local[4]'",
        "headrace pipeline --remote sc://spark:15002",
        "headrace pipeline status",
        "headrace pipeline run --stream orders --wait --timeout 10m",
    ),
)


@app.default
def pipeline(
    *,
    server: Remote = LOCAL,
    master: Annotated[str | None, Parameter(help="Spark master: local[*], spark://…, yarn, k8s://…")] = None,
    remote: Annotated[str | None, Parameter(help="A Spark Connect server: sc://host:port.")] = None,
    conf: SparkSettings = None,
    once: Annotated[bool, Parameter(negative=(), help="Do what is due, then end.")] = False,
    config: ConfigFile = None,
) -> int:
    """Do the work of a server on Spark until stopped."""
    from headrace.config import load, spark_settings
    from headrace.pipeline.runner import Runner

    overrides = {"pipeline.master": master, "pipeline.remote": remote}
    flags = {name: value for name, value in overrides.items() if value is not None} | spark_settings(conf or ())
    chosen = load(file=config, flags=flags)
    runner = Runner(server.url, chosen.pipeline, key=server.key or None, ca_file=server.ca_file, once=once)
    _log_to_stderr(
        f"Looks for work at {server.url}, and does it on {chosen.pipeline.remote or chosen.pipeline.master}."
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # In a thread: the handler may have interrupted the very wait whose lock stopping takes.
        signal.signal(number, lambda *_: threading.Thread(target=runner.stop).start())
    return runner.run()


@app.command
def status(*, server: Remote = LOCAL, json: AsJson = False) -> None:
    """Show what is due, what is being done, and what was parked and why."""
    with _work(server) as work:
        document = work.status()
    if not output.wants_table(json):
        print(output.encode(document))
        return
    show_overview(document)


@app.command
def run(
    *,
    stream: Annotated[str, Parameter(help="The stream that is due now.")],
    server: Remote = LOCAL,
    wait: Annotated[
        bool, Parameter(negative=(), help="Publish what it holds, and come back when all of that is indexed.")
    ] = False,
    timeout: Annotated[str | None, Parameter(help="How long to wait, such as 90s; for ever by default.")] = None,
    json: AsJson = False,
) -> int:
    """Index a stream now, even with few new events; parked work is retried.

    With --wait, 0 says that all of it is indexed, 1 that it cannot be, and 3 that the time is up.
    """
    if timeout is not None and not wait:
        raise UsageError("--timeout says how long to --wait, which is not asked for.")
    seconds = None if timeout is None else parse_duration_us(timeout, "timeout") / 1_000_000
    with _work(server) as work:
        outcome = work.run(stream, seal=wait)
        if not outcome["due"]:
            print(f"headrace: {stream} has no search configuration, so nothing is derived from it.", file=sys.stderr)
        elif wait:
            with server.connect() as client:
                outcome = wait_until_indexed(work, client.stream(stream), seconds)
        else:
            with server.connect() as client:
                _note_unpublished(client.stream(stream).details()["stream"], stream)
    output.show(outcome, as_json=json)
    return output.OK if outcome.get("complete", True) else output.TIMED_OUT


@app.command
def pause(*, server: Remote = LOCAL, json: AsJson = False) -> None:
    """Give out no more work; leased work is finished."""
    with _work(server) as work:
        output.show(work.pause(), as_json=json)


@app.command
def resume(*, server: Remote = LOCAL, json: AsJson = False) -> None:
    """Give out work again."""
    with _work(server) as work:
        output.show(work.resume(), as_json=json)


class RepeatFilter(logging.Filter):
    """Drops messages that repeat the last one."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message differs from the last one."""
        last, self._last = self._last, record.getMessage()
        return self._last != last


def _log_to_stderr(first: str) -> None:
    """Log what the pipeline does to stderr, beginning with this line."""
    handler = logging.StreamHandler()
    handler.addFilter(RepeatFilter())
    log = logging.getLogger("headrace.pipeline")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.info(first)


def _work(server: Remote) -> Work:
    from headrace.pipeline.work import Work

    return Work(server.url, server.key or None, server.ca_file)


Document = dict[str, Any]

_STREAMS = ("stream", "indexed", "of", "done")
_LEASES = ("worker", "since", "expires", "streams", "jobs", "units")
_WORKERS = ("worker", "alive", "host", "master", "since", "last_seen", "done", "jobs", "failed", "lost", "released")
_RESTING = ("stream", "job", "events", "attempts", "retry", "reason")
_PARKED = ("stream", "job", "events", "attempts", "last_attempt", "reason")


def show_overview(overview: Document) -> None:
    """Print the server's overview of work."""
    counts = overview["counts"]
    output.show(
        {
            "pipeline": "paused" if overview["paused"] else "running",
            # A server of an earlier version does not tell what it does not know.
            "pipelines": counts.get("pipelines", ""),
            "workers alive": counts.get("workers", ""),
            "streams due": counts["due"] if "complete" in overview else len(overview["due"]),
            "leases": counts["leases"],
            "units in work": counts["units"],
            "resting": counts.get("resting", ""),
            "parked": counts["parked"],
        },
        as_json=False,
    )
    workers = list(_workers(overview))
    addresses = tuple(name for name in ("ui", "event_log") if any(worker[name] for worker in workers))
    sections = (
        ((*_WORKERS, *addresses), workers),
        (_STREAMS, _streams(overview)),
        (_LEASES, _leases(overview)),
        (_RESTING, _resting(overview)),
        (_PARKED, _parked(overview)),
    )
    for columns, rows in sections:
        section = list(rows)
        if section:
            print()
            output.show_all(section, columns, as_json=False)


def _streams(overview: Document) -> Iterator[Document]:
    for stream in overview["streams"]:
        fraction = stream["done"] / stream["total"] if stream["total"] else 1.0
        yield {
            "stream": stream["stream"],
            "indexed": f"{stream['done']:,}",
            "of": f"{stream['total']:,}",
            "done": f"{fraction:.0%}",
        }


def _leases(overview: Document) -> Iterator[Document]:
    for lease in overview["leases"]:
        units = lease["units"]
        open_units = sum(unit["outcome"] is None for unit in units)
        yield {
            "worker": lease["worker"],
            "since": lease["granted_at"],
            "expires": lease["expires_at"],
            "streams": sorted({unit["stream"] or "(deleted)" for unit in units}),
            "jobs": sorted({unit["job"] for unit in units}),
            "units": f"{len(units) - open_units} of {len(units)}",
        }


def _workers(overview: Document) -> Iterator[Document]:
    for worker in overview.get("workers", ()):
        yield {
            "worker": f"{worker['worker']} (itself)" if worker["local"] else worker["worker"],
            "alive": "yes" if worker["alive"] else "no",
            "host": worker["host"] or "",
            "master": worker["master"] or "",
            "since": worker["first_seen_at"],
            "last_seen": worker["last_seen_at"],
            **{name: worker[name] for name in ("done", "failed", "lost", "released")},
            # A server of an earlier version does not tell these.
            "jobs": ", ".join(f"{job} {units}" for job, units in worker.get("jobs", {}).items()),
            **{name: worker.get(name) or "" for name in ("ui", "event_log")},
        }


def _resting(overview: Document) -> Iterator[Document]:
    for failure in overview.get("resting", ()):
        yield {
            "stream": failure["stream"],
            "job": failure["job"],
            "events": events(failure),
            "attempts": failure["attempts"],
            "retry": failure["retry_at"],
            "reason": failure["reason"],
        }


def _parked(overview: Document) -> Iterator[Document]:
    for failure in overview["parked"]:
        yield {
            "stream": failure["stream"],
            "job": failure["job"],
            "events": events(failure),
            "attempts": failure["attempts"],
            "last_attempt": failure["last_attempt_at"],
            "reason": failure["reason"],
        }


def events(span: Mapping[str, Any]) -> str:
    """A range of events as text."""
    first, count = span["first_seq"], span["count"]
    return f"events {first} to {first + count - 1}"


_POLL_S = 0.5
#: Longer than any pause before a failed unit is tried again: whoever is not listed for so long is not worked on.
_REST_S = 10.0
#: So many streams that are due or in work are named by the server.
_NAMED = 100


class Parked(HeadraceError):
    """A part of the stream has failed too often, and is not tried any more."""

    code = "parked"


def wait_until_indexed(work: Work, stream: Stream, timeout_s: float | None = None) -> Document:
    """Show progress until all events that a stream has now are published and indexed, or the time is up.

    Raises where a part of it is parked, or no work is given out.
    """
    waiting = _IndexWait(work, stream)
    deadline = None if timeout_s is None else monotonic() + timeout_s
    with output.progress_bar(f"indexing {stream.name}") as report:
        while True:
            status = work.status()
            _raise_if_stuck(status, stream.name)
            progress = next((listed for listed in status["streams"] if listed["stream"] == stream.name), None)
            if progress is not None:
                report(progress["done"], progress["total"])
            state = waiting.poll(status, is_listed=progress is not None)
            if state["complete"]:
                return state
            if deadline is not None and monotonic() >= deadline:
                print(f"headrace: The time is up: {waiting.reason(state)}", file=sys.stderr)
                return state
            sleep(_POLL_S)


class _IndexWait:
    """The state of waiting for a stream: the events that it had at the start, and printed warnings."""

    def __init__(self, work: Work, stream: Stream) -> None:
        self._work, self._stream = work, stream
        details = stream.details()["stream"]
        self._wanted = int(details["next_offset"])
        self._began = self._listed = monotonic()
        self._is_taken = self._has_warned = False
        pending = self._wanted - _published(details)
        self._is_published = pending <= 0
        if not self._wanted:
            print(f"headrace: {stream.name} has no events.", file=sys.stderr)
        elif pending > 0:
            print(f"headrace: {pending:,} events are not published yet; they are published first.", file=sys.stderr)

    def poll(self, status: Document, *, is_listed: bool) -> Document:
        """The number of published events, and whether all awaited ones are indexed."""
        now = monotonic()
        if is_listed or len(status["streams"]) >= _NAMED:
            self._listed = now
        if is_listed:
            self._note_whether_taken(status, now - self._began)
        details = self._stream.details()
        published = _published(details["stream"])
        is_indexed = bool(details["index_status"]["bundled_companions"]["fully_indexed_uploaded_segments"])
        is_complete = not is_listed and is_indexed and published >= self._wanted
        if published >= self._wanted and not self._is_published:
            self._is_published = True  # what was published since is due too
            self._work.run(self._stream.name)
        elif not is_complete and now - self._listed > _REST_S:
            # The server has restarted, or more was published than was due when it was asked.
            self._work.run(self._stream.name, seal=True)
            self._listed = now
        return {"stream": self._stream.name, "published": published, "complete": is_complete}

    def reason(self, state: Document) -> str:
        """Why the wait is not over."""
        missing = self._wanted - state["published"]
        if missing > 0:
            return f"{missing:,} events of {state['stream']} are not published; the log of the server may say why."
        if not self._is_taken:
            return f"nobody has taken the work on {state['stream']}; is `headrace pipeline` running?"
        return f"{state['stream']} is not indexed; `headrace pipeline status` says how far it is."

    def _note_whether_taken(self, status: Document, waited_s: float) -> None:
        """Note whether a worker has taken the stream, and warn once if none does for a while."""
        units = (unit for lease in status["leases"] for unit in lease["units"])
        if self._is_taken or any(unit["stream"] == self._stream.name for unit in units):
            self._is_taken = True
        elif waited_s > _REST_S and not self._has_warned:
            self._has_warned = True
            print("headrace: Nobody has taken the work yet; is `headrace pipeline` running?", file=sys.stderr)


def _note_unpublished(details: Document, stream: str) -> None:
    """Say that a stream has nothing that could be indexed, and how to change that."""
    waiting = int(details["next_offset"])
    if waiting and not _published(details):
        advice = f"`headrace stream seal {stream}` publishes them now, and --wait does so before it waits"
        print(
            f"headrace: None of the {waiting:,} events of {stream} is published, so nothing is indexed: {advice}.",
            file=sys.stderr,
        )


def _published(details: Document) -> int:
    return int(details["uploaded_through"]) + 1


def _raise_if_stuck(status: Document, stream: str) -> None:
    if status["paused"]:
        raise Unavailable("No work is given out: `headrace pipeline resume` lets it go on.", reason="paused")
    parked = next((failure for failure in status["parked"] if failure["stream"] == stream), None)
    if parked is not None:
        raise Parked(
            f"The job {parked['job']} has failed {parked['attempts']} times on {events(parked)}: {parked['reason']}",
            **parked,
        )
