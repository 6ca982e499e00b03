"""``headrace pipeline``: derived data, computed on Spark; and a look at that work."""

from __future__ import annotations

import logging
import signal
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headrace.cli import output
from headrace.cli.config import ConfigFile
from headrace.cli.output import AsJson, UsageError
from headrace.cli.remote import LOCAL, Remote
from headrace.types import parse_duration_us

if TYPE_CHECKING:
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
    once: Annotated[bool, Parameter(negative=(), help="Do what is due, then end.")] = False,
    config: ConfigFile = None,
) -> int:
    """Do the work of a server on Spark until told to stop."""
    from headrace.config import load
    from headrace.pipeline.runner import Runner

    overrides = {"pipeline.master": master, "pipeline.remote": remote}
    chosen = load(file=config, flags={name: value for name, value in overrides.items() if value is not None})
    runner = Runner(server.url, chosen.pipeline, key=server.key or None, ca_file=server.ca_file, once=once)
    _log_to_stderr(
        f"Looks for work at {server.url}, and does it on {chosen.pipeline.remote or chosen.pipeline.master}."
    )
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    signal.signal(signal.SIGINT, lambda *_: runner.stop())
    return runner.run()


@app.command
def status(*, server: Remote = LOCAL, json: AsJson = False) -> None:
    """Show what is due, what is being done, and what was parked and why."""
    with _work(server) as work:
        document = work.status()
    if not output.wants_table(json):
        print(output.encode(document))
        return
    from headrace.cli.work import show

    show(document)


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
    """Index a stream now, however little is new in it; what was parked is tried again.

    With --wait, 0 says that all of it is indexed, 1 that it cannot be, and 3 that the time is up.
    """
    from headrace.cli.work import TIMED_OUT, wait_until_indexed

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
    output.show(outcome, as_json=json)
    return output.OK if outcome.get("complete", True) else TIMED_OUT


@app.command
def pause(*, server: Remote = LOCAL, json: AsJson = False) -> None:
    """Hand out no more work; what is being done is finished."""
    with _work(server) as work:
        output.show(work.pause(), as_json=json)


@app.command
def resume(*, server: Remote = LOCAL, json: AsJson = False) -> None:
    """Hand out work again."""
    with _work(server) as work:
        output.show(work.resume(), as_json=json)


class RepeatFilter(logging.Filter):
    """Lets a message pass unless it says what the last one said."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is news."""
        last, self._last = self._last, record.getMessage()
        return self._last != last


def _log_to_stderr(first: str) -> None:
    """Let the pipeline say on stderr what it does, beginning with this."""
    handler = logging.StreamHandler()
    handler.addFilter(RepeatFilter())
    log = logging.getLogger("headrace.pipeline")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.info(first)


def _work(server: Remote) -> Work:
    from headrace.pipeline.work import Work

    return Work(server.url, server.key or None, server.ca_file)
