"""``headrace entity``: store, read, correct, merge and erase entities."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from headrace.cli import output
from headrace.cli.arguments import LOCAL, Remote, format_moment, positive_integer, rows
from headrace.cli.observations import NO_STREAM, FromStream, observe_events, observe_files
from headrace.cli.output import AsJson, UsageError, Yes

if TYPE_CHECKING:
    from headrace.client.entities import Entities
    from headrace.client.entity_requests import ErasurePlan, StoreOptions

Id = Annotated[str, Parameter(help="The id of an entity.")]
#: How a table shows a source without a name: the beginning of its id.
_SHORT_ID = 12

app = App(
    name="entity",
    help="Store, read, correct and merge entities.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace entity observe name=Ada email=ada@example.com --type contact --source crm-a",
        "headrace entity observe customers.csv --type contact --source crm-b",
        "headrace entity observe --from-stream orders --type contact --map name=/customer/name",
        "headrace entity store people.jsonl --entity-type contact",
        "headrace entity ls contact --search grace",
        "headrace entity get ent_29ab6436c7c63c95d8ccc613 --provenance",
        "headrace entity correct ent_29ab6436c7c63c95d8ccc613 email=ada@example.com city=null",
    ),
)


@app.command
def store(
    file: Annotated[Path, Parameter(help="A JSON array of entities, or one on each line.")],
    /,
    *,
    entity_type: Annotated[str | None, Parameter(help="The type of those that do not say theirs.")] = None,
    observed_at: Annotated[str | None, Parameter(help="When it was so, such as 2026-11-15; default: now.")] = None,
    source: Annotated[str | None, Parameter(help="The name of the source, such as crm-a.")] = None,
    source_priority: Annotated[int | None, Parameter(help="How much it counts.")] = None,
    observation_source: Annotated[str | None, Parameter(help="sensor, human, import, sync …")] = None,
    dry_run: Annotated[bool, Parameter(negative=(), help="Store nothing; say what would become of each.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Store the entities of a file; a second run of the same file stores nothing twice."""

    options: StoreOptions = {
        "observed_at": format_moment(observed_at),
        "source": source,
        "source_priority": source_priority,
        "observation_source": observation_source,
        "commit": False if dry_run else None,
    }
    entities = [_typed(row, entity_type, number) for number, row in enumerate(rows(file), 1)]
    counts: dict[str, int] = {}
    warnings: dict[str, int] = {}
    reasons: dict[str, str] = {}
    with _connect(remote, retries=True) as client, output.progress_bar("storing entities") as report:
        for stored in client.store_many(entities, **options):
            for entity in stored.entities:
                counts[entity.action] = counts.get(entity.action, 0) + 1
            for warning in stored.store_warnings:
                warnings[warning["code"]] = warnings.get(warning["code"], 0) + len(warning["items"])
                reasons.setdefault(warning["code"], warning["message"])
            report(sum(counts.values()), len(entities))
    if output.wants_table(json):
        warnings = {f"{code.lower()} (kept)": count for code, count in warnings.items()}
    output.show({"entities": len(entities), **counts, **warnings}, as_json=json)
    for code, reason in reasons.items():
        print(f"headrace: {code}: {reason}", file=sys.stderr)


