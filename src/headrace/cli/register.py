"""``headrace register``: what is to be computed from events, and what a change of that would do."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from headrace.cli import output
from headrace.cli.output import AsJson, DryRun, UsageError
from headrace.cli.remote import LOCAL, Remote

if TYPE_CHECKING:
    from headrace.client import Diff
    from headrace.client.errors import RegistrationRefused

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
    """Make the descriptors of a file all that an app computes, and say what that changed.

    Exit code 3 says that the registry does not allow it: state would be lost, or a name is another app's.
    """
    from headrace.client import RegistrationConflict, RegistrationInvalid
    from headrace.client.registration import diff
    from headrace.client.registration import register as registering

    flags = {name: True for name, value in {"dry_run": dry_run, "force": force, "cascade": cascade}.items() if value}
    options = {"backfill": backfill, "app": app, "expected_version": expected_version}
    document = {**_document(file), **{name: value for name, value in options.items() if value is not None}, **flags}
    try:
        with remote.connect() as client:
            difference = diff(client.send(registering(document)))
    except RegistrationConflict as refused:
        return _show_refusal(refused, CONFLICT, json)
    except RegistrationInvalid as refused:
        return _show_refusal(refused, output.FAILED, json)
    _show(difference, json)
    if difference.conflict:
        print("headrace: This would need --force.", file=sys.stderr)
        return CONFLICT
    return output.OK


def _document(file: Path) -> dict[str, Any]:
    """The descriptors of a file, and the options that it names beside them."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    if file.suffix == ".py":
        return {"descriptors": _declared(file)}
    try:
        document = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise UsageError(f"{file} is not JSON: {reason}") from reason
    if isinstance(document, list):
        return {"descriptors": document}
    if not isinstance(document, dict):
        raise UsageError(f"{file} has no descriptors: it holds a list of them, or an object that has one")
    return document


def _declared(file: Path) -> list[dict[str, Any]]:
    """What a Python file declares, with everything that this is made of."""
    from headrace.client.declared import EventSource, Table, gathered

    # As for a script: what lies beside it can be imported.
    sys.path.insert(0, str(file.resolve().parent))
    try:
        names = runpy.run_path(str(file), run_name="headrace.registered")
    except Exception as reason:
        raise UsageError(f"{file} does not run: {type(reason).__name__}: {reason}") from reason
    finally:
        del sys.path[0]
    declared = [value for value in names.values() if isinstance(value, EventSource | Table)]
    if not declared:
        raise UsageError(f"{file} declares nothing: it needs names that @hr.event or @hr.table made")
    return gathered(declared)


def _show(difference: Diff, as_json: bool) -> None:
    if output.wants_table(as_json):
        output.console().print(difference, soft_wrap=True)
    else:
        print(output.encode(difference))


def _show_refusal(refused: RegistrationRefused, code: int, as_json: bool) -> int:
    """Show what would change; every reason, and what to do next, go to stderr."""
    if refused.diff or as_json:
        _show(refused.diff, as_json)
    if as_json:
        error = {"code": refused.code, "message": refused.message, "errors": refused.errors}
        print(output.encode({"error": error}), file=sys.stderr)
        return code
    step = _NEXT_STEPS.get(refused.code, "Try again.") if code == CONFLICT else "Mend it where the paths say."
    print(f"headrace: {refused.message}", *(f"  {why}" for why in refused.errors), step, sep="\n", file=sys.stderr)
    return code
