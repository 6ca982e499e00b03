"""Plans and registries for people: changes, their severity, reasons and refusals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.cli import output

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_MARKS = {
    "identical": ("=", "dim"),
    "additive": ("+", "green"),
    "widening": ("~", "yellow"),
    "destructive": ("-", "red"),
    "forbidden": ("!", "bold red"),
}
_ROOT = "(event)"
#: The version before the first one of an entity type.
_NOTHING = ""
#: Refusals that are shown; the others are much the same.
_MAX_REFUSALS = 10


def show_plan(plan: Mapping[str, Any]) -> None:
    """Print a plan."""
    before, after = plan["from_version"], plan["to_version"]
    if before == _NOTHING:
        _print(_heading(f"{plan['subject']}: version {after}, the first"))
    else:
        versions = f"version {before}" if before == after else f"version {before} to {after}"
        show_changes(f"{plan['subject']}: {versions}", plan["classification"], plan["changes"])
    _print(*(_dim(f"  {reason}") for reason in plan["reasons"]))
    _print(*_impacts(plan["impact"]))
    if plan["lens"] is not None:
        by = "written by the server" if plan["lens"]["written"] else "proven by the server"
        _print(_heading(f"lens, {by}"), _document(plan["lens"]["document"]))
    if plan["refusals"]:
        _print(_heading("refused", "bold red"), *_refusals(plan["refusals"]))


def _impacts(impacts: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """The lines for search fields, rollups and keys whose values change or are lost."""
    for impact in impacts:
        if "reason" in impact:
            yield _text(f"  {impact['effect']}: {impact['reason']}", "red" if impact["effect"] == "lost" else "yellow")


def show_verdict(verification: Mapping[str, Any] | None) -> None:
    """Print the result of a verification against stored events."""
    if verification is None:
        _print(_dim("there is no new version that events could be held against"))
        return
    counts, offset = verification["failing"], verification["through_offset"]
    failing, events = sum(counts.values()), verification["events"]
    if not failing:
        _print(_text(f"all {events:,} events up to {offset} carry the change", "green"))
        return
    at = " and ".join(f"{count:,} at the {cause}" for cause, count in counts.items() if count)
    _print(_heading(f"of {events:,} events up to {offset} {failing:,} would fail: {at}", "bold red"))
    show_misfits(verification["failures"], failing)


def show_misfits(failures: Sequence[Mapping[str, Any]], total: int) -> None:
    """Print the first of so many events that do not fit."""
    _print(_misfits(failures))
    if total > len(failures):
        _print(_dim(f"  and {total - len(failures):,} more"))


def show_changes(subject: str, classification: str, changes: Sequence[Mapping[str, Any]]) -> None:
    """Print the changes between two documents."""
    _print(_title(subject, classification))
    _print(_changes(changes) if changes else _dim("  nothing changes"))


def show_registry(registry: Mapping[str, Any]) -> None:
    """Print a registry: its versions, its settings, and the newest schema."""
    version = registry["currentVersion"]
    _print(_heading(f"{registry['schema']}: version {version}" if version else f"{registry['schema']}: no schema"))
    _print(_dim(f"  routing key: {routing_key(registry)}"), _dim(f"  search: {search(registry)}"))
    for edge in registry["boundaries"]:
        lens = registry["lenses"].get(str(edge["version"] - 1))
        came = "" if lens is None else f", by {_names(lens['ops'])}"
        _print(_dim(f"  version {edge['version']} from event {edge['offset']} on{came}"))
    if version:
        _print(_heading("schema"), _document(registry["schemas"][str(version)]))


def routing_key(registry: Mapping[str, Any]) -> str:
    """The routing key as text."""
    key = registry.get("routingKey")
    if key is None:
        return "none"
    return f"{key['jsonPointer'] or _ROOT} ({'required' if key['required'] else 'optional'})"


def search(registry: Mapping[str, Any]) -> str:
    """The names of the search fields as text."""
    return ", ".join((registry.get("search") or {}).get("fields", ())) or "none"


def _names(ops: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(op["op"] for op in ops) or "a lens without ops"


def _changes(changes: Iterable[Mapping[str, Any]]) -> Table:
    table = _grid()
    for change in changes:
        mark, style = _MARKS.get(change["classification"], ("?", "bold"))
        where = change["pointer"]
        reason = str(change["reason"]).removeprefix(f"{where}: ").removeprefix("the event: ")
        table.add_row("", _text(mark, style), _text(where or _ROOT, style), _dim(reason))
    return table


def _refusals(refusals: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Each refusal, and each counter-example once."""
    table = _grid()
    for refusal in refusals[:_MAX_REFUSALS]:
        reason = f"{refusal['message']} ({refusal['code']})"
        table.add_row("", _text("!", "red"), _text(refusal["pointer"] or "(request)", "red"), _dim(reason))
    yield table
    if len(refusals) > _MAX_REFUSALS:
        yield _dim(f"  and {len(refusals) - _MAX_REFUSALS:,} more, which --json shows")
    examples = [refusal["counter_example"] for refusal in refusals if "counter_example" in refusal]
    for example in dict.fromkeys(map(output.encode, examples)):
        yield _text(f"  this event would break: {example}")


def _misfits(failures: Iterable[Mapping[str, Any]]) -> Table:
    table = _grid()
    for failure in failures:
        where = f"{failure['cause']} {failure['pointer'] or _ROOT}"
        table.add_row("", _text(failure["offset"], "red"), _text(where, "red"), _dim(failure["reason"]))
    return table


def _grid() -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)  # room on the left, as before the lines around the table
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=40)
    table.add_column(overflow="fold")
    return table


def _title(subject: str, classification: str) -> Text:
    from rich.text import Text

    _, style = _MARKS.get(classification, ("?", "bold"))
    return Text.assemble((subject, "bold"), ", ", (classification, style))


def _heading(text: str, style: str = "bold") -> Text:
    return _text(text, style)


def _document(value: Any) -> Text:
    return _text(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _dim(text: str) -> Text:
    return _text(text, "dim")


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def _print(*parts: RenderableType) -> None:
    from rich.text import Text

    console = output.console()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))
