"""``headrace pipeline``: derived data, computed on Spark; and a look at that work."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from headrace.cli import output
from headrace.cli.config import ConfigFile
from headrace.cli.output import AsJson
from headrace.cli.remote import LOCAL, Remote

if TYPE_CHECKING:
    from headrace.pipeline.work import Work

app = App(name="pipeline", help="Compute derived data on Spark.", version_flags=())

_COLUMNS = ("stream", "job", "unit", "state", "worker", "done", "total", "reason")


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

    given = {"pipeline.master": master, "pipeline.remote": remote}
    chosen = load(file=config, flags={name: value for name, value in given.items() if value is not None})
    runner = Runner(server.url, chosen.pipeline, key=server.key or None, ca_file=server.ca_file, once=once)
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    signal.signal(signal.SIGINT, lambda *_: runner.stop())
    return runner.run()


@app.command
def status(*, server: Remote = LOCAL, json: AsJson = False) -> None:
    """Show what is due, what is being done, and what was parked and why."""
    told = _work(server).status()
    if not output.wants_table(json):
        print(output.encode(told))
        return
    facts = {name: value for name, value in told.items() if not isinstance(value, list)}
    output.show(facts, as_json=False)
    output.show_all(_rows(told), _COLUMNS, as_json=False)


@app.command
def run(
    *,
    stream: Annotated[str, Parameter(help="The stream that is due now.")],
    server: Remote = LOCAL,
    wait: Annotated[bool, Parameter(negative=(), help="Come back when it is done.")] = False,
    json: AsJson = False,
) -> None:
    """Index a stream now, however little is new in it; what was parked is tried again."""
    work = _work(server)
    told = work.run(stream)
    if wait:
        _follow(work, stream)
        told = work.status()
    output.show(told, as_json=json)


@app.command
def pause(*, server: Remote = LOCAL, json: AsJson = False) -> None:
    """Hand out no more work; what is being done is finished."""
    output.show(_work(server).pause(), as_json=json)


@app.command
def resume(*, server: Remote = LOCAL, json: AsJson = False) -> None:
    """Hand out work again."""
    output.show(_work(server).resume(), as_json=json)


def _work(server: Remote) -> Work:
    from headrace.pipeline.work import Work

    return Work(server.url, server.key or None, server.ca_file)


def _rows(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Leased and parked units as lines of one table."""
    leased = [
        {**unit, "state": "leased", **{name: lease[name] for name in ("worker", "done", "total")}}
        for lease in told.get("leases", ())
        for unit in lease.get("units", ())
    ]
    return leased + [{**unit, "state": "parked"} for unit in told.get("parked", ())]


def _follow(work: Work, stream: str) -> None:
    """Show progress until nothing of a stream is due or leased."""
    from time import sleep

    with output.progressing(f"indexing {stream}") as tell:
        while True:
            told = work.status()
            due = next((one for one in told.get("streams", ()) if one["stream"] == stream), None)
            if due is None:
                return
            tell(due["done"], due["total"])
            sleep(0.5)
