"""Storing observations: one operation of the writer for all of a request, whatever types its entities have.

The commit finds out which observations were stored before and which entities exist, so that nobody comes between that
and the decision whether an entity may be merged. A dry run does the same, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Protocol

from headrace.engine.entities.entity_type import EntityType
from headrace.engine.entities.write.store_request import Draft, Prepared, Typed, bodies
from headrace.engine.log.append import Append, find_remembered
from headrace.engine.log.batch import Batch, Operation
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.log.writer import Writer
from headrace.errors import Conflict, EntityNotFound, IdempotencyCollision
from headrace.schema.entity.nodes import Notice
from headrace.schema.entity.observation import Observation
from headrace.schema.entity.request import Issue, refusal
from headrace.schema.problem import RequestProblem
from headrace.storage.background_requests import Erasures
from headrace.storage.dedupe import Dedupe, Idempotency, StoredAnswer
from headrace.storage.entities import Entities, SourceRange, Sources
from headrace.storage.streams import LIVE


class TypeBatch:
    """The observations of one type in a request; deciding writes nothing yet."""

    def __init__(self, batch: Batch, drafts: list[Draft], user_id: str) -> None:
        typed = drafts[0].typed
        self._user_id = user_id
        self._stream = typed.stream
        self._drafts = self._fresh = drafts
        #: Entities that are new, with the places of their first observations among the new ones.
        self._created: dict[str, tuple[str, int]] = {}
        self.issues: list[Issue] = []
        self.notices: list[tuple[Draft, Notice]] = []
        there: set[str] = set()
        if self._stream is not None:
            self._fresh = self._unknown(batch)
            there = Entities(batch.connection).existing([draft.identity.entity_id for draft in self._fresh])
        for index, draft in enumerate(self._fresh):
            self._decide(batch, draft, index, there)

    def _unknown(self, batch: Batch) -> list[Draft]:
        """The observations that were not stored before."""
        assert self._stream is not None
        head = batch.draft(self._stream)
        assert head.registry is not None and head.registry.hook is not None
        keys: list[str | None] = [draft.key for draft in self._drafts]
        remembered = find_remembered(batch, self._stream.id, head, head.registry.hook, keys, batch.now_us)
        return [draft for draft in self._drafts if draft.key not in remembered] if remembered else self._drafts

    def _decide(self, batch: Batch, draft: Draft, index: int, there: set[str]) -> None:
        entity_id = draft.identity.entity_id
        if draft.is_targeted and not self._is_ours(batch, entity_id):
            self._refuse(draft, EntityNotFound.code, f"there is no {draft.typed.entity_type} {entity_id}")
        elif entity_id in there or entity_id in self._created:
            draft.told.action = "updated"
            collision = draft.collision()
            if isinstance(collision, RequestProblem):
                self._refuse(draft, collision.code, collision.message, "strict" if draft.strict else "schema_policy")
            elif collision is not None:
                self.notices.append((draft, collision))
        else:
            draft.told.action = "created"
            self._created[entity_id] = draft.identity.canonical_name, index

    def _is_ours(self, batch: Batch, entity_id: str) -> bool:
        row = Entities(batch.connection).find(entity_id)
        return (
            row is not None
            and row.user_id == self._user_id
            and self._stream is not None
            and row.stream == self._stream.id
        )

    def _refuse(self, draft: Draft, code: str, message: str, reason: str | None = None) -> None:
        self.issues.append(Issue(code, message, draft.item, draft.typed.entity_type, reason=reason))

    def write(self, batch: Batch, joined: bytes) -> Append | None:
        """Store what is new, given all of it joined by commas; answers what was appended, if anything was."""
        stream, fresh = self._stream, self._fresh
        if stream is None or not fresh:
            return None
        head = batch.draft(stream)
        first, at_us = head.next_seq, max(batch.now_us, head.last_us)
        Dedupe(batch.connection).save_run(stream.id, [draft.key for draft in fresh], first, at_us)
        if self._created:
            created = [(entity_id, name, first + index) for entity_id, (name, index) in self._created.items()]
            Entities(batch.connection).save(stream.id, self._user_id, at_us, created)
        self._write_sources(batch, stream.id, first, at_us)
        body = joined if fresh is self._drafts else bodies(fresh)
        part = Append(stream, body, len(fresh), _ignore)
        part.deduplicated = len(self._drafts) - len(fresh)
        part.route([draft.identity.entity_id for draft in fresh], head)
        part.write(batch, head, at_us)
        return part

    def _write_sources(self, batch: Batch, stream: int, first: int, at_us: int) -> None:
        """Note where the observations of each source lie."""
        sources = Sources(batch.connection)
        for source_id, group in groupby(self._fresh, key=lambda draft: source_of(draft.observation)):
            count = len(list(group))
            if source_id is not None:
                sources.save(self._user_id, source_id, [SourceRange(stream, first, count, at_us)])
            first += count


def source_of(observation: Observation) -> str | None:
    """The source that brought an observation; a value that is only observed again was brought before."""
    return None if observation.kind == "migration" else observation.source_id


def _ignore(append: Append) -> None:
    """Whoever stores observations is told of all of them at once."""


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
            records.save(source.user_id, source.idempotency_key, StoredAnswer(source.digest, self.body), batch.now_us)
        for key, draft in self.prepared.keys:
            if records.find(source.user_id, key) is None:
                records.save(source.user_id, key, StoredAnswer(draft.observation.id.encode(), b""), batch.now_us)


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
