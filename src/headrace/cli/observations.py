"""``headrace entity observe`` of many rows: those of files, and the events of a stream."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from headrace.cli import output
from headrace.cli.arguments import Remote, format_moment, positive_integer
from headrace.cli.output import UsageError

if TYPE_CHECKING:
    from headrace.client.entity_requests import StoreOptions
    from headrace.client.stream_copy import ObservedStream, StreamOptions


@Parameter(name="*")
@dataclass(frozen=True)
class FromStream:
    """The stream whose events are observed, and where an event has the fields."""

    from_stream: Annotated[str | None, Parameter(help="Observe each event of this stream instead.")] = None
    map: Annotated[
        list[str] | None,
        Parameter(negative=(), help='FIELD=NAME or FIELD=/POINTER into an event, or all of them as {"FIELD": …}.'),
    ] = None
    observed_at_unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None, Parameter(help="The unit of numbers in --observed-at-field.")
    ] = None
    offset: Annotated[str | None, Parameter(help="Only events after this offset.")] = None
    schema_version: Annotated[
        int | None, Parameter(converter=positive_integer, help="Read events in this version of their schema.")
    ] = None

    @property
    def used(self) -> list[str]:
        """The options that are given."""
        values = (self.from_stream, self.map, self.observed_at_unit, self.offset, self.schema_version)
        names = ("--from-stream", "--map", "--observed-at-unit", "--offset", "--schema-version")
        return [name for name, value in zip(names, values, strict=True) if value is not None]

    def fields(self) -> Mapping[str, str] | None:
        """Where each field is in an event; None where every member is a field."""
        if self.map is None:
            return None
        fields: dict[str, str] = {}
        for text in self.map:
            fields |= _read_object(text) if text.lstrip().startswith("{") else _read_pair(text)
        return fields


NO_STREAM = FromStream()


def _read_object(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as reason:
        raise UsageError(f'--map: {text} is not an object such as {{"name": "/customer/name"}}: {reason}') from reason


def _read_pair(text: str) -> dict[str, str]:
    name, _, pointer = text.partition("=")
    if not name or not pointer:
        raise UsageError(f"--map: {text!r} is not FIELD=NAME or FIELD=/POINTER, such as name=/customer/name")
    return {name: pointer}


def observe_files(
    files: tuple[str, ...],
    file_format: str | None,
    entity_type: str,
    options: StoreOptions,
    observed_at_field: str | None,
    rejects: Path | None,
    remote: Remote,
    as_json: bool,
) -> int:
    """Store each row of files as an observation."""
    from headrace.cli.import_files import Rejects, open_rows
    from headrace.client.importer import observations

    with ExitStack() as stack:
        client = stack.enter_context(remote.connect(retries=True))
        field_types = observations.read_field_types(client, entity_type)
        # Moments become RFC 3339 in whatever way a file spells them.
        spelled = [name for name, kind in field_types.items() if kind != "date"]
        reader = stack.enter_context(open_rows(files, file_format, spelled))
        report = stack.enter_context(Rejects(rejects))
        importer = observations.ObservationImporter(
            client,
            reader,
            entity_type,
            options,
            field_types=field_types,
            observed_at_field=observed_at_field,
            read_moment=format_moment,
        )
        advance = stack.enter_context(output.running_count("rows stored"))
        counts = importer.run(advance, report.add)
    facts = {"rows": counts.rows, **counts.actions, "rejected": counts.rejected, **counts.warnings}
    return _report({"source": options["source"], **facts}, counts.rejected, counts.reasons, as_json)


def observe_events(
    entity_type: str,
    events: FromStream,
    options: StoreOptions,
    observed_at_field: str | None,
    rejects: Path | None,
    remote: Remote,
    as_json: bool,
) -> int:
    """Store each event of a stream as an observation."""
    from headrace.cli.import_files import Rejects
    from headrace.client.entities import Entities

    stream, fields = str(events.from_stream), events.fields()
    stream_options: StreamOptions = {
        "source": options["source"],
        "observed_at": options["observed_at"],
        "observed_at_field": observed_at_field,
        "observed_at_unit": events.observed_at_unit,
        "schema_version": events.schema_version,
        "source_priority": options["source_priority"],
        "observation_source": options["observation_source"],
        "commit": options["commit"],
    }
    if events.offset is not None:
        stream_options["offset"] = events.offset
    with ExitStack() as stack:
        client = stack.enter_context(remote.connect(retries=True))
        report = stack.enter_context(Rejects(rejects, "events"))
        observed = Entities(client).observe_stream(
            stream,
            entity_type,
            fields,
            on_progress=stack.enter_context(output.progress_bar("observing events")),
            on_rejected=report.add,
            **stream_options,
        )
    if observed.not_retained:
        print(f"headrace: {observed.not_retained:,} earlier events are not retained any more", file=sys.stderr)
    return _report(_count(observed), observed.rejected, observed.reasons, as_json)


def _count(observed: ObservedStream) -> dict[str, Any]:
    facts = {"events": observed.events, **observed.actions, "rejected": observed.rejected, **observed.warnings}
    if observed.not_retained:
        facts["not_retained"] = observed.not_retained
    return {"stream": observed.stream, "source": observed.source, **facts, "next_offset": observed.next_offset}


def _report(facts: Mapping[str, Any], rejected: int, reasons: Mapping[str, str], as_json: bool) -> int:
    """Print the counts, and what warnings mean; the exit code says whether all was stored."""
    output.show(facts, as_json=as_json)
    for code, reason in reasons.items():
        print(f"headrace: {code}: {reason}", file=sys.stderr)
    return output.PARTIAL if rejected else output.OK
