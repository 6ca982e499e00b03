"""From what is asked for to what the registry would be: who owns what, what falls with it, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from headrace.deadline import check_deadline
from headrace.engine.features.registry import DEFAULT_APP, Current, FeatureDocument
from headrace.schema.descriptor.diff import Diff, diff, fingerprint
from headrace.schema.descriptor.nodes import Node, Table
from headrace.schema.descriptor.registration import Registration
from headrace.schema.descriptor.validate import upstream, validate
from headrace.schema.problem import RequestProblem

#: How paths name nodes that the payload does not have.
_ELSEWHERE = "registry."


class FeatureChange(msgspec.Struct, frozen=True):
    """A change that is asked for: the nodes of some apps, whole, and on which terms."""

    nodes: dict[str, Node]
    owners: dict[str, str]
    #: The apps that have these nodes from now on and no others; None is all.
    apps: frozenset[str] | None
    app: str = DEFAULT_APP
    force: bool = False
    dry_run: bool = False
    backfill: bool | None = None
    expected_version: int | None = None
    cascade: bool = False
    action: str = "register"

    @classmethod
    def of(cls, registration: Registration) -> FeatureChange:
        """What a payload asks for: the full set of its app."""
        return cls(
            nodes=dict(registration.nodes),
            owners=dict.fromkeys(registration.nodes, registration.app),
            apps=frozenset([registration.app]),
            app=registration.app,
            force=registration.force,
            dry_run=registration.dry_run,
            backfill=registration.backfill,
            expected_version=registration.expected_version,
            cascade=registration.cascade,
        )

    def back_to(self, document: FeatureDocument) -> FeatureChange:
        """The same terms, for the nodes that an earlier registry had."""
        nodes = {name: node for name, node in document.nodes.items() if self.covers(document.apps[name])}
        owners = {name: document.apps[name] for name in nodes}
        return msgspec.structs.replace(self, nodes=nodes, owners=owners, action="rollback")

    def covers(self, app: str) -> bool:
        """Whether it says everything about an app."""
        return self.apps is None or app in self.apps


class FeatureProposal(NamedTuple):
    """What the registry would be, how that differs from what it is, and who forbids it even with force."""

    base: Current
    change: FeatureChange
    nodes: dict[str, Node]
    apps: dict[str, str]
    diff: Diff
    refusals: list[RequestProblem]

    @property
    def changes_nothing(self) -> bool:
        """Whether the registry is what is asked for."""
        return self.apps == self.base.apps and fingerprint(self.nodes) == fingerprint(self.base.nodes)

    def has_stream(self, name: str) -> bool:
        """Whether events of a node can be read."""
        return not isinstance(self.nodes[name], Table)

    def path_of(self, name: str) -> str:
        """Where the payload has a node."""
        return path_of(self.change, name)

    def losses(self) -> Iterator[RequestProblem]:
        """What would be taken away."""
        for loss in self.diff.losses:
            yield RequestProblem("registration_conflict", self.path_of(loss.node) + loss.rest, loss.message)


def path_of(change: FeatureChange, name: str) -> str:
    """Where the payload of a change has a node, or that it does not have it."""
    check_deadline()
    names = list(change.nodes)
    return f"descriptors[{names.index(name)}]" if name in change.nodes else _ELSEWHERE + name


def propose(base: Current, change: FeatureChange) -> FeatureProposal | list[RequestProblem]:
    """What a change would make of a registry, or everything that is wrong with what it asks for."""
    refusals = _refusals(base, change)
    nodes = {name: node for name, node in base.nodes.items() if not change.covers(base.apps[name])}
    nodes |= change.nodes
    apps = {name: change.owners.get(name) or base.apps[name] for name in nodes}
    others = _fallen(base, change, nodes, apps)
    while problems := validate(nodes, change.nodes):
        check_deadline()
        ours = [problem for problem in problems if not problem.path.startswith(_ELSEWHERE)]
        if ours:
            return ours
        # What others have registered does not fit this change: it falls as if its upstream were gone.
        for problem in problems:
            name = problem.path.removeprefix(_ELSEWHERE).split(".")[0]
            if name in nodes:
                others[name] = upstream(nodes.pop(name)) or name
                del apps[name]
        others |= _fallen(base, change, nodes, apps)
    if not change.cascade:
        refusals += [_used_by(base, change, name, over) for name, over in others.items()]
    owned = {name for name, app in base.apps.items() if change.covers(app)}
    return FeatureProposal(base, change, nodes, apps, diff(base.nodes, nodes, owned), refusals)


def _used_by(base: Current, change: FeatureChange, name: str, over: str) -> RequestProblem:
    message = f"{over!r} is used by {name!r} of the app {base.apps[name]!r}: with cascade that is removed too"
    return RequestProblem("used_by", path_of(change, over), message)


def _refusals(base: Current, change: FeatureChange) -> list[RequestProblem]:
    """Why the registry as it is does not let this be asked for."""
    problems = []
    expected = change.expected_version
    if expected is not None and expected != base.version:
        message = f"the registry has version {base.version}, not {expected}"
        problems.append(RequestProblem("version_conflict", "expected_version", message))
    for name in change.nodes:
        owner = base.apps.get(name)
        if owner is not None and not change.covers(owner):
            message = f"{name!r} belongs to the app {owner!r}"
            problems.append(RequestProblem("owned_by", f"{path_of(change, name)}.name", message))
    return problems


def _fallen(base: Current, change: FeatureChange, nodes: dict[str, Node], apps: dict[str, str]) -> dict[str, str]:
    """Take away what was registered over nodes that are gone; answers what of it belongs to others, and over what."""
    others: dict[str, str] = {}
    while True:
        check_deadline()
        fallen = {
            name: before
            for name, node in nodes.items()
            if name in base.nodes and (before := upstream(node)) is not None and _is_gone(base, nodes, before)
        }
        if not fallen:
            return others
        for name, before in fallen.items():
            if not change.covers(apps[name]):
                others[name] = before
            del nodes[name], apps[name]


def _is_gone(base: Current, nodes: Mapping[str, Node], name: str) -> bool:
    return name in base.nodes and name not in nodes
