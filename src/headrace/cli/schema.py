"""``headrace schema``: show, plan and apply changes of the schema and the profile of a stream."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from headrace.cli import output, plans
from headrace.cli.arguments import LOCAL, Remote, document
from headrace.cli.import_files import show_proposal
from headrace.cli.output import AsJson, DryRun, UsageError, Yes
from headrace.errors import EventsDoNotFit, HeadraceError

if TYPE_CHECKING:
    from headrace.client import Plan, Stream
    from headrace.schema.field_edits import FieldEdits

DESTRUCTIVE = 3
#: The profile of streams that have none of the others.
GENERIC = "generic"

_BREAKING = ("destructive", "forbidden")
_NEXT_STEPS = {
    ("lens_required", ""): "Pass a lens that carries older events over the change: --lens FILE.",
    ("lens_unsound", ""): "Mend the lens, or let the new schema allow what the lens makes of older events.",
    ("conflict", ""): "Look at `headrace schema show {name}`, and begin from its current version.",
    ("registry_full", ""): "Make a new stream with this schema, and go on there.",
    ("bad_request", "/search"): "Pass --schema and --search together.",
    ("bad_request", "/schema"): "If the stored events fit it, add --first-on-data. If not, make a new stream with this "
    "schema, then copy the events: `headrace stream read {name} | headrace stream append NEW`.",
}
_ELSE = "Mend it where the pointers say, and plan again."

Name = Annotated[str, Parameter(help="The stream.")]
OnData = Annotated[bool, Parameter(negative=(), help="Hold the change against every stored event too.")]
ProfileKind = Annotated[str, Parameter(help="generic, evlog, metrics, state-protocol or otel-traces.")]
SettingsFile = Annotated[Path | None, Parameter(help="A file with its settings as JSON; none: as they are by default.")]
SchemaFile = Annotated[Path, Parameter(help="A file with a JSON Schema.")]

app = App(
    name="schema",
    help="Show, plan and apply changes of a stream's schema.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace schema plan orders --schema v2.json --lens lens.json --on-data",
        "headrace schema apply orders --schema v2.json --lens lens.json",
        "headrace schema apply orders --search search.json",
        "headrace schema evolve orders --rename qty=quantity --add region:string=eu",
        "headrace schema diff v1.json v2.json",
    ),
)

profile_app = App(
    name="profile",
    help="Show and set what a stream means.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace profile set requests evlog --dry-run",
        "headrace profile set requests evlog settings.json",
        "headrace profile show requests",
    ),
)


class PlanRefused(HeadraceError):
    """The server refuses this change; ``refusals`` has every reason."""

    code = "plan_refused"
    status = 400


@Parameter(name="*")
@dataclass(frozen=True)
class SchemaChange:
    """The parts of a stream's schema to change; what is left out stays as it is."""

    schema: Annotated[Path | None, Parameter(help="A file with the next JSON Schema.")] = None
    lens: Annotated[Path | None, Parameter(help="A file with the lens that leads to it.")] = None
    search: Annotated[Path | None, Parameter(help="A file with the search configuration; null clears it.")] = None
    routing_key: Annotated[str | None, Parameter(help="Where events hold their key: a JSON Pointer.")] = None
    required: Annotated[bool | None, Parameter(negative="--optional", help="Whether each event must hold it.")] = None

    first_on_data: Annotated[
        bool, Parameter(negative=(), help="Install a first schema on stored events, if all of them fit.")
    ] = False

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``Stream.evolve``."""
        files = {"schema": self.schema, "lens": self.lens, "search": self.search}
        changes = {name: document(file) for name, file in files.items() if file is not None}
        if (self.routing_key is None) != (self.required is None):
            raise UsageError("--routing-key goes with --required or --optional, and they with it.")
        if self.routing_key is not None:
            changes["routing_key"] = {"jsonPointer": self.routing_key, "required": self.required}
        if not changes:
            raise UsageError("Say what to change: --schema, --search or --routing-key.")
        return {**changes, "first_on_data": self.first_on_data}


NO_CHANGE = SchemaChange()

Edits = list[str] | None


@Parameter(name="*")
@dataclass(frozen=True)
class FieldChanges:
    """Changes of fields, each of which may be repeated; they are made in this order."""

    remove: Annotated[Edits, Parameter(negative=(), help="NAME, or NAME=VALUE for readers of older versions.")] = None
    convert: Annotated[Edits, Parameter(negative=(), help="NAME:TYPE, its new type.")] = None
    rename: Annotated[Edits, Parameter(negative=(), help="OLD=NEW.")] = None
    add: Annotated[
        Edits,
        Parameter(negative=(), help="NAME:TYPE, or NAME:TYPE=VALUE for older events; ? behind a type allows null."),
    ] = None
    require: Annotated[Edits, Parameter(negative=(), help="NAME, which every new event must have.")] = None

    def edit(self, schema: Any) -> FieldEdits:
        """The edits of a schema."""
        from headrace.schema.field_edits import FieldEdits, read_new_field

        edits = FieldEdits(schema)
        for text in self.remove or ():
            edits.remove(*text.split("=", 1))
        for text in self.convert or ():
            edits.convert(*_split(text, ":", "NAME:TYPE"))
        for text in self.rename or ():
            edits.rename(*_split(text, "=", "OLD=NEW"))
        for text in self.add or ():
            edits.add(read_new_field(text))
        for text in self.require or ():
            edits.require(text)
        return edits


NO_FIELD_CHANGES = FieldChanges()


def _split(text: str, separator: str, form: str) -> tuple[str, str]:
    before, _, after = text.partition(separator)
    if not (before and after):
        raise UsageError(f"{text!r} does not have the form {form}.")
    return before, after


@app.command
def show(name: Name, /, *, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """Print the registry: every schema version, where it begins, and the lenses between them."""
    with remote.connect() as client:
        registry = client.stream(name).schema()
    if output.wants_table(json):
        plans.show_registry(registry)
    else:
        print(output.encode(registry))


@app.command
def plan(
    name: Name,
    /,
    *,
    change: SchemaChange = NO_CHANGE,
    on_data: OnData = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Print the plan of a change, and whether the server would apply it; changes nothing."""
    arguments = change.arguments()
    with remote.connect() as client:
        if on_data:
            return _plan_on_data(client.stream(name), arguments, json)
        planned = client.stream(name).evolve(**arguments, dry_run=True)
    _show(planned, json)
    _check(planned)
    return output.OK


