"""The command table, and exit codes; commands are imported when they are run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from cyclopts import App, Group, Parameter

from headrace.cli import output
from headrace.cli.output import AsJson
from headrace.errors import HeadraceError


def version(*, json: AsJson = False) -> None:
    """Print the version."""
    if output.wants_table(json):
        print(sentence())
    else:
        output.show({"headrace": _own(), "python": platform.python_version()}, as_json=True)


def print_completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")], /) -> None:
    """Print the completion script of a shell."""
    print(app.generate_completion(shell=shell))


def sentence() -> str:
    """The version for people."""
    return f"headrace {_own()} (Python {platform.python_version()})"


def _own() -> str:
    return importlib.metadata.version("headrace")


app = App(
    name="headrace",
    help="Durable event streams over HTTP: append, follow, search, measure; features and entities from the same log.",
    help_epilogue=output.examples(
        "headrace up",
        "headrace stream create orders",
        "headrace stream append orders '{\"id\": 1}'",
        "headrace stream tail orders --offset -1",
    ),
    version=sentence,
    default_parameter=Parameter(show_default=output.format_default),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


class Command(NamedTuple):
    """A command: where it is defined, and its help; a noun has the examples of its verbs itself."""

    home: str
    name: str
    help: str
    examples: tuple[str, ...] = ()


COMMANDS = {
    "Run": (
        Command(
            "serve:up",
            "up",
            "Run everything on this machine: server and pipeline.",
            ("headrace up", "headrace up --port 8080 --data-dir /var/lib/headrace"),
        ),
        Command(
            "serve:serve",
            "serve",
            "Run the server alone.",
            ("headrace serve --port 8080", "headrace serve --object-store s3://bucket/headrace"),
        ),
        Command("pipeline:app", "pipeline", "Compute derived data on Spark."),
    ),
    "Streams": (
        Command("stream:app", "stream", "Create, append to, read and follow streams."),
        Command(
            "import_files:import_files",
            "import",
            "Import rows of files as events.\n\nA new stream gets a schema, search fields and a rollup, inferred from "
            "all rows. Every row is appended exactly once, even if the import is stopped and started again. Exit code "
            "5 says that some rows were not imported.",
            (
                "headrace import requests.csv --stream requests --dry-run",
                "headrace import logs/ --stream logs --yes --rejects bad.jsonl",
                "zcat orders.jsonl.gz | headrace import - --format jsonl --stream orders --yes",
            ),
        ),
        Command("schema:app", "schema", "Show, plan and apply changes of a stream's schema."),
        Command("schema:profile_app", "profile", "Show and set what a stream means."),
        Command(
            "search:search",
            "search",
            "Find events of a stream by a query.\n\nThe newest come first, or the best; fresh ones are among them.",
            (
                "headrace search web 'status:>=500 timeout' --snippets",
                "headrace search web 'service:api -tags:eu' --sort at:asc --all --json",
            ),
        ),
        Command(
            "aggregate:aggregate",
            "aggregate",
            "Measure events of a stream over time.\n\nPer pane of time and per group; fresh events always count.",
            (
                "headrace aggregate web requests --last 24h",
                "headrace aggregate web requests --from 2026-11-15 --interval 1h --by service --chart latency.p95",
            ),
        ),
        Command("touch:app", "touch", "Wait for changes of rows."),
    ),
    "Features and entities": (
        Command(
            "features:register",
            "register",
            "Say which features are computed from events.\n\nWhat the file declares is all that the app computes. Exit "
            "code 3 says that the registry does not allow it: state would be lost, or a name is another app's.",
            ("headrace register features.py --dry-run", "headrace register features.py"),
        ),
        Command("features:app", "table", "Get features by key, and list tables."),
        Command("operators:app", "operator", "List what features and rollups can compute."),
        Command("entity_type:app", "entity-type", "Show and change what entities look like."),
        Command("entity:app", "entity", "Store, read, correct and merge entities."),
    ),
    "Operate": (
        Command(
            "doctor:doctor",
            "doctor",
            "Check what this machine has for Headrace.\n\nExit code 1 says that something would not work.",
            ("headrace doctor", "headrace doctor --data-dir /var/lib/headrace"),
        ),
        Command("config:app", "config", "Show the configuration."),
        Command("key:app", "key", "Make, list and revoke API keys."),
        Command(
            "storage:backup",
            "backup",
            "Copy a data directory while a server runs on it.",
            ("headrace backup /backups/today",),
        ),
        Command(
            "storage:restore",
            "restore",
            "Fill a new data directory from a backup.\n\nA server goes on there from what was published since.",
            ("headrace restore /backups/today --data-dir ./restored",),
        ),
        Command(
            "storage:recover",
            "recover",
            "Fill a new data directory from an object store.\n\nWho does so becomes the writer of the store.",
            ("headrace recover --from s3://bucket/headrace --data-dir ./recovered",),
        ),
        Command(
            "storage:verify",
            "verify",
            "Check every object of a store against its manifest.\n\nExit code 1 says that one is damaged.",
            ("headrace verify", "headrace verify --object-store s3://bucket/headrace"),
        ),
        Command("main:version", "version", "Print the version.", ("headrace version",)),
        Command(
            "main:print_completion",
            "completion",
            "Print a script with which a shell completes commands and options.",
            ("headrace completion bash", "headrace completion zsh", "headrace completion fish"),
        ),
    ),
}

for position, (title, commands) in enumerate(COMMANDS.items(), 1):
    group = Group(title, sort_key=position)
    for order, command in enumerate(commands):
        home, name, text, lines = command
        ending = {"help_epilogue": output.examples(*lines)} if lines else {}
        app.command(f"headrace.cli.{home}", name=name, help=text, group=group, sort_key=order, **ending)
app["--help"].group = app["--version"].group = Group("Help", sort_key=len(COMMANDS) + 1)


def main() -> None:
    """The entry point of the ``headrace`` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code, which is 0 unless the command returns another one."""
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
        return output.print_error(error, as_json="--json" in arguments)
    return code or output.OK
