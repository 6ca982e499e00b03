"""The diff of a registration, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from rich.text import Text

_STYLES = {"+": "green", "-": "red", "~": "yellow"}
#: The first words of the members of a change, and their marks.
_MARKS = {"added": "+", "removed": "-", "changed": "~", "renamed": "~", "zeroed": "~"}


class Line(NamedTuple):
    """A line of a diff: ``+`` adds, ``-`` removes, ``~`` changes."""

    mark: str
    text: str


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong with descriptors: where, and why."""

    code: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message} ({self.code})" if self.path else f"{self.message} ({self.code})"


class Effects(msgspec.Struct, frozen=True):
    """The effects on state: features that are new or start anew, and streams that are created, changed or deleted.

    ``refusals`` are the reasons why a dry run could not be applied.
    """

    features: list[dict[str, Any]] = []
    streams: list[dict[str, Any]] = []
    refusals: list[Problem] = []


class Diff(msgspec.Struct, frozen=True):
    """What a registration changed, or would change; ``status`` is ``conflict`` where it cannot be applied.

    An item of ``changed`` has the ``name`` of a descriptor and a member for everything about it that is another now,
    such as ``added_features``.
    """

    status: str
    registry_version: int
    added: list[str] = []
    removed: list[str] = []
    changed: list[dict[str, Any]] = []
    plan: Effects = Effects()

    @property
    def conflict(self) -> bool:
        """Whether it cannot be applied; mostly state would be lost, which only ``force`` allows."""
        return self.status == "conflict"

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        return "\n".join([self.title(), *(f"  {line.mark} {line.text}" for line in self.lines())])

    def __rich__(self) -> Text:
        from rich.text import Text

        parts = [Text(self.title(), "bold red" if self.conflict else "bold")]
        parts += [Text(f"  {line.mark} {line.text}", _STYLES[line.mark]) for line in self.lines()]
        return Text("\n").join(parts)

    def title(self) -> str:
        """The first line: the version of the registry, and the status."""
        suffix = ": conflict" if self.conflict else "" if self else ": nothing changes"
        return f"registry version {self.registry_version}{suffix}"

    def lines(self) -> Iterator[Line]:
        """A line for every change."""
        yield from (Line("+", name) for name in self.added)
        yield from (Line("-", name) for name in self.removed)
        for change in self.changed:
            for what, value in change.items():
                if what != "name":
                    yield from _change_lines(change["name"], what, value)
        yield from (_feature_line(feature) for feature in self.plan.features if not self._follows_table(feature))

    def _follows_table(self, feature: Mapping[str, Any]) -> bool:
        """Whether the line of its table implies that of a feature."""
        goes = feature["table"] in self.removed
        return goes or (feature["table"] in self.added and feature.get("born") == "first_retained")


def _change_lines(name: str, what: str, value: Any) -> Iterator[Line]:
    verb, _, kind = what.partition("_")
    if verb in _MARKS and isinstance(value, list):
        noun = kind.removesuffix("s")
        yield from (Line(_MARKS[verb], f"{name}: {noun} {_format_item(item)}") for item in value)
    else:
        yield Line("~", f"{name}: {what} {_format_item(value)}")


def _feature_line(feature: Mapping[str, Any]) -> Line:
    """The line for the state of a feature."""
    name = f"{feature['table']}.{feature['feature']}"
    if feature["state"] == "cleared":
        return Line("-", f"{name}: its state is cleared")
    since = "the first retained event" if feature["born"] == "first_retained" else "now"
    return Line("+" if feature["state"] == "new" else "~", f"{name}: computed from {since} on")


def _format_item(item: Any) -> str:
    """A name, a field with its type, or what was and what is."""
    if not isinstance(item, Mapping):
        return _format_value(item)
    rest = {member: value for member, value in item.items() if member not in ("name", "from", "to")}
    parts = [str(item["name"])] if "name" in item else []
    if "from" in item and "to" in item:
        parts.append(f"{_format_value(item['from'])} → {_format_value(item['to'])}")
    parts += [f"{member} {_format_value(value)}" for member, value in rest.items() if value is not None]
    return ", ".join(parts)


def _format_value(value: Any) -> str:
    """A value in one line: an operator as a call, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and "op" in value:
        params = value.get("params", {})
        return f"{value['op']}({', '.join(f'{name}={_format_value(parameter)}' for name, parameter in params.items())})"
    return msgspec.json.encode(value).decode()
