"""``headrace stream``: every verb of a stream, with pipes in and out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from headrace.cli import ingest, output
from headrace.cli.arguments import LOCAL, Remote, format_moment, mark_query_faults, positive_integer
from headrace.cli.output import AsJson, UsageError, Yes
from headrace.types import JSON, media_type

if TYPE_CHECKING:
    from headrace.client import Batch
    from headrace.client.requests import AppendOptions, CreateOptions


COLUMNS = ("index", "of", "segments", "behind", "size", "state")

_FAMILIES = {"exact": "exact values", "col": "columns", "fts": "full text", "agg": "rollups"}
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))


def facts(details: dict[str, Any]) -> dict[str, Any]:
    """The contents of a stream, for people."""
    stream, stored, status = details["stream"], details["storage"]["object_storage"], details["index_status"]
    events = int(stream["next_offset"])
    companions = status["bundled_companions"]
    return {
        "stream": stream["name"],
        "content_type": stream["content_type"],
        "events": f"{events:,} appended, {size(stream['total_size_bytes'])} retained",
        "published": f"{int(stream['uploaded_through']) + 1:,} in {stored['segment_object_count']:,} segments, "
        f"{size(stored['segments_bytes'])}",
        "pending": f"{int(stream['pending_rows']):,}, {size(stream['pending_bytes'])}",
        "companions": f"{companions['object_count']:,} objects, {size(companions['bytes_at_rest'])}",
        "schema_version": details["schema"]["currentVersion"],
        "last_append": stream["last_append_at"],
        "closed": stream["closed"],
    }


def index_rows(status: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for every index that a stream should have."""
    return list(_lines(status, status["segments"]["total_count"]))


def _lines(status: dict[str, Any], total: int) -> Iterator[dict[str, Any]]:
    if status["routing_key_lexicon"]["configured"]:
        lexicon = status["routing_key_lexicon"]
        yield _line("routing keys", "", lexicon, lexicon["indexed_segment_count"], total)
    for family in status["search_families"]:
        covered, outdated = family["covered_segment_count"], family["stale_segment_count"]
        fields = ", ".join(family["fields"])
        yield _line(_FAMILIES[family["family"]], fields, family, covered, total, outdated)


def _line(name: str, fields: str, index: dict[str, Any], covered: int, total: int, outdated: int = 0) -> dict[str, Any]:
    done = index["fully_indexed_uploaded_segments"]
    return {
        "index": name,
        "of": fields,
        "segments": f"{covered:,} of {total:,}",
        "behind": None if index["lag_ms"] is None else span(int(index["lag_ms"])),
        "size": size(index["bytes_at_rest"]),
        "state": "complete" if done else f"{outdated:,} segments outdated" if outdated else "building",
    }


def size(digits: str) -> str:
    """A number of bytes with a readable unit."""
    number, units = float(digits), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while number >= 1024 and unit != "TiB":
        number, unit = number / 1024, next(units)
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def span(millis: int) -> str:
    """A duration in its largest unit."""
    for length, unit in _UNITS:
        if millis >= length:
            return f"{millis / length:.0f} {unit}"
    return "0 ms"


Name = Annotated[str, Parameter(help="The stream.")]
Offset = Annotated[str, Parameter(allow_leading_hyphen=True, help="Begin after this offset; -1 is the start.")]
RoutingKey = Annotated[str | None, Parameter(help="Only events with this routing key.")]
Filter = Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Only events that match this query.")]
Last = Annotated[
    int | None,
    Parameter(name=("--last", "-n"), converter=positive_integer, help="Begin with the newest so many events."),
]
SchemaVersion = Annotated[int | None, Parameter(help="The shape of events; default: the newest.")]
Limit = Annotated[int | None, Parameter(converter=positive_integer, help="Stop after so many.")]

app = App(
    name="stream",
    help="Create, append to, read and follow streams.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace stream create orders --retention-age 30d",
        "headrace stream append orders '{\"id\": 1}' '{\"id\": 2}'",
        "cat events.jsonl | headrace stream append orders",
        "headrace stream read orders --offset -1 --limit 10",
        "headrace stream tail orders -n 50",
    ),
)


