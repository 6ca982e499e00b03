"""Fragments for tests: an engine with entities, whose fragments are counted, promoted and moved."""

from __future__ import annotations

from typing import Any

from headrace.engine.entities.enhancement.candidates import Analysis, FragmentCounts
from headrace.engine.entities.enhancement.promotions import EnhancementOutcome
from headrace.engine.entities.enhancement.settings import EnhancementSettings
from headrace.reduce.fragments.build import name_of
from headrace.reduce.fragments.candidates import Candidate
from headrace.reduce.fragments.stats import STATS, Stats
from headrace.reduce.work_units import JobName, Result, Settled
from headrace.storage.enhancements import Run
from headrace.storage.entity_types import EVERYBODY
from support.entity_rig import USER, Entities

PATIENCE_S = 20.0


class Growing(Entities):
    """An engine with entity types that grow."""

    jobs: tuple[JobName, ...] = ("snapshots", "enhance")

    async def _commit(self, lease: str, token: int, results: list[Result]) -> list[Settled]:
        settled = await super()._commit(lease, token, results)
        for task in list(self.engine.enhancement.candidates.state_reader._building.values()):
            await task
        return settled

    def analysed(self, owner: str = USER, entity_type: str = "contact") -> Analysis:
        """What the fragments of an owner speak for."""
        return self.run(self.engine.enhancement.candidates.analyse(entity_type, owner))

    def tallied(self, owner: str = USER) -> FragmentCounts:
        """What is known of the fragments of an owner."""
        return self.run(self.engine.enhancement.candidates.count("contact", owner))

    def candidate(self, key: str, owner: str = USER) -> Candidate:
        """What the fragments of a key speak for."""
        return next(one for one in self.analysed(owner).candidates if one.fragment_key == key)

    def reasons(self, key: str, owner: str = USER) -> list[str]:
        """What speaks against promoting a key."""
        return [reason.code for reason in self.candidate(key, owner).reasons]

    def enhance(self, owner: str = EVERYBODY, **terms: Any) -> EnhancementOutcome:
        """Promote, and not only look at it."""
        terms.setdefault("dry_run", False)
        return self.run(self.engine.enhancement.promotions.enhance("contact", owner, "tests", **terms))

    def set(self, owner: str = EVERYBODY, **settings: Any) -> None:
        """Say how the type grows."""
        given = EnhancementSettings(**settings)
        self.run(self.engine.enhancement.promotions.set("contact", owner, given, "tests"))
        self.engine.enhancement.queue.wake()

    def migrate(self, *fields: str, owner: str = EVERYBODY) -> Run:
        """Move values of some fields, and wait until that is done."""
        run = self.run(self.engine.enhancement.migrations.begin("contact", owner, fields, "tests"))
        return self.ended(run)

    def ended(self, run: Run) -> Run:
        """A run once it has ended."""
        found: Run = self.run(self.engine.enhancement.queue.wait(run, PATIENCE_S))
        assert found.ended_us is not None, found
        return found

    def undo(self, run: Run) -> Run:
        """Let a migration count no more."""
        undo = self.engine.enhancement.migrations.undo
        return self.run(undo("contact", run.id, [run.user_id], "tests"))

    def version(self, owner: str = EVERYBODY) -> str:
        """The version that holds for an owner."""
        return self.engine.enhancement.candidates.schema("contact", owner).schema_version

    def fragment_states(self) -> list[Any]:
        """The states of fragments that count."""
        return [one for one in self.states_of() if one.table == name_of("contact")]


def bytes_of(keys: dict[str, Stats]) -> dict[str, bytes]:
    """Statistics as they are compared."""
    return {key: STATS.pack(stats) for key, stats in keys.items()}
