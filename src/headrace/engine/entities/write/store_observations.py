"""Storing observations: one operation of the writer for all of a request, whatever types its entities have.

What was stored before is found out in the commit, and so is which entities there are already: nobody comes between
that and the decision whether an entity may be merged. A dry run takes the same way up to what would be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headrace.engine.entities.entity_type import EntityType
from headrace.engine.entities.write.store_request import Prepared, Typed
from headrace.engine.entities.write.type_batch import TypeBatch
from headrace.engine.log.append import Append
from headrace.engine.log.batch import Batch, Operation
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.log.writer import Writer
from headrace.errors import Conflict, IdempotencyCollision
from headrace.schema.entity.request import refusal
from headrace.storage.dedupe import Answered, Idempotency
from headrace.storage.erasures import Erasures
from headrace.storage.streams import LIVE

_PREVIEWED = {"created": "would_create", "updated": "would_match_existing", "unchanged": "would_match_existing"}


class TypesOutdated(Conflict):
    """The types of a request are not what they were when it was accepted: it has to be accepted again."""


class ObservationSource(Protocol):
    """Something to be stored, which can be made of it again where a schema has changed meanwhile."""

    user_id: str
    #: A repeated request of the same key and digest is answered as it was before.
    idempotency_key: str | None
    digest: bytes
    #: Whether it is to come true, or only to be looked at.
    commit: bool
    #: How many erasures a type had seen when what this is made of was read; None where nothing was read for it.
    erasures: int | None

    def prepare(self, typed: Mapping[str, Typed]) -> Prepared:
        """The observations by the types that hold, by their names."""

    def answer(self, prepared: Prepared) -> bytes:
        """What is told once it is decided what becomes of each observation."""


class StoreObservations(Operation):
    """The observations of one request, or nothing at all; ``body`` is the answer once it is settled."""

    appends = True
    body = b""
    #: Whether it was answered before, and is answered the same again.
    replayed = False

    def __init__(
        self,
        source: ObservationSource,
        prepared: Prepared,
        log: Log,
        done: Callable[[StoreObservations], None],
        caller: Any = None,
    ) -> None:
        """``done`` is told of the outcome; who the ``caller`` is, is between it and whoever wishes."""
        self.source, self.prepared = source, prepared
        self.log, self.done, self.caller = log, done, caller
        self.size = sum(map(len, prepared.joined.values())) + 200
        streams = (drafts[0].typed.stream for drafts in prepared.drafts.values())
        self.pinned = tuple(stream for stream in streams if stream is not None)
        self.parts: list[Append] = []

    def submit(self, writer: Writer) -> None:
        """Queue it, and hold its streams until it is settled."""
        writer.submit(self)
        for stream in self.pinned:
            stream.pins += 1

    def answer(self) -> None:
        """Let go of the streams once settled, tell who waits for their entries, and answer."""
        if self.settled:
            for stream in self.pinned:
                stream.pins -= 1
            for part in self.parts:
                part.error = self.error
                self.log.settled(part)
        self.done(self)

    def perform(self, batch: Batch) -> None:
        """Find out what is new, refuse what may not be, and store the rest."""
        self.parts = []
        if self._is_repeated(batch):
            return
        self._admit_again(batch)
        prepared, source = self.prepared, self.source
        if source.commit and any(drafts[0].typed.stream is None for drafts in prepared.drafts.values()):
            raise TypesOutdated("a type of the request has no schema yet")
        if source.erasures is not None and any(_erasures(batch, stream) != source.erasures for stream in self.pinned):
            raise TypesOutdated("something was erased meanwhile")
        shares = {name: TypeBatch(batch, drafts, source.user_id) for name, drafts in prepared.drafts.items()}
        self._refuse(batch, list(shares.values()))
        if source.commit:
            parts = [type_batch.write(batch, prepared.joined[name]) for name, type_batch in shares.items()]
            self.parts = [part for part in parts if part is not None]
        self._name_actions()
        self.body = source.answer(prepared)
        if source.commit:
            self._remember(batch)

    def _is_repeated(self, batch: Batch) -> bool:
        """Whether the request was answered before; another one of the same key is refused."""
        key = self.source.idempotency_key
        answer = None if key is None else Idempotency(batch.connection).find(self.source.user_id, key)
        if answer is None:
            return False
        if answer.digest != self.source.digest:
            raise IdempotencyCollision("this idempotency key was used for another request", idempotency_key=key)
        self.body, self.replayed = answer.answer, self.source.commit
        return self.replayed

    def _admit_again(self, batch: Batch) -> None:
        """Accept everything by the schemas that hold now, where one has changed since."""
        before = {name: drafts[0].typed for name, drafts in self.prepared.drafts.items()}
        now = {name: _now(batch, typed, self.source.user_id) for name, typed in before.items()}
        if any(now[name] is not typed for name, typed in before.items()):
            self.prepared = self.source.prepare(now)

    def _refuse(self, batch: Batch, shares: list[TypeBatch]) -> None:
        issues = [issue for type_batch in shares for issue in type_batch.issues]
        if issues:
            raise refusal(sorted(issues, key=lambda issue: issue.item))
        records = Idempotency(batch.connection)
        for key, draft in self.prepared.keys:
            answer = records.find(self.source.user_id, key)
            if answer is not None and answer.digest != draft.observation.id.encode():
                message = f"the idempotency key of entity {draft.item} was used for something else"
                raise IdempotencyCollision(message, idempotency_key=key, item=draft.item)
        for type_batch in shares:
            for draft, notice in type_batch.notices:
                self.prepared.warnings.add(draft.typed.entity_type, draft.item, [notice])

    def _name_actions(self) -> None:
        for answer in self.prepared.told:
            answer.action = answer.action or "unchanged"
            if not self.source.commit:
                answer.action = _PREVIEWED[answer.action]

    def _remember(self, batch: Batch) -> None:
        """Keep the answer for the same request, and what single entities with keys of their own became."""
        source, records = self.source, Idempotency(batch.connection)
        if source.idempotency_key is not None:
            records.save(source.user_id, source.idempotency_key, Answered(source.digest, self.body), batch.now_us)
        for key, draft in self.prepared.keys:
            if records.find(source.user_id, key) is None:
                records.save(source.user_id, key, Answered(draft.observation.id.encode(), b""), batch.now_us)


class RehearseStore(StoreObservations):
    """A request that is only looked at before it makes types: refused where it would be, and nothing is written."""

    #: Whether it was answered before.
    known = False

    def _is_repeated(self, batch: Batch) -> bool:
        super()._is_repeated(batch)
        self.known = bool(self.body)
        return self.known


def _erasures(batch: Batch, stream: Stream) -> int:
    return Erasures(batch.connection).count(stream.id)


def _now(batch: Batch, typed: Typed, user_id: str) -> Typed:
    """A type as the commit finds it: the very same where nothing has changed."""
    if typed.stream is None:
        return typed
    head = batch.draft(typed.stream)
    if head.state == LIVE and head.registry is typed.registry:
        return typed
    kind = None if head.state != LIVE or head.registry is None else head.registry.hook
    effective = kind.effective(user_id) if isinstance(kind, EntityType) else None
    if effective is None:
        raise TypesOutdated(f"the schema of {typed.entity_type} went away meanwhile", entity_type=typed.entity_type)
    return Typed(typed.entity_type, effective, typed.stream, head.registry)
