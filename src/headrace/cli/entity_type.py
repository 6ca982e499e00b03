"""``headrace entity-type``: show and change the schemas of entities, also from unknown fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from headrace.cli import output, plans
from headrace.cli.arguments import LOCAL, Remote, document
from headrace.cli.output import AsJson, DryRun, UsageError

if TYPE_CHECKING:
    from headrace.client.entity_types import SchemaVersion, TypeChange, TypeOptions

Type = Annotated[str, Parameter(help="The entity type.")]
Version = Annotated[str, Parameter(help="A version, such as 1.2.0.")]
File = Annotated[Path, Parameter(help="A file with the request as JSON.")]
Scope = Annotated[Literal["global", "user"] | None, Parameter(help="Everybody's schema, or one's own.")]

app = App(
    name="entity-type",
    help="Show and change what entities look like.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace entity-type register contact.json --activate",
        "headrace entity-type update contact change.json --dry-run",
        "headrace entity-type candidates contact",
        "headrace entity-type enhance contact --apply --migrate",
    ),
)


@Parameter(name="*")
@dataclass(frozen=True)
class ChangeOptions:
    """Options of every change of a type."""

    scope: Scope = None
    dry_run: DryRun = False
    force: Annotated[bool, Parameter(negative=(), help="Do it in spite of warnings about the name.")] = False

    def options(self) -> TypeOptions:
        """The options in the form of the client."""
        return {"scope": self.scope, "dry_run": self.dry_run or None, "force": self.force or None}


NO_OPTIONS = ChangeOptions()


@app.command(name="ls")
def list_types(*, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """List the active version of every type, global ones and your own."""
    from headrace.client.entities import EntityTypes

    with remote.connect() as client:
        output.show_all(
            map(_row, EntityTypes(client)), ("entity_type", "schema_version", "scope", "fields"), as_json=json
        )


@app.command
def show(
    entity_type: Type,
    /,
    *,
    schema_version: Annotated[str | None, Parameter(help="Another version than the active one.")] = None,
    scope: Scope = None,
    versions: Annotated[bool, Parameter(negative=(), help="List every version instead, the newest first.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Print the active version of a type, or another one."""
    from headrace.client.entities import EntityTypes

    with remote.connect() as client:
        types = EntityTypes(client)
        if versions:
            columns = ("schema_version", "scope", "active", "created_at", "fields")
            output.show_all(map(_row, types.versions(entity_type)), columns, as_json=json)
            return
        print(_pretty(types.get(entity_type, schema_version, scope), json))


@app.command
def register(
    file: File,
    /,
    *,
    activate: Annotated[bool, Parameter(negative=(), help="Make it the active version.")] = False,
    how: ChangeOptions = NO_OPTIONS,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Store a version of a type: entity_type, schema_version, schema_definition and reducer_config of a file."""
    from headrace.client import entity_types
    from headrace.client.entity_types import TypeChange

    registration = {**_read_object(file), **({"activate": True} if activate else {})}
    with remote.connect() as client:
        return _show(client.fetch(entity_types.register(registration, how.options()), TypeChange), json)


@app.command
def update(
    entity_type: Type, file: File, /, *, how: ChangeOptions = NO_OPTIONS, remote: Remote = LOCAL, json: AsJson = False
) -> int:
    """Make the next version from the active one: fields_to_add, fields_to_remove, converters_to_add … of a file."""
    return _change(remote, entity_type, "update", _read_object(file), how.options(), json)


@app.command
def activate(
    entity_type: Type,
    schema_version: Version,
    /,
    *,
    how: ChangeOptions = NO_OPTIONS,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Make a version the active one; activating an earlier one reverts a change."""
    options: TypeOptions = {"scope": how.scope, "dry_run": how.dry_run or None}
    return _change(remote, entity_type, "activate", {"schema_version": schema_version}, options, json)


@app.command
def candidates(entity_type: Type, /, *, scope: Scope = None, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """List candidates for fields from unknown values, with the evidence for and against them."""
    from headrace.client.entities import EntityTypes

    with remote.connect() as client:
        candidate_list = EntityTypes(client).candidates(entity_type, scope)
    if not output.wants_table(json):
        print(output.encode(candidate_list))
        return
    rows = (
        {**candidate, "reasons": [reason["message"] for reason in candidate["reasons"]]}
        for candidate in candidate_list["candidates"]
    )
    columns = ("fragment_key", "field_type", "frequency", "type_share", "sources", "promotable", "reasons")
    output.show_all(rows, columns, as_json=False)


@app.command
def enhance(
    entity_type: Type,
    /,
    *,
    field: Annotated[list[str] | None, Parameter(negative=(), help="Only this field; may be repeated.")] = None,
    apply: Annotated[
        bool, Parameter(negative=(), help="Really do it; else it is only said what would be done.")
    ] = False,
    migrate: Annotated[bool, Parameter(negative=(), help="Move the values that are there to the new fields.")] = False,
    scope: Scope = None,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Promote candidates to fields; a dry run without --apply."""
    enhancement = {"fields": field, "migrate_existing": migrate or None}
    return _change(remote, entity_type, "enhance", enhancement, {"scope": scope, "dry_run": not apply}, json)


@app.command
def export(
    entity_type: Type,
    directory: Annotated[Path, Parameter(help="Where the files go.")] = Path(),
    /,
    *,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Write every version to a file of its own; the same version is always the same bytes."""
    from headrace.client.entities import EntityTypes

    with remote.connect() as client:
        files = EntityTypes(client).export(entity_type)
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8", newline="")
    output.show_all(({"file": str(directory / path)} for path in files), ("file",), as_json=json)


def _change(
    remote: Remote, entity_type: str, verb: str, body: dict[str, Any], options: TypeOptions, as_json: bool
) -> int:
    from headrace.client import entity_types
    from headrace.client.entity_types import TypeChange

    with remote.connect() as client:
        return _show(client.fetch(entity_types.change(entity_type, verb, body, options), TypeChange), as_json)


def _show(done: TypeChange, as_json: bool) -> int:
    """Print what a change did or would do; a plan that would be refused is a failure."""
    if output.wants_table(as_json):
        plans.show_plan({"lens": None, **done.plan})
        for warning in done.warnings:
            print(f"  warning: {warning['message']} ({warning['code']})")
        state = "would be" if done.dry_run else "is"
        print(f"{done.entity_type} {state} at version {done.schema_version}{'' if done.active else ', not active'}.")
    else:
        print(output.encode(done))
    return output.OK if done.success else output.FAILED


def _row(version: SchemaVersion) -> dict[str, Any]:
    fields = list(version.schema_definition["fields"])
    return {**msgspec.structs.asdict(version), "fields": fields}


def _pretty(version: SchemaVersion, as_json: bool) -> str:
    encoded = msgspec.json.encode(version)
    return msgspec.json.format(encoded, indent=2).decode() if output.wants_table(as_json) else encoded.decode()


def _read_object(file: Path) -> dict[str, Any]:
    content = document(file)
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds no object")
    return content
