"""``headrace table``: register features, and read them by key, now and in the past."""

from __future__ import annotations

import itertools
import runpy
import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from headrace import decoding
from headrace.cli import output
from headrace.cli.arguments import LOCAL, Remote, content, format_moment
from headrace.cli.output import AsJson, DryRun, UsageError
from headrace.errors import KeyShapeMismatch

if TYPE_CHECKING:
    from headrace.client import Client, Diff, Row
    from headrace.client.errors import RegistrationRefused
    from headrace.client.features import GetOptions, KeyMoment

Name = Annotated[str, Parameter(help="The table.")]
KeyWords = Annotated[str, Parameter(allow_leading_hyphen=True, help="The value of each key field, in order.")]
Features = Annotated[list[str] | None, Parameter(negative=(), help="Only this feature; may be repeated.")]
AsOf = Annotated[str | None, Parameter(help="As it was at this moment: 2026-11-15, or 2026-11-15T10:00:00Z.")]
AsKnownAt = Annotated[str | None, Parameter(help="Only from the events that were appended until this moment.")]

app = App(
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
    as_known_at: AsKnownAt = None,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Print the features of a key; an unseen key has none, and a global table has no key."""
    if as_known_at is not None and as_of is None:
        raise UsageError("--as-known-at needs --as-of: the moment that the row is about")
    clocks: GetOptions = {"as_of": format_moment(as_of), "as_known_at": format_moment(as_known_at)}
    with remote.connect() as client:
        row = _row(client, table, key, {"features": feature, **clocks})
    if output.wants_table(json) and row:
        output.show({name: _format_value(value) for name, value in row.items()}, as_json=False)
    elif output.wants_table(json):
        print("There are no features of this key: it was never seen, or is cold.")
    else:
        print(output.encode(row))
    if row.late_events:
        print(f"headrace: {row.late_events} events came too late to be counted.", file=sys.stderr)
    if row.complete:
        return output.OK
    lacks = "Features that are null are still computed from events of the past."
    if as_of is not None:
        lacks = f"Events that count are not there any more; the first that is came at {row.events_from}."
    print(f"headrace: {lacks}", file=sys.stderr)
    return output.PARTIAL


@app.command(name="ls")
def list_tables(*, remote: Remote = LOCAL, json: AsJson = False) -> None:
    """List tables: their keys, their sources, their features and their apps."""
    from headrace.client import features
    from headrace.client.features import Registered

    with remote.connect() as client:
        registered = client.fetch(features.registry(None), Registered)
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
    as_known_at: AsKnownAt = None,
    remote: Remote = LOCAL,
) -> int:
    """Print rows of the past: for each line {"key": …, "at": moment} the features of the key at that moment.

    A line may have its own "as_known_at".
    """
    from headrace import client

    lines = list(_read_moments(file))
    complete = True
    with client.App(remote.url, remote.key or None, ca_file=remote.ca_file) as app:
        rows = app.history(
            table, [_key_moment(line) for line in lines], feature, as_known_at=format_moment(as_known_at)
        )
        for line, row in zip(lines, rows, strict=True):
            appended = {} if line.as_known_at is None else {"as_known_at": line.as_known_at}
            print(output.encode({"key": line.key, "at": line.at, **appended, "features": row.raw}))
            complete = complete and row.complete
    if complete:
        return output.OK
    print("headrace: Events that count are not there any more.", file=sys.stderr)
    return output.PARTIAL


class _KeyMoment(msgspec.Struct, forbid_unknown_fields=True):
    at: str
    key: Any = ""
    as_known_at: str | None = None


def _key_moment(line: _KeyMoment) -> KeyMoment:
    return (line.key, line.at) if line.as_known_at is None else (line.key, line.at, line.as_known_at)


def _read_moments(file: Path | None) -> Iterator[_KeyMoment]:
    """The keys and moments in the lines of a file."""
    text = sys.stdin.buffer.read() if file is None else content(file)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield decoding.decode(line, _KeyMoment)
            except (msgspec.DecodeError, UnicodeDecodeError) as reason:
                raise UsageError(f'line {number} is not {{"key": …, "at": …}}: {reason}') from reason


def _row(client: Client, table: str, words: Sequence[str], options: GetOptions) -> Row:
    """The row of a key, whose words are read as the types that fit the table."""
    from headrace.client import features

    refused = None
    for key in _readings(words):
        try:
            return features.read_row(client.send(features.get(table, key, **options)))
        except KeyShapeMismatch as reason:
            refused = refused or reason
    assert refused is not None, "there is always a first reading"
    raise refused


def _readings(words: Sequence[str]) -> Iterator[list[Any]]:
    """The possible keys: each word as text, or as a number or boolean where it looks like one."""
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


CONFLICT = 3

_NEXT_STEPS = {
    "registration_conflict": "Add what is missing, or pass --force to lose what is marked with - and ~.",
    "owned_by": "Choose other names, or pass --app with the app that owns these.",
    "used_by": "Leave what others use, or pass --cascade to remove theirs, too.",
    "version_conflict": "Somebody was quicker; look at --dry-run, and begin from the current version.",
    "name_taken": "Delete the stream, or choose another name.",
}


def register(
    file: Annotated[Path, Parameter(help="Descriptors as JSON, or a Python file that declares them.")],
    /,
    *,
    dry_run: DryRun = False,
    force: Annotated[bool, Parameter(negative=(), help="Do what loses state, too.")] = False,
    backfill: Annotated[bool | None, Parameter(help="Compute features from the events that are there, or not.")] = None,
    app: Annotated[str | None, Parameter(help="Whose descriptors these are.")] = None,
    expected_version: Annotated[int | None, Parameter(help="Refuse if the registry has another version.")] = None,
    cascade: Annotated[bool, Parameter(negative=(), help="Remove what depends on what is removed.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Register the descriptors of a file as all that an app computes, and print what changed.

    Exit code 3 says that the registry does not allow it: state would be lost, or a name is another app's.
    """
    from headrace.client import Diff, RegistrationConflict, RegistrationInvalid, features

    flags = {name: True for name, value in {"dry_run": dry_run, "force": force, "cascade": cascade}.items() if value}
    options = {"backfill": backfill, "app": app, "expected_version": expected_version}
    document = {
        **_read_descriptors(file),
        **{name: value for name, value in options.items() if value is not None},
        **flags,
    }
    try:
        with remote.connect() as client:
            difference = client.fetch(features.register(document), Diff)
    except RegistrationConflict as refused:
        return _show_refusal(refused, CONFLICT, json)
    except RegistrationInvalid as refused:
        return _show_refusal(refused, output.FAILED, json)
    _show(difference, json)
    if difference.conflict:
        print("headrace: This would need --force.", file=sys.stderr)
        return CONFLICT
    return output.OK


def _read_descriptors(file: Path) -> dict[str, Any]:
    """The descriptors of a file, and the options beside them."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    if file.suffix == ".py":
        return {"descriptors": _run_declarations(file)}
    try:
        document = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise UsageError(f"{file} is not JSON: {reason}") from reason
    if isinstance(document, list):
        return {"descriptors": document}
    if not isinstance(document, dict):
        raise UsageError(f"{file} has no descriptors: it holds a list of them, or an object that has one")
    return document


def _run_declarations(file: Path) -> list[dict[str, Any]]:
    """The declarations of a Python file, with all their sources."""
    from headrace.client.declared import collect_descriptors, find_declaration

    # As for a script: what lies beside it can be imported.
    sys.path.insert(0, str(file.resolve().parent))
    try:
        names = runpy.run_path(str(file), run_name="headrace.registered")
    except Exception as reason:
        raise UsageError(f"{file} does not run: {type(reason).__name__}: {reason}") from reason
    finally:
        del sys.path[0]
    declared = [value for value in names.values() if find_declaration(value) is not None]
    if not declared:
        raise UsageError(
            f"{file} declares nothing: it needs subclasses of hr.Event, or what @hr.event or @hr.table made"
        )
    return collect_descriptors(declared)


def _show(difference: Diff, as_json: bool) -> None:
    if output.wants_table(as_json):
        output.console().print(difference, soft_wrap=True)
    else:
        print(output.encode(difference))


def _show_refusal(refused: RegistrationRefused, code: int, as_json: bool) -> int:
    """Print what would change; the reasons and the next step go to stderr."""
    if refused.diff or as_json:
        _show(refused.diff, as_json)
    if as_json:
        error = {"code": refused.code, "message": refused.message, "errors": refused.errors}
        print(output.encode({"error": error}), file=sys.stderr)
        return code
    step = _NEXT_STEPS.get(refused.code, "Try again.") if code == CONFLICT else "Mend it where the paths say."
    print(f"headrace: {refused.message}", *(f"  {why}" for why in refused.errors), step, sep="\n", file=sys.stderr)
    return code