@app.command(name="apply")
def apply_change(
    name: Name, /, *, change: SchemaChange = NO_CHANGE, yes: Yes = False, remote: Remote = LOCAL, json: AsJson = False
) -> None:
    """Apply a change, or print every reason against it; asks first if the change is destructive."""
    arguments = change.arguments()
    with remote.connect() as client:
        _plan_and_apply(client.stream(name), arguments, yes=yes, as_json=json)


@app.command
def evolve(
    name: Name,
    /,
    *,
    change: FieldChanges = NO_FIELD_CHANGES,
    dry_run: DryRun = False,
    yes: Yes = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Rename, add, remove or convert fields: the next schema and the lens that older events need are written for you.

    A field is a NAME or, inside an object, a JSON Pointer such as /user/name.
    """
    if change == NO_FIELD_CHANGES:
        raise UsageError("Say what to change: --rename, --add, --remove, --convert or --require.")
    with remote.connect() as client:
        stream = client.stream(name)
        registry = stream.schema()
        version = registry["currentVersion"]
        if not version:
            raise HeadraceError(f"{name} has no schema yet: `headrace schema infer {name}` proposes one.")
        edits = change.edit(registry["schemas"][str(version)])
        if edits.hidden:
            where = " or ".join(edits.hidden)
            print(
                f"note: the schema allows undeclared fields. Where older events have {where} already, "
                f"version {version + 1} does not show that value; --schema-version {version} still does.",
                file=sys.stderr,
            )
        arguments = {"schema": edits.schema, "lens": edits.lens(name, version)}
        _plan_and_apply(stream, arguments, dry_run=dry_run, yes=yes, as_json=json)


def _plan_and_apply(
    stream: Stream, arguments: dict[str, Any], *, dry_run: bool = False, yes: bool, as_json: bool
) -> None:
    """Show the plan of a change, then apply it; asks first if it is destructive or searches lose values."""
    planned = stream.evolve(**arguments, dry_run=True)
    if dry_run or planned.refusals or output.wants_table(as_json):
        _show(planned, as_json)
    _check(planned)
    if dry_run:
        return
    if planned.classification in _BREAKING:
        output.confirm(f"The change of {stream.name} is {planned.classification}. Apply it?", yes=yes)
    elif lost := [impact["subject"] for impact in planned.impact if impact["effect"] == "lost"]:
        output.confirm(f"The change of {stream.name} leaves {', '.join(lost)} without values. Apply it?", yes=yes)
    _report(_apply(stream, arguments, as_json), as_json)


def _report(done: Plan, as_json: bool) -> None:
    """Print the version that a stream has after a change, or the plan that was carried out."""
    if output.wants_table(as_json):
        print(f"{done.subject} is at version {done.registry['currentVersion']}.")
    else:
        _show(done, as_json)


@app.command
def infer(
    name: Name,
    /,
    *,
    timestamp: Annotated[str | None, Parameter(help="The field with an event's time; default: the likeliest.")] = None,
    open_schema: Annotated[bool, Parameter(name="--open", negative=(), help="Allow fields that no event has.")] = False,
    apply: Annotated[bool, Parameter(negative=(), help="Install what is proposed; asks first.")] = False,
    yes: Yes = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Propose a schema, search fields and a rollup that fit every event of a stream, and install them with --apply."""
    from headrace.client.importer.importer import infer_schema

    with remote.connect() as client:
        stream = client.stream(name)
        if apply and (version := stream.schema()["currentVersion"]):
            raise HeadraceError(f"{name} has a schema, version {version}: `headrace schema evolve {name}` changes it.")
        with output.running_count("events read") as advance:
            proposed = infer_schema(stream, timestamp=timestamp, is_open=open_schema, on_rows=advance)
        as_table = output.wants_table(json)
        if as_table or not apply:
            show_proposal(name, proposed, as_json=not as_table)
        if apply:
            search = msgspec.UNSET if proposed.search is None else proposed.search
            arguments: dict[str, Any] = {"schema": proposed.schema, "search": search, "first_on_data": True}
            _check(stream.evolve(**arguments, dry_run=True))
            output.confirm(f"Install this schema on the {proposed.rows:,} events of {name}?", yes=yes)
            _report(_apply(stream, arguments, json), json)


@app.command
def history(name: Name, /, *, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """List every revision of the registry, the oldest first."""
    with remote.connect() as client:
        revisions = client.stream(name).schema_history()
    columns = ("revision", "at", "version", "routing_key", "search")
    output.show_all(map(msgspec.structs.asdict, revisions), columns, as_json=json, format_row=_format_revision)


@app.command
def diff(old: SchemaFile, new: SchemaFile, /, *, json: AsJson = False) -> int:
    """Compare two schemas without a server; exit code 3 says that the change is destructive."""
    from headrace.schema.change import worst
    from headrace.schema.diff import diff as compare

    changes = compare(_schema(old), _schema(new))
    classification = worst(changes)
    documents = [change.dump() for change in changes]
    if output.wants_table(json):
        plans.show_changes(f"{old} to {new}", classification, documents)
    else:
        print(output.encode({"classification": classification, "changes": documents}))
    return DESTRUCTIVE if classification.breaking else output.OK


def _format_revision(revision: dict[str, Any]) -> dict[str, Any]:
    registry = revision["registry"]
    described = {"routing_key": plans.routing_key(registry), "search": plans.search(registry)}
    return {**revision, "version": registry["currentVersion"], **described}


def _plan_on_data(stream: Stream, arguments: dict[str, Any], as_json: bool) -> int:
    with output.progress_bar("looking at events") as report:
        verified = stream.verify(**arguments, tell=lambda progress: report(progress.events, progress.total))
    verification = verified.verification
    if output.wants_table(as_json):
        plans.show_plan(msgspec.to_builtins(verified.plan))
        plans.show_verdict(msgspec.to_builtins(verification))
    else:
        print(output.encode({**msgspec.to_builtins(verified.plan), "verification": verification}))
    if verification is not None and verification.state == "failed":
        raise HeadraceError(f"Not all events were looked at: {verification.reason}")
    _check(verified.plan)
    return output.OK if verification is None or verification.passed else output.FAILED


def _apply(stream: Stream, arguments: dict[str, Any], as_json: bool) -> Plan:
    """Apply a change, with its progress where stored events are checked for it."""
    if not arguments.get("first_on_data"):
        return stream.evolve(**arguments)
    try:
        with output.progress_bar("looking at events") as report:
            return stream.evolve(**arguments, on_progress=lambda progress: report(progress.events, progress.total))
    except EventsDoNotFit as refusal:
        if output.wants_table(as_json):
            plans.show_misfits(refusal.facts["failures"], sum(refusal.facts["failing"].values()))
        raise


def _show(planned: Plan, as_json: bool) -> None:
    if output.wants_table(as_json):
        plans.show_plan(msgspec.to_builtins(planned))
    else:
        print(output.encode(planned))


def _check(planned: Plan) -> None:
    """Raise the reason why a plan cannot be applied, with the next step."""
    if planned.refusals:
        first = planned.refusals[0]
        step = _NEXT_STEPS.get((first["code"], "")) or _NEXT_STEPS.get((first["code"], first["pointer"]), _ELSE)
        where = f"{first['pointer']}: " if first["message"].startswith("is ") else ""
        message = f"The change is refused: {where}{first['message']}\n{step.format(name=planned.subject)}"
        raise PlanRefused(message, refusals=planned.refusals)


def _schema(file: Path) -> Any:
    """The valid schema in a file."""
    from headrace.schema.document import problems

    schema = document(file)
    schema_problems = problems(schema)
    if schema_problems:
        reasons = "; ".join(f"{problem.pointer or 'the whole'}: {problem.reason}" for problem in schema_problems)
        raise UsageError(f"{file} is not a usable JSON Schema: {reasons}")
    return schema


@profile_app.command(name="show")
def show_profile(name: Name, /, *, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """Print the profile of a stream, with its settings."""
    with remote.connect() as client:
        output.show(client.stream(name).profile(), as_json=json)


@profile_app.command(name="set")
def set_profile(
    name: Name,
    kind: ProfileKind,
    file: SettingsFile = None,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Change the profile of a stream, or print every reason against it; asks first if it replaces another one."""
    settings = None if file is None else _settings(file, kind)
    with remote.connect() as client:
        stream = client.stream(name)
        planned = stream.plan_profile(kind, settings)
        if dry_run or planned.refusals or output.wants_table(json):
            _show(planned, json)
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