@app.command
def create(
    name: Name,
    /,
    *,
    content_type: Annotated[str, Parameter(help="The media type of all it holds.")] = JSON,
    ttl: Annotated[str | None, Parameter(help="Forget it when unused for so long: seconds, or 24h.")] = None,
    expires_at: Annotated[str | None, Parameter(help="Forget it at this moment, such as 2030-01-01.")] = None,
    retention_age: Annotated[str | None, Parameter(help="Drop events older than this, such as 30d.")] = None,
    retention_bytes: Annotated[int | None, Parameter(help="Drop the oldest events beyond this size.")] = None,
    closed: Annotated[bool, Parameter(negative=(), help="Create it closed.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Create a stream; one that is already there in the same form is left as it is."""
    wanted = {
        "ttl": ttl,
        "expires_at": format_moment(expires_at),
        "retention_age": retention_age,
        "retention_bytes": retention_bytes,
    }
    options: CreateOptions = {"content_type": content_type, "closed": closed}
    options |= {name: value for name, value in wanted.items() if value is not None}  # type: ignore[typeddict-item]
    with remote.connect() as client:
        answer = client.stream(name).create(**options)
    output.show({"name": name, **msgspec.structs.asdict(answer)}, as_json=json)


@app.command
def append(
    name: Name,
    /,
    *values: Annotated[str, Parameter(allow_leading_hyphen=True, help="Events as JSON; none: lines of stdin.")],
    routing_key: Annotated[str, Parameter(help="The events' routing key.")] = "",
    timestamp: Annotated[str | None, Parameter(help="Their time: a moment, or Unix nanoseconds.")] = None,
    seq: Annotated[str | None, Parameter(help="Must be greater than the last one given.")] = None,
    if_match: Annotated[str | None, Parameter(help="Append only if this is the tail.")] = None,
    close: Annotated[bool, Parameter(negative=(), help="Close the stream in the same step.")] = False,
    raw: Annotated[bool, Parameter(negative=(), help="Append stdin as bytes, not as lines of JSON.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Append events given as arguments, or piped in as lines of JSON, or bytes with --raw."""
    if raw and values:
        raise UsageError("--raw appends what comes in on stdin: give events or --raw, not both")
    wanted = {"timestamp": format_moment(timestamp), "seq": seq, "if_match": if_match, "close": close or None}
    options: AppendOptions = {"key": routing_key}
    options |= {name: value for name, value in wanted.items() if value is not None}  # type: ignore[typeddict-item]
    content_type = JSON if values else _content_type(remote, name)
    if not raw and media_type(content_type) != JSON:
        raise UsageError(f"{name} holds {content_type}, not JSON: append what comes in as it is, with --raw")
    with remote.connect(retries=not values) as client:
        stream = client.stream(name, content_type=content_type)
        if raw:
            count, offset = ingest.append_bytes(stream, content_type, **options)
        elif values or len(options) > 1:
            count, offset = ingest.append_at_once(stream, values, **options)
        else:
            count, offset = ingest.append_lines(stream, routing_key)
    output.show({"appended": count, "next_offset": offset}, as_json=json)


@app.command
def read(
    name: Name,
    /,
    *,
    offset: Offset = "-1",
    since: Annotated[str | None, Parameter(help="Begin at this moment instead, such as 2026-11-15.")] = None,
    last: Last = None,
    before: Annotated[str | None, Parameter(help="End before this offset.")] = None,
    routing_key: RoutingKey = None,
    filter: Filter = None,
    schema_version: SchemaVersion = None,
    limit: Limit = None,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Print the events of a stream, one per line; --json prints batches with their offsets."""
    with remote.connect() as client, mark_query_faults(filter or "", as_json=json):
        stream = client.stream(name)
        batches = stream.read(
            offset,
            since=format_moment(since),
            last=last,
            before=before,
            key=routing_key,
            schema_version=schema_version,
            filter=filter,
        )
        _print(batches, limit, json)


@app.command
def tail(
    name: Name,
    /,
    *,
    offset: Offset = "now",
    last: Last = None,
    live: Annotated[Literal["sse", "long-poll"] | None, Parameter(help="How to wait; default: sse if it can.")] = None,
    routing_key: RoutingKey = None,
    filter: Filter = None,
    schema_version: SchemaVersion = None,
    limit: Limit = None,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Print what is appended from now on, until the stream is closed; with -n the newest events first."""
    content_type = _content_type(remote, name)
    with remote.connect(retries=True) as client, mark_query_faults(filter or "", as_json=json):
        stream = client.stream(name, content_type=content_type)
        batches = stream.tail(
            offset, last=last, live=live, key=routing_key, schema_version=schema_version, filter=filter
        )
        _print(batches, limit, json)


@app.command(name="ls")
def list_streams(
    *,
    prefix: Annotated[str, Parameter(help="Only names that begin so.")] = "",
    after: Annotated[str, Parameter(help="Only names after this one.")] = "",
    limit: Limit = None,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """List streams in name order."""
    with remote.connect() as client:
        streams = islice(client.streams(prefix=prefix, after=after, limit=min(limit or 1000, 1000)), limit)
        columns = ("name", "content_type", "entries", "closed", "created_at", "expires_at")
        # In lists the offset is a plain number, which people take for what it is.
        output.show_all(
            streams, columns, as_json=json, format_row=lambda stream: {**stream, "entries": stream["next_offset"]}
        )


@app.command
def info(name: Name, /, *, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """Print the metadata of a stream."""
    with remote.connect() as client:
        output.show(msgspec.structs.asdict(client.stream(name).info()), as_json=json)


@app.command
def status(name: Name, /, *, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """Print the contents, publication and indexes of a stream; --json prints all details."""
    with remote.connect() as client:
        details = client.stream(name).details()
    if not output.wants_table(json):
        print(output.encode(details))
        return
    output.show(facts(details), as_json=False)
    if indexes := index_rows(details["index_status"]):
        print()
        output.show_all(indexes, COLUMNS, as_json=False)


@app.command
def fork(
    source: Name,
    name: Annotated[str, Parameter(help="The new stream.")],
    /,
    *,
    offset: Annotated[str, Parameter(help="Inherit up to here; default: everything.")] = "",
    sub_offset: Annotated[int, Parameter(help="So many events further, within one append.")] = 0,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Create a stream that begins with the content of another one."""
    with remote.connect() as client:
        new = client.stream(source).fork(name, fork_offset=offset, fork_sub_offset=sub_offset)
        output.show(msgspec.structs.asdict(new.info()), as_json=json)


@app.command
def close(name: Name, /, *, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """Close a stream for good: it can still be read, and nothing more can be appended."""
    with remote.connect() as client:
        answer = client.stream(name).close()
    output.show({"name": name, "next_offset": answer.next_offset, "closed": True}, as_json=json)


@app.command
def seal(
    name: Name,
    /,
    *,
    wait: Annotated[bool, Parameter(negative=(), help="Come back when all of it is in the object store.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Seal what is in the log and publish it now, whatever its age and size.

    0 says that all of it is published, 3 that this takes longer and goes on.
    """
    with remote.connect() as client:
        answer = client.stream(name).seal(wait=wait)
    output.show(msgspec.structs.asdict(answer), as_json=json)
    return output.TIMED_OUT if answer.state == "sealing" else output.OK


@app.command
def delete(name: Name, /, *, yes: Yes = False, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """Delete a stream with its content."""
    output.confirm(f"Delete the stream {name} and everything in it?", yes=yes)
    with remote.connect() as client:
        client.stream(name).delete()
    output.show({"name": name, "deleted": True}, as_json=json)


def _content_type(remote: Remote, name: str) -> str:
    """The content type of a stream; fails at once if the stream or the server is missing."""
    with remote.connect() as client:
        return client.stream(name).info().content_type


def _print(batches: Iterable[Batch], limit: int | None, as_json: bool) -> None:
    left = limit
    for batch in batches:
        if as_json:
            print(output.encode(_envelope(batch, left)), flush=True)
        else:
            output.write_bytes(b"".join(_stream_lines(batch, left)))
        if left is not None:
            left = max(0, left - len(batch.raw_items))
            if not left:
                return


def _stream_lines(batch: Batch, limit: int | None) -> Iterable[bytes]:
    """The events of a batch, each on a line of its own; what is not JSON as it is."""
    if media_type(batch.content_type) != JSON:
        return batch.raw_items[:limit]
    return (output.on_one_line(item) + b"\n" for item in batch.raw_items[:limit])


def _envelope(batch: Batch, limit: int | None) -> dict[str, object]:
    """A batch as a document; one that the limit cuts short has no next offset."""
    facts = {"next_offset": batch.next_offset, "up_to_date": batch.up_to_date, "closed": batch.closed}
    if limit is not None and limit < len(batch.raw_items):
        facts = {"next_offset": None, "up_to_date": False, "closed": False}
    if batch.start_offset is not None:
        facts["start_offset"] = batch.start_offset
    if media_type(batch.content_type) == JSON or not batch.data:
        return {"items": [msgspec.Raw(item) for item in batch.raw_items[:limit]], **facts}
    try:
        return {"text": batch.data.decode(), **facts}
    except UnicodeDecodeError:
        return {"base64": batch.data, **facts}