@app.command
def observe(
    *words: Annotated[str, Parameter(help="FIELD=VALUE of one entity; or files, URLs, or - for stdin.")],
    entity_type: Annotated[str, Parameter(name=["--type", "--entity-type"], help="The type of the entities.")],
    source: Annotated[str | None, Parameter(help="The name of the source; default: that of --from-stream.")] = None,
    events: FromStream = NO_STREAM,
    observed_at: Annotated[str | None, Parameter(help="When it was so, such as 2026-11-15; default: now.")] = None,
    observed_at_field: Annotated[
        str | None, Parameter(help="The column, or the field of an event, that says so.")
    ] = None,
    source_priority: Annotated[int | None, Parameter(help="How much it counts.")] = None,
    observation_source: Annotated[str | None, Parameter(help="sensor, human, import, sync …")] = None,
    format: Annotated[
        Literal["csv", "tsv", "jsonl", "json", "parquet"] | None, Parameter(help="Default: by the file's name.")
    ] = None,
    rejects: Annotated[Path | None, Parameter(help="Write what cannot be stored to this file.")] = None,
    dry_run: Annotated[bool, Parameter(negative=(), help="Store nothing; say what would become of each.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Store what a source says of an entity, in each row of files or in each event of a stream.

    A second run stores nothing twice.
    """
    options: StoreOptions = {
        "observed_at": format_moment(observed_at),
        "source": source,
        "source_priority": source_priority,
        "observation_source": observation_source,
        "commit": False if dry_run else None,
    }
    if events.from_stream is not None:
        if words or format is not None:
            raise UsageError("--from-stream names what is observed: leave out files, FIELD=VALUE and --format.")
        return observe_events(entity_type, events, options, observed_at_field, rejects, remote, json)
    _check_source(words, source, events)
    if any("=" not in word or "://" in word.partition("=")[0] or Path(word).exists() for word in words):
        return observe_files(words, format, entity_type, options, observed_at_field, rejects, remote, json)
    if observed_at_field is not None:
        raise UsageError("--observed-at-field names a column of files; pass --observed-at.")
    with _connect(remote, retries=True) as entities:
        stored = entities.store({"entity_type": entity_type, **dict(map(_assigned, words))}, **options)
    [entity] = stored.entities
    facts = {"entity_id": entity.entity_id, "action": entity.action, "observation_id": entity.observation_id}
    output.show({**facts, "source": stored.source}, as_json=json)
    for warning in stored.store_warnings:
        print(f"headrace: {warning['code']}: {warning['message']}", file=sys.stderr)
    return output.OK


@app.command
def get(
    entity_id: Id,
    /,
    *,
    as_of: Annotated[str | None, Parameter(help="As was observed by this moment.")] = None,
    at_ingested: Annotated[str | None, Parameter(help="As was stored by this moment.")] = None,
    schema_version: Annotated[str | None, Parameter(help="Under this version of the schema.")] = None,
    scope: Annotated[Literal["global", "user"] | None, Parameter(help="Whose version that is.")] = None,
    provenance: Annotated[bool, Parameter(negative=(), help="Say where each value is from.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Print the snapshot of an entity, now or in the past."""
    with _connect(remote) as entities:
        times = {"as_of": format_moment(as_of), "at_ingested": format_moment(at_ingested)}
        entity = entities.get(entity_id, **times, schema_version=schema_version, scope=scope)
    if not output.wants_table(json):
        print(output.encode(entity))
        return
    facts = {"entity_id": entity.entity_id, "name": entity.canonical_name, "schema_version": entity.schema_version}
    output.show({**facts, "observations": entity.observation_count, "computed_at": entity.computed_at}, as_json=False)
    print()
    shown = (
        {
            "field": name,
            "value": _format_field(value),
            "source": "\n".join(map(_format_source, entity.sources.get(name, ()))) or "(correction)",
            "observation": entity.provenance.get(name, "").replace(",", "\n"),
        }
        for name, value in entity.snapshot.items()
    )
    columns = ("field", "value", "source", "observation") if provenance else ("field", "value")
    output.show_all(shown, columns, as_json=False)


@app.command(name="ls")
def list_entities(
    entity_type: Annotated[str | None, Parameter(help="Only of this type.")] = None,
    /,
    *,
    search: Annotated[str | None, Parameter(help="Only those whose name holds this.")] = None,
    source: Annotated[str | None, Parameter(help="Only those with a value from this source.")] = None,
    limit: Annotated[int, Parameter(converter=positive_integer, help="So many at most.")] = 100,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """List entities in the order in which they came."""
    with _connect(remote) as entities:
        rows = islice(entities.list(entity_type, search=search, source=source), limit)
        types = ("entity_type",) if entity_type is None else ()
        columns = ("entity_id", *types, "name", "sources", "observations", "last_at")
        output.show_all(map(msgspec.structs.asdict, rows), columns, as_json=json, format_row=_format_row)


@app.command
def history(
    entity_id: Id,
    /,
    *,
    oldest_first: Annotated[bool, Parameter(negative=(), help="In order instead of the newest first.")] = False,
    source: Annotated[str | None, Parameter(help="Only those of this source.")] = None,
    limit: Annotated[int, Parameter(converter=positive_integer, help="So many at most.")] = 100,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """List the observations of an entity."""
    with _connect(remote) as entities:
        order = "oldest" if oldest_first else "newest"
        observations = islice(entities.observations(entity_id, order=order, source=source), limit)
        columns = ("observed_at", "kind", "source", "schema_version", "source_priority", "fields")
        output.show_all(observations, columns, as_json=json, format_row=_format_observation)


@app.command
def correct(
    entity_id: Id,
    /,
    *fields: Annotated[str, Parameter(help="FIELD=VALUE, the value as JSON or as text; null clears the field.")],
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Set fields, overriding all observations."""
    corrections = dict(map(_assigned, fields))
    if not corrections:
        raise UsageError("Say what to correct: FIELD=VALUE.")
    with _connect(remote) as entities:
        _show_decision(entities.correct(entity_id, corrections), json)


@app.command
def delete(entity_id: Id, /, *, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """Delete an entity; `restore` brings it back, `erase` removes its data."""
    with _connect(remote) as entities:
        _show_decision(entities.delete(entity_id), json)


@app.command
def restore(entity_id: Id, /, *, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """Restore a deleted entity."""
    with _connect(remote) as entities:
        _show_decision(entities.restore(entity_id), json)


@app.command
def merge(
    from_entity_id: Annotated[str, Parameter(help="The entity that is another one.")],
    to_entity_id: Annotated[str, Parameter(help="The other one.")] = "",
    /,
    *,
    undo: Annotated[bool, Parameter(negative=(), help="Let it be one of its own again.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Merge an entity into another, or undo that; no data is rewritten."""
    if undo == bool(to_entity_id):
        raise UsageError("Name the entity that it is, or pass --undo.")
    with _connect(remote) as entities:
        done = entities.unmerge(from_entity_id) if undo else entities.merge(from_entity_id, to_entity_id)
    output.show(done, as_json=json)


@contextmanager
def _connect(remote: Remote, *, retries: bool = False) -> Iterator[Entities]:
    """The entities of a server."""
    from headrace.client.entities import Entities

    with remote.connect(retries=retries) as client:
        yield Entities(client)


def _format_observation(observation: dict[str, Any]) -> dict[str, Any]:
    source_id = observation["source_id"]
    source = None if source_id is None else _format_source(source_id)
    return {**observation, "source": source, "fields": _format_field(observation["fields"])}


def _format_source(source_id: str) -> str:
    """The name of a source; of one without a name the beginning of its id, which is a hash."""
    from headrace.schema.entity.sources import name_of

    return source_id if name_of(source_id) is not None else f"{source_id[:_SHORT_ID]}…"


def _format_row(entity: dict[str, Any]) -> dict[str, Any]:
    """An entity in a table; its name without the type that it begins with."""
    name = entity["canonical_name"].removeprefix(f"{entity['entity_type']}:")
    last = {"observations": entity["observation_count"], "last_at": entity["last_observation_at"]}
    sources = dict.fromkeys(source for of_field in entity["sources"].values() for source in of_field)
    return {**entity, "name": name, "sources": [_format_source(source) for source in sources], **last}


def _show_decision(done: dict[str, Any], as_json: bool) -> None:
    """Print the result of a decision; for people without empty members, and with warnings as sentences."""
    if not output.wants_table(as_json):
        output.show(done, as_json=as_json)
        return
    output.show({name: value for name, value in done.items() if value and name != "store_warnings"}, as_json=False)
    for warning in done.get("store_warnings", ()):
        print(f"headrace: {warning['message']} ({warning['code']})", file=sys.stderr)


def _typed(row: Any, entity_type: str | None, number: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UsageError(f"entity {number} is no object")
    if "entity_type" not in row and entity_type is None:
        raise UsageError(f"entity {number} has no entity_type: add it, or pass --entity-type")
    return {"entity_type": entity_type, **row} if entity_type is not None else row


def _check_source(words: tuple[str, ...], source: str | None, events: FromStream) -> None:
    """Refuse to observe nothing, nobody's words, or files by options of streams."""
    if events.used:
        raise UsageError(f"{events.used[0]} is about the events of a stream: add --from-stream NAME.")
    if not words:
        raise UsageError("Say what is observed: FIELD=VALUE…, a file, - for stdin, or --from-stream NAME.")
    if source is None:
        raise UsageError("Say which source it is from: --source NAME, such as crm-a.")


def _assigned(word: str) -> tuple[str, Any]:
    name, is_there, text = word.partition("=")
    if not is_there or not name:
        raise UsageError(f"{word!r} is not FIELD=VALUE")
    try:
        return name, msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name, text


def _format_field(value: Any) -> str:
    return output.encode(value) if isinstance(value, list | dict) else output.cell(value)


#: The pause between polls.
_POLL_S = 0.5
_STEPS = ("log", "offered", "objects", "rows", "files", "pages", "done")


@app.command
def erase(
    entity_id: Annotated[str, Parameter(help="The id of an entity.")],
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative=(), help="Only say what would be removed.")] = False,
    yes: Yes = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Remove an entity, and everything merged into it, for good: from the log, the object store and derived data."""
    from headrace.client import entity_requests
    from headrace.client.entity_requests import Erasure

    with remote.connect(retries=True) as client:
        plan = entity_requests.read_plan(client.send(entity_requests.erase(entity_id, dry_run=True)))
        if dry_run:
            output.show({"entity_id": entity_id, **_plan_document(plan, json)}, as_json=json)
            return
        output.confirm(f"Remove {plan.observations} observations of {entity_id} for good?", yes=yes)
        erasure = client.fetch(entity_requests.erase(entity_id), Erasure)
        with output.progress_bar("erasing") as report:
            while not erasure.complete:
                report(_STEPS.index(erasure.step), len(_STEPS) - 1)
                time.sleep(_POLL_S)
                erasure = client.fetch(entity_requests.get_erasure(erasure.erasure_id), Erasure)
    facts = msgspec.to_builtins(erasure)
    if output.wants_table(json):
        removed = erasure.report
        facts = {
            "erasure_id": erasure.erasure_id,
            "entity_id": entity_id,
            "observations": erasure.plan.observations,
            "log_rows": removed["log_rows"],
            "rewritten": len(removed["rewritten"]),
            "removed": len(removed["removed"]),
            "completed_at": erasure.completed_at,
        }
    output.show(facts, as_json=json)


def _plan_document(plan: ErasurePlan, as_json: bool) -> dict[str, Any]:
    """The plan of an erasure; for people with counts of objects."""
    facts: dict[str, Any] = msgspec.to_builtins(plan)
    if not output.wants_table(as_json):
        return facts
    held = {name: facts[name] for name in ("segments", "companions", "states")}
    sizes = {
        name: f"{len(objects)} of {sum(listed['bytes'] for listed in objects):,} bytes"
        for name, objects in held.items()
    }
    return {**facts, **sizes, "ids": " ".join(facts["ids"]), "sources": len(facts["sources"])}
