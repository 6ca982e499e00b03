"""The verbs of the feature registry: register, roll back, look up. All run on the event loop, except the thinking.

A dry run says what a change would do as things stand now; the commit decides anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from headrace.engine.features.activation import ReadableRange, decide
from headrace.engine.features.apply_change import ApplyFeatureChange
from headrace.engine.features.proposals import FeatureChange, FeatureProposal, propose
from headrace.engine.features.registry import EVENTS, Current, load
from headrace.engine.features.stream_changes import evolved
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.gates import ComputeThreads
from headrace.errors import BadRequest, Conflict, HeadraceError
from headrace.schema.descriptor.nodes import Event
from headrace.schema.descriptor.registration import RegistrationResponse, Status
from headrace.schema.problem import RequestProblem
from headrace.storage.feature_registry import FeatureRegistry, FeatureRegistryRow
from headrace.storage.streams import LIVE

Effects = list[dict[str, Any]]


def preview(proposal: FeatureProposal, streams: Mapping[str, Stream]) -> tuple[Effects, Effects]:
    """The features that would not simply go on, and the streams that would change."""
    effects: Effects = []
    reaches: dict[str, ReadableRange] = {}
    for name, event in proposal.nodes.items():
        if not isinstance(event, Event):
            continue
        stream = streams.get(name)
        if stream is None or stream.head.registry is None:
            effects.append({"event": name, "change": "created", "schema_version": 1})
            continue
        head = stream.head
        made = evolved(stream.head.registry, event, head.next_seq)
        reaches[name] = ReadableRange(max(head.first_seq, made.registry.readable_from), head.next_seq)
        if made.effect != "kept":
            effects.append({"event": name, "change": made.effect, "schema_version": made.registry.current_version})
    effects += [{"event": name, "change": "deleted"} for name in streams if not _is_event(proposal, name)]
    _, features = decide(
        proposal.base,
        proposal.nodes,
        proposal.diff,
        lambda name: reaches.get(name, ReadableRange()),
        backfill=proposal.change.backfill,
        name=lambda feature: feature,
    )
    return features, effects


def _is_event(proposal: FeatureProposal, name: str) -> bool:
    return isinstance(proposal.nodes.get(name), Event)


_TRIES = 20


class Features:
    """The feature registry of this node."""

    def __init__(
        self,
        *,
        writer: Writer,
        log: Log,
        registry: FeatureRegistry,
        computing: ComputeThreads,
        patience_s: float,
        most_keys: int,
    ) -> None:
        self._writer = writer
        self._log = log
        self._registry = registry
        self._computing, self._patience_s = computing, patience_s
        self._most_keys = most_keys
        #: The version that holds: replaced by the writer's thread once the next one is on disk.
        self.current = Current.of(None)

    def load(self) -> None:
        """Begin with the newest version; called before anything is served."""
        self.current = Current.of(self._registry.newest())

    def history(self, after: int, limit: int) -> list[FeatureRegistryRow]:
        """Versions after one, in order."""
        return self._registry.page(after, limit)

    async def register(self, change: FeatureChange, who: str) -> RegistrationResponse:
        """Make a change, or say what it would do or why it is refused."""
        for _ in range(_TRIES):
            base = self.current
            proposal = await self._computing.plan(self._patience_s, partial(propose, base, change))
            if isinstance(proposal, list):
                return RegistrationResponse("invalid", base.version, errors=proposal, refused=True)
            answer = self._unless_applied(proposal)
            if answer is not None:
                return answer
            applied = await self._apply(proposal, who)
            if not applied.outdated:
                return _done(applied)
        raise Conflict("the registry keeps changing; read it and try again")

    async def rollback(self, version: int, change: FeatureChange, who: str) -> RegistrationResponse:
        """Change back to what an earlier version was: all of it, or one app's part."""
        row = self._registry.get(version)
        if row is None:
            raise BadRequest(f"there is no version {version}; the newest is {self.current.version}", field="version")
        document = load(row)
        return await self.register(change.back_to(document), who)

    def _unless_applied(self, proposal: FeatureProposal) -> RegistrationResponse | None:
        """The answer where nothing is to be changed; None where it is."""
        base, change, diff = proposal.base, proposal.change, proposal.diff
        errors = [*proposal.refusals, *self._taken(proposal)]
        needs_force = diff.destructive and not change.force
        status: Status = "conflict" if errors or needs_force else "ok"
        if status == "ok" and not change.dry_run and not proposal.changes_nothing:
            return None
        features, streams = preview(proposal, self._streams(proposal))
        if needs_force:
            errors += proposal.losses()
        return RegistrationResponse(
            status,
            base.version,
            list(diff.added),
            list(diff.removed),
            list(diff.changed),
            features,
            streams,
            errors,
            status == "conflict" and not change.dry_run,
        )

    def _taken(self, proposal: FeatureProposal) -> list[RequestProblem]:
        """Streams that have the names of nodes and are none of ours."""
        problems = []
        for name in proposal.diff.added:
            stream = self._log.catalog.find(EVENTS + name) if proposal.has_stream(name) else None
            if stream is not None and not stream.managed:
                message = f"the stream {EVENTS}{name} exists already and is no event source: delete or rename it"
                problems.append(RequestProblem("name_taken", proposal.path_of(name), message))
        return problems

    def _streams(self, proposal: FeatureProposal) -> dict[str, Stream]:
        """The streams of event sources that exist, by name of the source; of a new one where a recovery found it."""
        nodes = {**proposal.nodes, **proposal.base.nodes}
        events = [name for name, node in nodes.items() if isinstance(node, Event)]
        streams = {name: self._log.catalog.find(EVENTS + name) for name in events}
        return {
            name: stream
            for name, stream in streams.items()
            if stream is not None and stream.managed and stream.head.state == LIVE
        }

    async def _apply(self, proposal: FeatureProposal, who: str) -> ApplyFeatureChange:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(apply: ApplyFeatureChange) -> None:
            if apply.settled:
                if apply.error is None and not apply.outdated:
                    self._announce(apply)
                if not settled.done():
                    settled.set_result(None)

        apply = ApplyFeatureChange(proposal, self._streams(proposal), who, self._most_keys, self._publish, done)
        apply.submit(self._writer)
        await settled
        if apply.error is not None:
            raise apply.error
        return apply

    def _publish(self, current: Current) -> None:
        self.current = current

    def _announce(self, apply: ApplyFeatureChange) -> None:
        """Let everyone know, on the event loop."""
        self._log.note_deleted(apply.dropped, apply.deleted)
        for name, stream in apply.streams.items():
            node = apply.current.nodes.get(name)
            if isinstance(node, Event):
                age_ms = node.keep_events_for_ms
                stream.retention_age_us = None if age_ms is None else age_ms * 1000


def _done(apply: ApplyFeatureChange) -> RegistrationResponse:
    plan = apply.current.document.plan
    return RegistrationResponse(
        "ok",
        apply.current.version,
        list(plan.added),
        list(plan.removed),
        list(plan.changed),
        list(plan.features),
        list(plan.streams),
    )


def refusal(error: HeadraceError, version: int) -> RegistrationResponse:
    """An error that came up in the commit, as an answer."""
    return RegistrationResponse(
        "conflict", version, errors=[RequestProblem(error.code, "", error.message)], refused=True
    )
