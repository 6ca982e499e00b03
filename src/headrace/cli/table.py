"""``headrace table``: rows of features by key, now and in the past, and which tables there are."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from headrace import decoding
from headrace.cli import output
from headrace.cli.arguments import content, format_moment
from headrace.cli.output import AsJson, UsageError
from headrace.cli.remote import LOCAL, Remote
from headrace.errors import KeyShapeMismatch

if TYPE_CHECKING:
    from headrace.client import Client, Row
    from headrace.client.features import GetOptions

Name = Annotated[str, Parameter(help="The table.")]
KeyWords = Annotated[str, Parameter(allow_leading_hyphen=True, help="The value of each key field, in order.")]
Features = Annotated[list[str] | None, Parameter(negative=(), help="Only this feature; may be repeated.")]
AsOf = Annotated[str | None, Parameter(help="As it was at this moment: 2026-11-15, or 2026-11-15T10:00:00Z.")]

app = Commands(
    name="table",
    help="Get features by key, and list tables.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace table ls",
        "headrace table get Spending u1 --feature total",
        "headrace table get ByCountry u1 FR --as-of 2026-11-15T10:00:00Z",
        "headrace table export Spending rows.jsonl",
    ),
)


@app.command
def get(
    table: Name,
    /,
    *key: KeyWords,
    feature: Features = None,
    as_of: AsOf = None,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Print the features of a key; one that was never seen has none, and a global table has no key."""
    with remote.connect() as client:
        row = _row(client, table, key, {"features": feature, "as_of": format_moment(as_of)})
    if output.wants_table(json) and row:
        output.show({name: _format_value(value) for name, value in row.items()}, as_json=False)
    elif output.wants_table(json):
        print("There are no features of this key: it was never seen, or is cold.")
    else:
        print(output.encode(row))
    if row.complete:
        return output.OK
    lacks = "Features that are null are still computed from events of the past."
    if as_of is not None:
        lacks = f"Events that count are not there any more; the first that is came at {row.events_from}."
    print(f"headrace: {lacks}", file=sys.stderr)
    return output.PARTIAL


@app.command(name="ls")
def list_tables(*, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """List tables: their keys, what they are made of, their features, and whose they are."""
    from headrace.client import registration

    with remote.connect() as client:
        registered = registration.registered(client.send(registration.registry(None)))
    rows = (
        {
            "name": descriptor["name"],
            "key": descriptor["key"],
            "upstream": descriptor["upstreams"][0],
            "features": list(descriptor["agg"]),
            "app": registered.apps[descriptor["name"]],
        }
        for descriptor in sorted(registered.descriptors, key=itemgetter("name"))
        if descriptor["kind"] == "table"
    )
    output.show_all(rows, ("name", "key", "upstream", "features", "app"), as_json=json)


@app.command
def export(
    table: Name,
    file: Annotated[Path | None, Parameter(help="Lines of {key, at}; stdin where it is left out.")] = None,
    /,
    *,
    feature: Features = None,
    remote: Remote = LOCAL,
) -> int:
    """Print rows as they were: for each line {"key": …, "at": moment} the features of the key at that moment."""
    from headrace.client import App

    moments = list(_read_moments(file))
    complete = True
    with App(remote.url, remote.key or None, ca_file=remote.ca_file) as app:
        rows = app.history(table, [(moment.key, moment.at) for moment in moments], feature)
        for moment, row in zip(moments, rows, strict=True):
            print(output.encode({"key": moment.key, "at": moment.at, "features": row}))
            complete = complete and row.complete
    if complete:
        return output.OK
    print("headrace: Events that count are not there any more.", file=sys.stderr)
    return output.PARTIAL


class _KeyMoment(msgspec.Struct, forbid_unknown_fields=True):
    at: str
    key: Any = ""


def _read_moments(file: Path | None) -> Iterator[_KeyMoment]:
    """What the lines of a file ask for."""
    text = sys.stdin.buffer.read() if file is None else content(file)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield decoding.decode(line, _KeyMoment)
            except (msgspec.DecodeError, UnicodeDecodeError) as reason:
                raise UsageError(f'line {number} is not {{"key": …, "at": …}}: {reason}') from reason


def _row(client: Client, table: str, words: Sequence[str], options: GetOptions) -> Row:
    """The row of the one reading of the words that fits the key of the table."""
    from headrace.client import features

    refused = None
    for key in _readings(words):
        try:
            return features.row(client.send(features.get(table, key, **options)))
        except KeyShapeMismatch as reason:
            refused = refused or reason
    assert refused is not None, "there is always a first reading"
    raise refused


def _readings(words: Sequence[str]) -> Iterator[list[Any]]:
    """What words may mean: each a text, or a number or a truth where it looks like one."""
    return (list(reading) for reading in itertools.product(*map(_values, words)))


def _values(word: str) -> list[Any]:
    try:
        value = msgspec.json.decode(word)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [word]
    return [word, value] if isinstance(value, bool | int | float) else [word]


def _format_value(value: Any) -> str:
    """A value as people read it: lists and maps as JSON."""
    return output.encode(value) if isinstance(value, list | dict) else output.cell(value)
