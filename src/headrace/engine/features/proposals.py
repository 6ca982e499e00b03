"""Proposals for the feature registry: the nodes of all apps after a change, what is removed with it, and problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from headrace.deadline import check_deadline
from headrace.engine.features.registry import DEFAULT_APP, Current, FeatureDocument
from headrace.schema.descriptor.bound_fields import StreamBinding
from headrace.schema.descriptor.diff import Diff, diff, fingerprint
from headrace.schema.descriptor.nodes import Derivation, Event, Node
from headrace.schema.descriptor.registration import Registration
from headrace.schema.descriptor.validate import upstream, validate
from headrace.schema.problem import RequestProblem

#: How paths name nodes that the payload does not have.
_ELSEWHERE = "registry."


class FeatureChange(msgspec.Struct, frozen=True):
    """A requested change: all nodes of some apps, and its options."""

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
    #: Sources as an earlier registry had them, and how they were bound to streams.
    earlier: dict[str, tuple[Node | None, StreamBinding | None]] = {}

    @classmethod
    def of(cls, registration: Registration) -> FeatureChange:
        """The change of a payload, which has all nodes of its app."""
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
        """A change with the same options, to the nodes that an earlier registry had."""
        nodes = {name: node for name, node in document.nodes.items() if self.covers(document.apps[name])}
        owners = {name: document.apps[name] for name in nodes}
        earlier = {name: (document.nodes[name], binding) for name, binding in document.sources.items()}
        return msgspec.structs.replace(self, nodes=nodes, owners=owners, action="rollback", earlier=earlier)

    def covers(self, app: str) -> bool:
        """Whether it has all nodes of an app."""
        return self.apps is None or app in self.apps

    def path_of(self, name: str) -> str:
        """Where the payload has a node, or that it does not have it."""
        check_deadline()
        return f"descriptors[{list(self.nodes).index(name)}]" if name in self.nodes else _ELSEWHERE + name


class FeatureProposal(NamedTuple):
    """The registry after a change, how it differs, and the refusals that hold even with force."""

    base: Current
    change: FeatureChange
    nodes: dict[str, Node]
    apps: dict[str, str]
    diff: Diff
    refusals: list[RequestProblem]

    @property
    def changes_nothing(self) -> bool:
        """Whether the registry would stay as it is."""
        return self.apps == self.base.apps and fingerprint(self.nodes) == fingerprint(self.base.nodes)

    def new_streams(self) -> Iterator[str]:
        """The nodes whose events can be read under their names, and could not before."""
        for name, node in self.nodes.items():
            if _has_stream(node) and not _has_stream(self.base.nodes.get(name)):
                yield name

    def losses(self) -> Iterator[RequestProblem]:
        """The problems that list the removals for which force is needed."""
        for loss in self.diff.losses:
            yield RequestProblem("registration_conflict", self.change.path_of(loss.node) + loss.rest, loss.message)


def propose(base: Current, change: FeatureChange) -> FeatureProposal | list[RequestProblem]:
    """The registry after a change, or every problem with the nodes of the change."""
    refusals = _refusals(base, change)
    nodes = {name: node for name, node in base.nodes.items() if not change.covers(base.apps[name])}
    nodes |= change.nodes
    apps = {name: change.owners.get(name) or base.apps[name] for name in nodes}
    others = _remove_downstream(base, change, nodes, apps)
    while problems := validate(nodes, change.nodes):
        check_deadline()
        ours = [problem for problem in problems if not problem.path.startswith(_ELSEWHERE)]
        if ours:
            return ours
        # Nodes of other apps that do not fit this change are removed as if their upstream were.
        for problem in problems:
            name = problem.path.removeprefix(_ELSEWHERE).split(".")[0]
            if name in nodes:
                others[name] = upstream(nodes.pop(name)) or name
                del apps[name]
        others |= _remove_downstream(base, change, nodes, apps)
    if not change.cascade:
        refusals += [_used_by(base, change, name, over) for name, over in others.items()]
    owned = {name for name, app in base.apps.items() if change.covers(app)}
    return FeatureProposal(base, change, nodes, apps, diff(base.nodes, nodes, owned), refusals)


def _has_stream(node: Node | None) -> bool:
    """Whether there is a stream of the name of a node."""
    return isinstance(node, Derivation) or (isinstance(node, Event) and node.stream is None)


def _used_by(base: Current, change: FeatureChange, name: str, over: str) -> RequestProblem:
    message = f"{over!r} is used by {name!r} of the app {base.apps[name]!r}: with cascade that is removed too"
    return RequestProblem("used_by", change.path_of(over), message)


def _refusals(base: Current, change: FeatureChange) -> list[RequestProblem]:
    """Why the current registry refuses a change."""
    problems = []
    expected = change.expected_version
    if expected is not None and expected != base.version:
        message = f"the registry has version {base.version}, not {expected}"
        problems.append(RequestProblem("version_conflict", "expected_version", message))
    for name in change.nodes:
        owner = base.apps.get(name)
        if owner is not None and not change.covers(owner):
            message = f"{name!r} belongs to the app {owner!r}"
            problems.append(RequestProblem("owned_by", f"{change.path_of(name)}.name", message))
    return problems


def _remove_downstream(
    base: Current, change: FeatureChange, nodes: dict[str, Node], apps: dict[str, str]
) -> dict[str, str]:
    """Remove nodes whose upstream is removed; returns those of other apps, each with its upstream."""
    others: dict[str, str] = {}
    while True:
        check_deadline()
        downstream = {
            name: above
            for name, node in nodes.items()
            if name in base.nodes and (above := upstream(node)) is not None and _is_removed(base, nodes, above)
        }
        if not downstream:
            return others
        for name, above in downstream.items():
            if not change.covers(apps[name]):
                others[name] = above
            del nodes[name], apps[name]


def _is_removed(base: Current, nodes: Mapping[str, Node], name: str) -> bool:
    return name in base.nodes and name not in nodes
