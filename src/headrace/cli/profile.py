"""``headrace profile``: what a stream means, and what a change of it would do, before it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from headrace.cli import output, plans
from headrace.cli.arguments import document
from headrace.cli.output import AsJson, DryRun, UsageError, Yes
from headrace.cli.remote import LOCAL, Remote
from headrace.cli.schema import PlanRefused

GENERIC = "generic"

Name = Annotated[str, Parameter(help="The stream.")]
Kind = Annotated[str, Parameter(help="generic, evlog, metrics, state-protocol or otel-traces.")]
File = Annotated[Path | None, Parameter(help="A file with its settings as JSON; none: as they are by default.")]

app = App(
    name="profile",
    help="Show and set what a stream means.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace profile set requests evlog --dry-run",
        "headrace profile set requests evlog settings.json",
        "headrace profile show requests",
    ),
)


@app.command
def show(name: Name, /, *, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """Print the profile of a stream, with its settings."""
    with remote.connect() as client:
        output.show(client.stream(name).profile(), as_json=json)


@app.command(name="set")
def set_profile(
    name: Name,
    kind: Kind,
    file: File = None,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Change the profile of a stream, or say every reason why not; asks first where it takes another's place."""
    settings = None if file is None else _settings(file, kind)
    with remote.connect() as client:
        stream = client.stream(name)
        planned = stream.plan_profile(kind, settings)
        if dry_run or planned.refusals or output.wants_table(json):
            _show(msgspec.to_builtins(planned), json)
        if planned.refusals:
            raise PlanRefused(f"The change is refused: {planned.refusals[0]['message']}", refusals=planned.refusals)
        if dry_run:
            return
        current = stream.profile()["kind"]
        if current not in (GENERIC, kind):
            output.confirm(f"The profile of {name} is {current}. Set {kind} in its place?", yes=yes)
        done = stream.set_profile(kind, settings)
    if output.wants_table(json):
        print(f"The profile of {name} is {done['kind']}.")
    else:
        print(output.encode(done))


def _settings(file: Path, kind: str) -> dict[str, Any]:
    """The settings of a file, which may name the kind too."""
    settings = document(file)
    if not isinstance(settings, dict):
        raise UsageError(f"{file} has no settings: it must hold a JSON object")
    if settings.pop("kind", kind) != kind:
        raise UsageError(f"{file} has the settings of another profile than {kind}")
    return settings


def _show(planned: dict[str, Any], as_json: bool) -> None:
    if output.wants_table(as_json):
        plans.show_plan(planned)
    else:
        print(output.encode(planned))
