"""Promotion: once, as a minor version that is active at once, and that takes the values which justified it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.entities.enhancement import queue
from headrace.engine.entities.enhancement.promotions import ITSELF
from headrace.errors import BadRequest, NotFound
from headrace.reduce.fragments.rules import DECIDED
from headrace.storage.enhancements import EnhancementRuns, Recommendation
from headrace.storage.entity_types import EVERYBODY
from support.enhancement_rig import Growing
from support.entity_rig import contact


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_PAUSE_S", 0.01)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Growing]:
    with Growing(tmp_path) as rig:
        rig.register_type(contact())
        yield rig


def named(number: int) -> str:
    return f"n{number}"


def said(rig: Growing, count: int = 3, user: str = "local", **values: Any) -> list[str]:
    """Contacts with fragments; a value that is callable is given the number."""
    return [
        rig.said(f"{n}@x.y", user=user, **{key: v(n) if callable(v) else v for key, v in values.items()})
        for n in range(count)
    ]


def recommended(rig: Growing, owner: str = EVERYBODY) -> dict[str, Recommendation]:
    found = rig.engine.enhancement.promotions.recommendations("contact", owner)
    return {one.field: one for one in found}


def until(rig: Growing, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        rig.run(asyncio.sleep(0.02))


def test_a_dry_run_changes_nothing_and_says_what_it_would(rig: Growing) -> None:
    said(rig, nick=named)
    found = rig.enhance(dry_run=True)
    assert found.fields == ("nick",)
    assert found.outcome.number is None
    assert found.outcome.plan.to_version == "1.1.0"
    assert rig.version() == "1.0.0"
    assert recommended(rig) == {}


def test_a_promotion_is_a_minor_version_that_holds_at_once(rig: Growing) -> None:
    said(rig, nick=named)
    found = rig.enhance()
    assert found.outcome.proposal.bump.name == "MINOR"
    assert rig.version() == "1.1.0"
    (entity,) = said(rig, 1, nick="later")
    assert rig.snapshot(entity)["nick"] == "later"
    assert rig.analysed().candidates == []


def test_the_second_run_adds_nothing(rig: Growing) -> None:
    said(rig, nick=named, age=lambda n: str(30 + n))
    first, number = rig.enhance(), rig.engine.types.number
    assert first.outcome.number is not None
    second = rig.enhance()
    assert second.fields == ()
    assert second.outcome.number is None
    assert rig.version() == "1.1.0"
    assert rig.engine.types.number == number


def test_those_who_enhance_at_once_add_a_field_once(rig: Growing) -> None:
    said(rig, nick=named)

    async def together() -> list[Any]:
        enhance = rig.engine.enhancement.promotions.enhance
        return await asyncio.gather(*(enhance("contact", EVERYBODY, f"c{n}", dry_run=False) for n in range(8)))

    made = [one.outcome.number for one in rig.run(together())]
    assert sum(number is not None for number in made) == 1
    assert rig.version() == "1.1.0"


@pytest.mark.parametrize(
    ("give", "type_", "wanted"),
    [
        (lambda n: f"{n}.5", "number", 0.5),
        (lambda n: 0.25 + n, "number", 0.25),
        (lambda n: "yes" if n else "no", "boolean", False),
        (lambda n: f"2026-01-0{n + 1}", "date", "2026-01-01"),
        (lambda n: 1_700_000_000_000 + n, "date", "2023-11-14T22:13:20.000Z"),
        (lambda n: f"00{n}", "string", "000"),
        (lambda n: [n], "array", [0]),
        (lambda n: {"n": n}, "object", {"n": 0}),
    ],
)
def test_the_type_takes_the_values_that_justified_it(
    rig: Growing, give: Callable[[int], Any], type_: str, wanted: Any
) -> None:
    first = said(rig, odd=give)[0]
    found = rig.enhance()
    assert found.outcome.plan.registry.schema_definition.fields["odd"].type == type_
    run = rig.migrate("odd")
    assert run.migrated == 3
    assert run.unfit == 0
    assert rig.snapshot(first)["odd"] == wanted
    (again,) = said(rig, 1, odd=give(0))
    assert rig.snapshot(again)["odd"] == wanted


def test_what_was_applied_is_written_down_with_its_guard(rig: Growing) -> None:
    said(rig, nick=named)
    rig.enhance()
    found = recommended(rig)["nick"]
    assert found.key == "auto_enhance_contact_nick_global"
    assert found.status == "applied"
    assert found.change == "add_fields"
    assert found.schema_version == "1.1.0"
    assert found.can_rollback is True
    assert found.who == "tests"
    assert found.evidence["frequency"] == 3 and "examples" not in found.evidence


def test_a_field_that_was_taken_back_is_not_promoted_again(rig: Growing) -> None:
    said(rig, nick=named)
    rig.enhance()
    rig.activate_type("1.0.0")
    assert rig.reasons("nick", EVERYBODY) == [DECIDED]
    assert rig.enhance().outcome.number is None
    assert rig.enhance(fields=["nick"], force=True).outcome.number is not None


def test_weak_evidence_is_enough_where_somebody_wants_it(rig: Growing) -> None:
    said(rig, 1, nick=named, **{"no name": 1})
    with pytest.raises(BadRequest) as refused:
        rig.enhance(fields=["nick"])
    assert [one["code"] for one in refused.value.facts["problems"]] == ["too_few_occurrences", "too_few_sources"]
    with pytest.raises(BadRequest):
        rig.enhance(fields=["no name"], force=True)
    with pytest.raises(BadRequest):
        rig.enhance(fields=["never"])
    assert rig.enhance(fields=["nick"], force=True).fields == ("nick",)
    assert rig.enhance(fields=["nick"]).outcome.number is None


def test_a_users_enhancement_is_their_own(rig: Growing) -> None:
    said(rig, user="ann", nick=named)
    rig.enhance("ann")
    assert rig.version("ann") == "1.1.0"
    assert rig.version("bob") == "1.0.0"
    assert rig.version() == "1.0.0"
    assert recommended(rig, "ann")["nick"].key == "auto_enhance_contact_nick_ann"
    assert recommended(rig) == {}


def test_a_type_that_is_switched_on_grows_by_itself_and_moves_what_was_stored(rig: Growing) -> None:
    rig.set(enabled=True)
    ids = said(rig, nick=named)
    until(rig, lambda: "nick" in rig.snapshot(ids[0]))
    assert rig.version() == "1.1.0"
    assert recommended(rig)["nick"].status == "auto_applied"
    assert recommended(rig)["nick"].who == ITSELF
    (run,) = rig.engine.enhancement.migrations.runs("contact", [EVERYBODY])
    run = rig.ended(run)
    assert run.fields == ("nick",)
    assert run.migrated == 3
    assert run.state == "completed"


def test_a_type_that_is_not_switched_on_stays_as_it_is(rig: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.set(enabled=True)
    rig.set(enabled=False)
    said(rig, nick=named)
    enhancements, rounds = rig.engine.enhancement.queue, list[None]()
    perform_due = enhancements._perform_due

    async def counted() -> None:
        await perform_due()
        rounds.append(None)
        enhancements.wake()

    monkeypatch.setattr(enhancements, "_perform_due", counted)
    enhancements.wake()
    until(rig, lambda: len(rounds) >= 2)
    assert rig.version() == "1.0.0"
    assert [run.state for run in rig.engine.enhancement.queue.runs("contact", EVERYBODY, 9)] in ([], ["skipped"])


def test_a_recommendation_waits_for_approval(rig: Growing) -> None:
    rig.set(enabled=True, mode="recommend", migrate_existing=False)
    said(rig, nick=named, other=named, weak=lambda n: n if n == 1 else None)
    until(rig, lambda: len(recommended(rig)) == 2)
    assert {one.status for one in recommended(rig).values()} == {"pending"}
    enhancement = rig.engine.enhancement
    for field, status in (("other", "rejected"), ("nick", "approved"), ("weak", "approved")):
        rig.run(enhancement.promotions.decide("contact", EVERYBODY, field, status, "ann"))
    enhancement.queue.analyse_again("contact", EVERYBODY)
    until(rig, lambda: rig.version() == "1.1.0")
    assert {name: one.status for name, one in recommended(rig).items()} == {
        "nick": "auto_applied",
        "weak": "auto_applied",
        "other": "rejected",
    }
    assert rig.reasons("other", EVERYBODY) == [DECIDED]
    with pytest.raises(NotFound):
        rig.run(enhancement.promotions.decide("contact", EVERYBODY, "never", "rejected", "ann"))


def test_settings_and_decisions_come_back_from_the_store_alone(tmp_path: Path) -> None:
    storage = {"object_store": str(tmp_path / "store")}
    with Growing(tmp_path / "one", storage=storage) as rig:
        rig.register_type(contact())
        rig.set("ann", enabled=True, threshold=7, blacklist=("x*",))
        said(rig, nick=named, other=named)
        rig.run(rig.engine.enhancement.promotions.decide("contact", EVERYBODY, "other", "rejected", "ann"))
        rig.enhance()
        run = rig.migrate("nick")
        undone = rig.undo(run)
        rig.run(rig.engine.sealer.publish_journals())
        rig.seal_type()
        known, held = recommended(rig), rig.engine.enhancement.promotions.settings("contact", "ann")
    with Growing(tmp_path / "two", storage=storage) as rig:
        assert rig.engine.enhancement.promotions.settings("contact", "ann") == held
        assert recommended(rig) == known
        assert rig.engine.enhancement.migrations.runs("contact", [EVERYBODY]) == [undone]
        kind = rig.engine.types.find("contact")
        assert kind is not None and kind.undone == (run.id,)


def test_what_was_being_done_when_the_server_stopped_is_done_again(rig: Growing) -> None:
    ids = said(rig, nick=named)
    rig.enhance()
    migrating = rig.engine.enhancement.migrations
    run = rig.run(migrating.begin("contact", EVERYBODY, ["nick"], "tests"))
    rig.run(rig.engine.enhancement.queue.stop())
    stuck = msgspec.structs.replace(run, state="processing", attempts=1)
    rig.run(rig.engine.apply(lambda batch: EnhancementRuns(batch.connection).save(stuck)))
    rig.reopen()
    rig.clock.us += 60_000_000
    done = rig.ended(run)
    assert done.state == "completed"
    assert done.migrated + done.repeated == 3
    assert rig.snapshot(ids[0])["nick"] == "n0"


def test_what_fails_is_tried_again_a_few_times_and_then_given_up(rig: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_RETRY_US", 0)
    said(rig, nick=named)
    rig.enhance()
    migrating, tries = rig.engine.enhancement.migrations, []

    async def fails(*_: Any) -> Any:
        tries.append(1)
        raise OSError("the disk is gone")

    monkeypatch.setattr(migrating, "_read_slice", fails)
    run = rig.run(migrating.begin("contact", EVERYBODY, ["nick"], "tests"))
    done = rig.ended(run)
    assert done.state == "failed"
    assert done.attempts == queue.MAX_ATTEMPTS
    assert len(tries) == queue.MAX_ATTEMPTS
    assert done.reason is not None and "the disk is gone" in done.reason


def test_looks_that_ended_long_ago_are_forgotten_and_migrations_are_not(rig: Growing) -> None:
    rig.set(enabled=True)
    said(rig, nick=named)
    runs = rig.engine.enhancement.queue.runs
    until(rig, lambda: rig.version() == "1.1.0" and all(run.ended_us for run in runs("contact", EVERYBODY, 9)))
    (run,) = rig.engine.enhancement.migrations.runs("contact", [EVERYBODY])
    rig.ended(run)
    rig.set(enabled=False)
    rig.clock.us += 8 * 24 * 3600 * 1_000_000
    rig.engine.enhancement.queue.wake()
    until(rig, lambda: runs("contact", EVERYBODY, 9) == [])
    assert [one.id for one in rig.engine.enhancement.migrations.runs("contact", [EVERYBODY])] == [run.id]
