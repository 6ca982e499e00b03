"""The command table, and what a failure looks like from a shell; commands are imported when they are run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App

from headrace.cli import output
from headrace.errors import HeadraceError

app = App(
    name="headrace",
    help="Durable event streams over HTTP.",
    version_flags=(),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command("headrace.cli.serve:serve", name="serve", help="Run the server.")
app.command("headrace.cli.serve:up", name="up", help="Run everything on this machine.")
app.command("headrace.cli.stream:app", name="stream", help="Create, append to, read and follow streams.")
app.command("headrace.cli.schema:app", name="schema", help="Show, plan and apply changes of a stream's schema.")
app.command("headrace.cli.profile:app", name="profile", help="Show and set what a stream means.")
app.command("headrace.cli.search:search", name="search", help="Find events of a stream by a query.")
app.command("headrace.cli.aggregate:aggregate", name="aggregate", help="Measure events of a stream over time.")
app.command("headrace.cli.register:register", name="register", help="Say which features are computed from events.")
app.command("headrace.cli.table:app", name="table", help="Get features by key, and list tables.")
app.command("headrace.cli.touch:app", name="touch", help="Wait for changes of rows.")
app.command("headrace.cli.entity_type:app", name="entity-type", help="Show and change what entities look like.")
app.command("headrace.cli.entity:app", name="entity", help="Store, read, correct and merge entities.")
app.command("headrace.cli.pipeline:app", name="pipeline", help="Compute derived data on Spark.")
app.command("headrace.cli.doctor:doctor", name="doctor", help="Check what this machine has for Headrace.")
app.command("headrace.cli.key:app", name="key", help="Make, list and revoke API keys.")
app.command("headrace.cli.storage:recover", name="recover", help="Fill a new data directory from an object store.")
app.command("headrace.cli.storage:verify", name="verify", help="Check every object of a store against its manifest.")
app.command("headrace.cli.storage:backup", name="backup", help="Copy a data directory while a server runs on it.")
app.command("headrace.cli.storage:restore", name="restore", help="Fill a new data directory from a backup.")
app.command("headrace.cli.config:app", name="config", help="Show the configuration.")
app.command("headrace.cli.version:version", name="version", help="Print the version.")


def main() -> None:
    """The entry point of the ``headrace`` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code says how it went, and a command that has more than one to say returns it."""
    try:
        code = app(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return output.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has seen enough; keep Python from flushing into the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return output.OK
    except (HeadraceError, ValueError, OSError, ImportError) as error:
        return output.complain(error, as_json="--json" in arguments)
    return code or output.OK
