"""How one set of nodes differs from another: what is told, what of it takes something away, and what features keep.

=====================================================  ===========  ==========================================
change                                                 class        state of features
=====================================================  ===========  ==========================================
node added                                             additive     born with the first event that is kept
node removed                                           destructive  dropped
field added, optional or with default                  additive     kept
field added, required and without default              destructive  kept
field removed, renamed, or of a type it did not fit    destructive  of those that depend on it: zeroed
field widened from i64 to f64                          additive     kept
field no longer required, default changed              additive     kept
field now required, or without its default             destructive  kept
keep_events_for longer / shorter                       add. / des.  kept
cold_after set, longer or gone / shorter               add. / des.  kept
dedupe_key set where none was                          additive     kept
dedupe_key or dedupe_window changed                    destructive  kept
steps or upstream changed                              destructive  zeroed
key of a table changed                                 destructive  zeroed
feature added                                          additive     born with the first event that is kept
feature removed                                        destructive  dropped
feature changed                                        destructive  zeroed
kind of a node changed                                 destructive  dropped, or born
=====================================================  ===========  ==========================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from headrace.deadline import check_deadline
from headrace.schema.descriptor.canonical import alike
from headrace.schema.descriptor.differences import Differences, Loss, differences
from headrace.schema.descriptor.lineage import traces
from headrace.schema.descriptor.nodes import Event, Node, Table
from headrace.schema.descriptor.order import downstream
from headrace.schema.descriptor.resolve import chain

Fate: TypeAlias = Literal["kept", "additive", "zeroed"]


class Diff(NamedTuple):
    """What changes, in the words of the wire, and what becomes of features.

    ``losses`` says what is taken away, and where; without any the change needs no force. ``cascaded`` are the removed
    nodes that do not belong to whoever registers.
    """

    added: list[str]
    removed: list[str]
    changed: list[dict[str, Any]]
    lives: dict[str, dict[str, Fate]]
    dropped: dict[str, list[str]]
    cascaded: list[str]
    losses: list[Loss]

    @property
    def destructive(self) -> bool:
        """Whether something is taken away."""
        return bool(self.losses)


def diff(old: Mapping[str, Node], new: Mapping[str, Node], owned: Collection[str] | None = None) -> Diff:
    """How valid nodes differ from valid nodes; ``owned`` are the old ones of whoever registers, None is all."""
    removed = sorted(name for name in old if name not in new)
    losses = [Loss(name, "", f"{old[name].name!r} is removed") for name in removed]
    lives = _lives(old, new)
    changed = []
    for name in sorted(name for name in new if name in old):
        check_deadline()
        found = differences(old[name], new[name])
        losses += found.losses
        item = {**found.told, **_zeroed(found, lives.get(name, {}))}
        if item:
            changed.append({"name": name, **item})
    return Diff(
        added=sorted(name for name in new if name not in old),
        removed=removed,
        changed=changed,
        lives=lives,
        dropped=_dropped(old, new),
        cascaded=[] if owned is None else [name for name in removed if name not in owned],
        losses=losses,
    )


def _zeroed(found: Differences, fates: Mapping[str, Fate]) -> dict[str, list[str]]:
    """Features that begin afresh though they are defined as before: what they depend on changed."""
    told = {change["name"] for change in found.told.get("changed_features", ())}
    names = sorted(name for name, fate in fates.items() if fate == "zeroed" and name not in told)
    return {"zeroed_features": names} if names else {}


def _dropped(old: Mapping[str, Node], new: Mapping[str, Node]) -> dict[str, list[str]]:
    found = {}
    for name, node in old.items():
        after = new.get(name)
        left = after.features if isinstance(after, Table) else {}
        if isinstance(node, Table) and (gone := [feature for feature in node.features if feature not in left]):
            found[name] = sorted(gone)
    return found


def _lives(old: Mapping[str, Node], new: Mapping[str, Node]) -> dict[str, dict[str, Fate]]:
    """What becomes of every feature of every table."""
    touched = {name for name, node in new.items() if name not in old or not alike(old[name], node)}
    touched.update(downstream(new, touched))
    found: dict[str, dict[str, Fate]] = {}
    for name, node in new.items():
        check_deadline()
        if isinstance(node, Table) and name not in touched:
            found[name] = dict.fromkeys(node.features, "kept")
        elif isinstance(node, Table):
            before = old.get(name)
            found[name] = _fates(old, new, before if isinstance(before, Table) else None, node)
    return found


def _fates(old: Mapping[str, Node], new: Mapping[str, Node], before: Table | None, table: Table) -> dict[str, Fate]:
    if before is None:
        return dict.fromkeys(table.features, "additive")
    was, now = traces(old, before), traces(new, table)
    source, newer = chain(old, before.name), chain(new, table.name)
    broken, rewired = _broken(source.root, newer.root), not alike(source.ops, newer.ops)
    found: dict[str, Fate] = {}
    for name in table.features:
        check_deadline()
        if name not in was:
            found[name] = "additive"
        elif (
            rewired
            or not _told_alike(before, table, name)
            or was[name].mark != now[name].mark
            or was[name].fields & broken
        ):
            found[name] = "zeroed"
        else:
            found[name] = "kept"
    return found


def _told_alike(before: Table, table: Table, name: str) -> bool:
    """Whether a feature is told as it was: one that is told otherwise begins afresh even if it means the same."""
    return alike(before.features[name], table.features[name]) and before.key == table.key


def _broken(old: Event, new: Event) -> frozenset[str]:
    """The fields of a source whose values before and after a change are not of one kind."""
    found = (loss.field for loss in differences(old, new).losses)
    return frozenset(name for name in found if name is not None)
