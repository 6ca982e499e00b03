"""Sources by name: what is shown is what a plain list of everything observed says, whatever became of it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from headrace.engine.entities.read.entity_list import EntityFilter
from headrace.engine.entities.read.snapshots import EntityQuery
from headrace.engine.entities.write.decisions import Decision, StoreDecision
from headrace.engine.entities.write.relations import SplitPredicate, moved_observations
from headrace.errors import NotFound
from headrace.schema.entity import request
from support.entity_rig import USER, Entities, contact

NAMES = ("crm-a", "CRM b", "Vertrieb/Süd", "9f0c2b1e-0000-4000-8000-000000000001")
PEOPLE = 4
_START_US = 1_700_000_000_000_000


@dataclass
class Observed:
    """One observation as a plain list keeps it; ``source`` is None for a correction."""

    entity_id: str
    at: int
    fields: dict[str, Any]
    source: str | None
    priority: int = 0


@dataclass
class Ledger:
    """Everything that was observed, and which entity was merged into which: the oracle."""

    observed: list[Observed] = field(default_factory=list)
    merged: dict[str, str] = field(default_factory=dict)

    def root(self, entity_id: str) -> str:
        while entity_id in self.merged:
            entity_id = self.merged[entity_id]
        return entity_id

    def of(self, entity_id: str) -> list[Observed]:
        return [one for one in self.observed if self.root(one.entity_id) == entity_id]

    def entities(self) -> set[str]:
        return {self.root(one.entity_id) for one in self.observed}

    def sources(self, entity_id: str) -> dict[str, list[str]]:
        """The sources of each field, by policy: name by priority, tags together, others the latest."""
        shown: dict[str, list[str]] = {}
        for name in {name for one in self.of(entity_id) for name in one.fields}:
            having = [one for one in self.of(entity_id) if name in one.fields]
            corrections = [one for one in having if one.source is None]
            if corrections:
                shown[name] = []
            elif name == "tags":
                greatest = max(one.priority for one in having)
                values: dict[str, str] = {}
                for one in sorted(having, key=lambda one: -one.at):
                    if one.priority == greatest:
                        for tag in one.fields[name]:
                            values.setdefault(tag, one.source or "")
                shown[name] = list(dict.fromkeys(values.values()))
            else:
                best = max(having, key=lambda one: (one.priority if name == "name" else 0, one.at))
                shown[name] = [best.source or ""]
        return shown


class Story:
    """Observations, corrections, merges and splits, each done to an engine and noted in a ledger."""

    def __init__(self, entities: Entities, random: Random) -> None:
        self.entities, self.random = entities, random
        self.ledger = Ledger()
        self.moment = 0

    def observe(self) -> None:
        random, shared = self.random, self.random.choice([None, *NAMES])
        batch: list[tuple[dict[str, Any], str | None, int]] = []
        for _ in range(random.randrange(1, 5)):
            own = random.choice([None, None, *NAMES])
            self.moment += 1
            at, priority = (
                _START_US + random.randrange(1_000_000) * 1000 + self.moment,
                random.choice([10, 100, 100, 500]),
            )
            fields: dict[str, Any] = {"email": f"u{random.randrange(PEOPLE)}@x.org"}
            fields |= {"name": random.choice("ab")} if random.random() < 0.6 else {}
            fields |= {"phone": random.choice("12")} if random.random() < 0.6 else {}
            fields |= {"tags": random.sample("xyz", random.randrange(1, 3))} if random.random() < 0.6 else {}
            meta = {"observed_at": f"{at}000", "source_priority": priority}
            meta |= {} if own is None else {random.choice(["source", "source_id"]): own}
            batch.append(({"entity_type": "contact", **fields, "_meta": meta}, own, at))
        terms = {} if shared is None else {random.choice(["source", "source_id"]): shared}
        entities = [entity for entity, _, _ in batch]
        parsed = request.read_store_request(msgspec.json.encode({"entities": entities, **terms}), USER)
        outcomes = self.entities.store(*entities, **terms)
        for outcome, (entity, own, at) in zip(outcomes, batch, strict=True):
            fields = {name: value for name, value in entity.items() if name not in ("entity_type", "_meta")}
            source = own or shared or parsed.source_id
            priority = entity["_meta"]["source_priority"]
            self.ledger.observed.append(Observed(outcome["entity_id"], at, fields, source, priority))

    def correct(self) -> None:
        entity_id = self.random.choice(sorted(self.ledger.entities()))
        self.entities.clock.us += 1_000_000
        engine, at_us = self.entities.engine, self.entities.clock.us
        fields = {"phone": str(at_us)}
        row, _ = engine.entity_store.find(entity_id, USER)
        decision = Decision(
            kind="correction",
            entity_id=entity_id,
            entity_type="contact",
            canonical_name=row.canonical_name,
            user_id=USER,
            at_us=at_us,
            fields=fields,
        )
        stores = engine.entity_store
        self.entities.run(stores.store(StoreDecision(decision), lambda: stores.require_type("contact", USER)))
        self.ledger.observed.append(Observed(entity_id, at_us, fields, None))

    def merge(self) -> None:
        roots = sorted(self.ledger.entities())
        if len(roots) > 1:
            one, other = self.random.sample(roots, 2)
            self.entities.clock.us += 1_000_000
            self.entities.run(self.entities.engine.entity_relations.merge(USER, one, other))
            self.ledger.merged[one] = other

    def unmerge(self) -> None:
        if self.ledger.merged:
            one = self.random.choice(sorted(self.ledger.merged))
            self.entities.clock.us += 1_000_000
            self.entities.run(self.entities.engine.entity_relations.unmerge(USER, one))
            del self.ledger.merged[one]

    def split(self) -> None:
        """Move what one source said of an entity to another entity."""
        roots = sorted(self.ledger.entities())
        moving = self.random.choice(roots)
        named = sorted({one.source for one in self.ledger.of(moving) if one.source is not None})
        if len(roots) < 2 or not named:
            return
        source, engine = self.random.choice(named), self.entities.engine
        target = self.random.choice([root for root in roots if root != moving])
        view = engine.snapshots.view(EntityQuery(moving, USER))
        stored = self.entities.run(engine.entity_list.observations(view, None, 1000, newest_first=False))
        moved = moved_observations(view, SplitPredicate(source_id=source), stored)
        self.entities.clock.us += 1_000_000
        row = engine.snapshots.groups.row(target, USER)
        self.entities.run(engine.entity_relations.split(USER, moving, row, moved))
        for one in self.ledger.of(moving):
            if one.source == source:
                one.entity_id = target

    def go_on(self) -> None:
        """Do something at random: most often observe."""
        entities = self.entities
        changes = [self.correct, self.merge, self.unmerge, self.split, entities.seal_type, self.work, entities.reopen]
        self.random.choice([*[self.observe] * 5, *changes])()

    def work(self) -> None:
        self.entities.seal_type()
        self.entities.work()
        self.entities.ready()

    def check(self) -> None:
        """Compare snapshots, histories and both filters with the ledger."""
        engine, ledger = self.entities.engine, self.ledger
        shown = {}
        for entity_id in sorted(ledger.entities()):
            snapshot = self.entities.shown(entity_id).snapshot
            assert snapshot is not None
            shown[entity_id] = snapshot.sources
            assert shown[entity_id] == ledger.sources(entity_id)
            view = engine.snapshots.view(EntityQuery(entity_id, USER))
            for source in NAMES:
                seen = self.entities.run(
                    engine.entity_list.observations(view, None, 1000, newest_first=False, source_id=source)
                )
                expected = [one.at for one in ledger.of(entity_id) if one.source == source]
                assert sorted(stored.observation.observed_at_us for stored in seen) == sorted(expected)
        stream = self.entities.find("entities/contact").id
        for source in NAMES:
            listed = self.entities.run(self.entities.list_entities(EntityFilter(USER, stream, source_id=source)))
            having = {id for id, sources in shown.items() if any(source in names for names in sources.values())}
            assert {answer.view.group.row.entity_id for answer in listed} == having
            if any(one.source == source for one in ledger.observed):
                assert engine.source_reader.require(USER, source) == source
            else:
                with pytest.raises(NotFound):
                    engine.source_reader.require(USER, source)


@pytest.mark.parametrize("seed", range(6))
def test_shown_sources_equal_a_plain_list_through_merges_splits_restarts_and_takeovers(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    settings: dict[str, Any] = {
        "storage": {"seal_rows": 8, "object_store": str(tmp_path / "store")},
        "features": {"fold_rows": 4},
        "pipeline": {"min_rows": 1, "unit_bytes": 2048},
    }
    policies = {"name": {"strategy": "highest_priority"}, "tags": {"strategy": "merge_array"}}
    with Entities(tmp_path / "0", **settings) as entities:
        entities.register_type(contact(policies=policies))
        story = Story(entities, random)
        story.observe()
        for step in range(30):
            story.go_on()
            if step % 5 == 4:
                story.check()
        entities.run(entities.engine.sealer.publish_journals())
        entities.seal_type()
        clock_us = entities.clock.us
    # Another server takes over, with nothing but the store.
    with Entities(tmp_path / "1", **settings) as story.entities:
        story.entities.clock.us = clock_us
        story.check()
        story.observe()
        story.check()


@pytest.fixture
def entities(tmp_path: Path) -> Iterator[Entities]:
    with Entities(tmp_path / "data") as opened:
        opened.register_type(contact())
        yield opened


def test_many_first_uses_of_a_name_at_once_are_one_source(entities: Entities) -> None:
    bodies = [
        {"entities": [{"entity_type": "contact", "email": f"u{number % 7}@x.org", "score": number}], "source": "crm-a"}
        for number in range(64)
    ]
    requests = [request.read_store_request(msgspec.json.encode(body), USER) for body in bodies]

    async def store_together() -> None:
        await asyncio.gather(*(entities._store(parsed) for parsed in [*requests, *requests]))

    entities.run(store_together())
    reader = entities.engine.source_reader
    source = reader.read(USER, "crm-a", reader.find_parts(USER, "crm-a"))
    assert source.name == "crm-a" and source.complete
    assert sorted(entity["score"] for entity in source.entities) == list(range(64))
    with pytest.raises(NotFound):
        reader.require("another", "crm-a")
