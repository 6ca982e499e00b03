"""The verbs of the feature registry: register, roll back, look up. All run on the event loop; proposals are computed in
a thread.
"""

from __future__ import annotations

from functools import partial

from headrace.engine.features import bound_sources
from headrace.engine.features.definitions import impact_on_tables
from headrace.engine.features.feature_stages import PlannedFeatureChange, SaveFeatures, SourceStreams
from headrace.engine.features.proposals import FeatureChange, FeatureProposal, propose
from headrace.engine.features.registry import EVENTS, Current, load
from headrace.engine.features.source import MakeSource
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.registry.registry_change import RegistryChange, RegistryChanges
from headrace.errors import BadRequest, HeadraceError
from headrace.schema.descriptor.nodes import Event
from headrace.schema.descriptor.registration import RegistrationResponse
from headrace.schema.plan import ValueImpact
from headrace.schema.problem import RequestProblem
from headrace.schema.registry import Registry
from headrace.storage.journals import FeatureRegistry, FeatureRegistryRow
from headrace.storage.streams import LIVE


class InvalidDescriptors(Exception):
    """Everything that is wrong with a payload."""

    def __init__(self, version: int, problems: list[RequestProblem]) -> None:
        super().__init__(problems)
        self.version, self.problems = version, problems


class Features:
    """The feature registry of this node."""

    def __init__(
        self, *, registry_changes: RegistryChanges, log: Log, registry: FeatureRegistry, make_source: MakeSource
    ) -> None:
        self._changes = registry_changes
        self._log = log
        self._registry = registry
        self._make_source = make_source
        #: The version that holds: replaced by the writer's thread once the next one is on disk.
        self.current = Current.of(None)

    def load(self) -> None:
        """Begin with the newest version; called before anything is served."""
        self.current = Current.of(self._registry.newest())

    def history(self, after: int, limit: int) -> list[FeatureRegistryRow]:
        """Versions after one, in order."""
        return self._registry.page(after, limit)

    async def register(self, change: FeatureChange, who: str) -> RegistrationResponse:
        """Make a change, or only plan it with ``dry_run``; the response says what changed or why it is refused."""
        try:
            return _answer(await self._changes.run(partial(self.prepare, change), who, dry_run=change.dry_run))
        except InvalidDescriptors as reason:
            return RegistrationResponse("invalid", reason.version, errors=reason.problems, refused=True)

    async def rollback(self, version: int, change: FeatureChange, who: str) -> RegistrationResponse:
        """Change back to what an earlier version was: all of it, or one app's part."""
        row = self._registry.get(version)
        if row is None:
            raise BadRequest(f"there is no version {version}; the newest is {self.current.version}", field="version")
        document = load(row)
        return await self.register(change.back_to(document), who)

    async def prepare(self, change: FeatureChange) -> PlannedFeatureChange:
        """A change, planned from the version that holds now; raises InvalidDescriptors."""
        base, find = self.current, self._log.catalog.find
        change = bound_sources.with_followed_pointers(base, change, find)
        proposal = await self._changes.compute(partial(propose, base, change))
        if isinstance(proposal, list):
            raise InvalidDescriptors(base.version, proposal)
        bound = bound_sources.find_bound_streams(proposal, find)
        if problems := list(bound_sources.binding_problems(proposal, bound)):
            raise InvalidDescriptors(base.version, problems)
        rebound = bound_sources.find_rebound(proposal, bound)
        return PlannedFeatureChange(
            proposal,
            SourceStreams(self._streams(proposal), bound, frozenset(rebound)),
            errors=[
                *proposal.refusals,
                *self._taken(proposal),
                *bound_sources.rebinding_problems(proposal, rebound),
            ],
            make_source=self._make_source,
            log=self._log,
            publish=self._publish,
        )

    def impact_on(self, stream: Stream, old: Registry, new: Registry) -> tuple[ValueImpact, ...]:
        """What a change of the schema of a stream does to features that are computed from it."""
        return tuple(impact_on_tables(self.current, stream.name, stream.incarnation, old, new))

    def _taken(self, proposal: FeatureProposal) -> list[RequestProblem]:
        """Streams that have the names of nodes and are none of ours."""
        problems = []
        for name in proposal.new_streams():
            stream = self._log.catalog.find(EVENTS + name)
            if stream is not None and not stream.managed:
                message = f"the stream {EVENTS}{name} exists already and is no event source: delete or rename it"
                problems.append(RequestProblem("name_taken", proposal.change.path_of(name), message))
        return problems

    def _streams(self, proposal: FeatureProposal) -> dict[str, Stream]:
        """The streams of event sources that exist, by name of the source; of a new one where a recovery found it."""
        nodes = {**proposal.nodes, **proposal.base.nodes}
        events = [name for name, node in nodes.items() if isinstance(node, Event) and node.stream is None]
        streams = {name: self._log.catalog.find(EVENTS + name) for name in events}
        return {
            name: stream
            for name, stream in streams.items()
            if stream is not None and stream.managed and stream.head.state == LIVE
        }

    def _publish(self, current: Current) -> None:
        self.current = current


def _answer(change: RegistryChange[PlannedFeatureChange]) -> RegistrationResponse:
    """The answer to a change that was made, or why it was not."""
    planned, proposal = change.planned, change.planned.proposal
    errors = [*planned.errors, *(proposal.losses() if planned.needs_force else ())]
    (saved,) = (stage for stage in change.stages if isinstance(stage, SaveFeatures))
    applied = saved.document.plan
    return RegistrationResponse(
        "conflict" if planned.is_refused else "ok",
        saved.version if change.is_applied else proposal.base.version,
        list(applied.added),
        list(applied.removed),
        list(applied.changed),
        list(applied.features),
        list(applied.streams),
        errors,
        planned.is_refused and not proposal.change.dry_run,
    )


def refusal(error: HeadraceError, version: int) -> RegistrationResponse:
    """An error that came up in the commit, as an answer."""
    return RegistrationResponse(
        "conflict", version, errors=[RequestProblem(error.code, "", error.message)], refused=True
    )
