"""Touches of one stream, from the log to those who wait."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from engine.touch.touched import NAME, Touched, by, change
from headrace.engine.system_streams import System
from headrace.engine.touch import stream_touches, waiters
from headrace.engine.touch.report import LiveMetrics, report
from headrace.engine.touch.waiters import FINE_KEY, TABLE_KEY, TEMPLATE_KEY
from headrace.errors import BadRequest, NotFound, Overloaded
from headrace.profiles.state_protocol import keys
from headrace.profiles.state_protocol.keys import InvalidTemplate

BY_USER = by("todos", "user")
TABLE = keys.table_key("todos")
A, B = (keys.watch_key(BY_USER.id, [user]) for user in "ab")
NONE_LEFT = {"fineTouchBudgetPerBatch": 0}
LAGGING = {
    "lagDegradeFineTouchesAtSourceOffsets": 1,
    "lagRecoverFineTouchesAtSourceOffsets": 0,
    "lagReservedFineTouchBudgetPerBatch": 0,
}


def insert(user: str, entity: str = "todos") -> dict[str, Any]:
    return change(entity, "insert", after={"user": user})


def test_a_wait_ends_when_its_key_is_touched_and_for_no_other(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        db.activate(BY_USER)
        mine, other = db.ask("now", A), db.ask("now", B)
        table, third = db.ask("now", TABLE), db.ask("now", keys.table_key("users"))
        db.append(insert("a"), {"headers": {"control": "reset"}})
        db.settle()
        assert (mine.outcome, table.outcome) == (True, True)
        assert (other.outcome, third.outcome) == (None, None)
        assert db.cursor.endswith(":2")


def test_a_cursor_is_answered_from_the_journal(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        db.activate(BY_USER)
        start = db.cursor
        db.append(insert("a"))
        db.settle()
        assert db.ask(start, A).outcome is True
        assert db.ask(start, B).outcome is None
        assert db.ask(db.cursor, A).outcome is None
        assert db.ask("now", A).outcome is None


def test_a_change_that_is_not_processed_yet_comes_after_the_cursor(tmp_path: Path) -> None:
    with Touched(tmp_path, memory={"bucketMs": 60_000}) as db:
        db.activate(BY_USER)
        cursor = db.cursor
        db.append(insert("a"))
        early, late = db.ask(cursor, A), db.ask("now", A)
        assert (early.outcome, db.cursor) == (None, cursor)
        db.stream_touches.step()
        db.stream_touches.flush(0.0)
        assert (early.outcome, late.outcome) == (True, None)


def test_what_was_touched_and_not_told_yet_counts_when_the_time_is_up(tmp_path: Path) -> None:
    with Touched(tmp_path, memory={"bucketMs": 60_000}) as db:
        db.activate(BY_USER)
        first, second = db.ask("now", A), db.ask("now", B)
        db.append(insert("a"))
        db.stream_touches.step()
        for wait in (first, second):
            db.rig.engine.touches.time_out(wait.waiter)
        assert (first.outcome, second.outcome) == (True, False)


def test_a_template_is_not_told_of_what_was_before(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        start = db.cursor
        db.append(insert("a"))
        db.settle()
        db.activate(BY_USER)
        assert db.ask(start, A).outcome is None
        # Who says which templates its keys are of is told that something may have been.
        assert db.ask(start, A, templates=(BY_USER,)).outcome is True
        assert db.ask(start, A, templates=(BY_USER,), exact=True).outcome == stream_touches.UNKNOWN_KEYS
        assert db.ask(db.cursor, A, templates=(BY_USER,)).outcome is None


def test_cursors_outlive_a_restart(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        db.activate(BY_USER)
        before = db.cursor
        db.append(insert("a"))
        db.settle()
        after = db.cursor
        db.rig.reopen()
        assert db.ask(before, A, templates=(BY_USER,)).outcome is True
        assert db.ask(before, A, exact=True).outcome is True
        waits = [db.ask(before, B), db.ask(after, A)]
        db.settle()
        assert [wait.outcome for wait in waits] == [None, None]
        db.append(insert("b"))
        db.settle()
        assert [wait.outcome for wait in waits] == [True, None]


def test_a_journal_is_made_anew_from_segments_too(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        db.activate(BY_USER)
        before = db.cursor
        db.append(insert("a"))
        db.rig.publish(NAME)
        db.rig.reopen()
        wait = db.ask(before, A)
        db.settle()
        assert wait.outcome is True


def test_a_cursor_from_before_the_journal_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.touch.touches.REPLAY", 2)
    with Touched(tmp_path) as db:
        epoch = db.cursor.partition(":")[0]
        db.append(insert("a"), insert("a"), insert("a"))
        db.settle()
        db.rig.reopen()
        assert db.ask(f"{epoch}:0", A).outcome == stream_touches.TOO_OLD
        assert db.ask(f"{epoch}:1", A).outcome is None
        assert db.ask(f"{epoch}:99", A).outcome is None


def test_a_cursor_of_another_journal_is_stale(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        assert db.ask(f"{'0' * 16}:0", A).outcome == stream_touches.OTHER_EPOCH
        for cursor in ("", "x", "0:0", f"{'0' * 16}:-1", f"{'0' * 16}:", "NOW"):
            with pytest.raises(BadRequest):
                db.ask(cursor, A)


def test_another_life_of_the_stream_has_another_journal(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        wait, cursor, profile = db.ask("now", A), db.cursor, db.rig.find(NAME).profile
        db.rig.delete(NAME)
        assert wait.outcome == ""
        db.rig.create(NAME, "application/json", profile=profile)
        assert db.ask(cursor, A).outcome == stream_touches.OTHER_EPOCH


def test_a_stream_that_does_not_tell_touches_has_none(tmp_path: Path) -> None:
    with Touched(tmp_path, enabled=False) as db, pytest.raises(NotFound, match="touch not enabled"):
        db.ask("now", A)


def test_an_exact_wait_is_for_a_few_keys(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        assert db.ask("now", *range(16), exact=True).outcome is None
        with pytest.raises(BadRequest):
            db.ask("now", *range(17), exact=True)
        with pytest.raises(BadRequest):
            db.ask("now", A, exact=True, coarse=True)
        with pytest.raises(BadRequest):
            db.ask("now", exact=True)


def test_an_exact_wait_does_not_take_a_key_of_the_same_id_for_its_own(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        db.activate(BY_USER)
        like_a = A ^ 1 << 63
        start = db.cursor
        plain, exact = db.ask("now", like_a), db.ask("now", like_a, exact=True)
        db.append(insert("a"))
        db.settle()
        assert (plain.outcome, exact.outcome) == (None, None)
        assert db.ask(start, like_a, exact=True).outcome == stream_touches.UNKNOWN_KEYS


@pytest.mark.parametrize("templates", [(), (BY_USER,)])
def test_who_waits_is_told_exactly_while_rows_are_left_out(tmp_path: Path, templates: Any) -> None:
    with Touched(tmp_path, **NONE_LEFT) as db:
        db.activate(BY_USER)
        start = db.cursor
        mine, other = db.ask("now", A, templates=templates), db.ask("now", B, templates=templates)
        exact = db.ask("now", A, exact=True)
        db.append(insert("a"))
        db.settle()
        assert (mine.outcome, other.outcome, exact.outcome) == (True, None, True)
        assert db.stream_touches.mode == "restricted"
        # Nobody waited for this one, so whether it was touched is not known.
        late = keys.watch_key(BY_USER.id, ["c"])
        assert db.ask(start, late, templates=templates).outcome is True
        assert db.ask(start, late, exact=True).outcome == stream_touches.UNKNOWN_KEYS
        # Who was woken comes back, and is told exactly again.
        again = db.ask(db.cursor, A, templates=templates)
        assert again.outcome is None
        assert again.waiter.kind == (TEMPLATE_KEY if templates else FINE_KEY)
        assert db.ask(start, B).outcome is None


@pytest.mark.parametrize(("templates", "woken"), [((), True), ((BY_USER,), True), ((by("users", "user"),), None)])
def test_tables_stand_for_rows_where_even_those_are_too_many(tmp_path: Path, templates: Any, woken: Any) -> None:
    with Touched(tmp_path, **LAGGING) as db:
        db.append(insert("x"))
        db.activate(BY_USER, by("users", "user"))
        start = db.cursor
        wait = db.ask("now", B, templates=templates)
        exact = db.ask("now", A, templates=templates, exact=True)
        db.append(insert("a"), insert("a"))
        db.settle()
        assert db.stream_touches.mode == "coarseOnly"
        assert wait.outcome is woken
        assert exact.outcome == (stream_touches.UNKNOWN_KEYS if woken else None)
        late = db.ask(start, B, templates=templates)
        assert late.outcome is woken
        assert late.waiter.kind == (TABLE_KEY if templates else FINE_KEY)


def test_fine_touches_come_back_when_the_lag_is_gone(tmp_path: Path) -> None:
    with Touched(
        tmp_path, **{**LAGGING, "lagDegradeFineTouchesAtSourceOffsets": 2, "lagRecoverFineTouchesAtSourceOffsets": 1}
    ) as db:
        db.activate(BY_USER)
        db.settle()
        db.append(insert("a"), insert("a"))
        db.settle()
        assert db.stream_touches.mode == "coarseOnly"
        wait = db.ask("now", B)
        db.append(insert("a"))
        db.settle()
        assert (db.stream_touches.mode, wait.outcome) == ("fine", None)


def test_templates_that_nobody_waits_for_are_left_out_under_pressure(tmp_path: Path) -> None:
    with Touched(tmp_path, **NONE_LEFT, memory={"hotTemplateTtlMs": 60_000}) as db:
        cold = by("todos", "status")
        db.activate(BY_USER, cold)
        start, wait = db.cursor, db.ask("now", A, templates=(BY_USER,))
        row = {"user": "a", "status": "open"}
        # The first change of a batch finds out that there is too much; the others go by that.
        db.append(*(change("todos", "insert", after=row) for _ in range(3)))
        db.settle()
        assert wait.outcome is True
        assert db.stream_touches.counts.cold_templates == 2
        late = keys.watch_key(cold.id, ["open"])
        assert db.ask(start, late, templates=(cold,)).outcome is True
        assert db.ask(start, late).outcome is True
        assert db.ask(start, late, exact=True).outcome == stream_touches.UNKNOWN_KEYS
        assert db.ask(db.cursor, late, templates=(cold,)).outcome is None


def test_a_template_stays_hot_for_a_while_after_the_last_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ttl_ms, skipped in ((60_000, 0), (1, 1)):
        with Touched(tmp_path / str(ttl_ms), **NONE_LEFT, memory={"hotTemplateTtlMs": ttl_ms}) as db:
            db.activate(BY_USER)
            db.rig.engine.touches.leave(db.ask("now", A, templates=(BY_USER,)).waiter)
            document = report(db.stream_touches, 0.0)
            assert document["hotTemplates"] == document["hotTemplatesGrace"] == 1
            assert document["hotTemplatesActive"] == 0
            with monkeypatch.context() as later:
                later.setattr(waiters, "monotonic", lambda: time.monotonic() + 1)
                db.stream_touches.waiters.cool_down()
            db.append(insert("a"), insert("a"))
            db.settle()
            assert db.stream_touches.counts.cold_templates == skipped


@pytest.mark.parametrize("more", ["nameless", "many", "first"])
def test_no_template_is_left_out_where_it_may_concern_someone(tmp_path: Path, more: str) -> None:
    with Touched(tmp_path, **NONE_LEFT, memory={"hotMaxTemplates": 1}) as db:
        other, third, late = by("todos", "status"), by("todos", "other"), by("todos", "late")
        db.activate(BY_USER, other, third)
        db.ask("now", A, templates=(BY_USER, other) if more == "many" else (BY_USER,))
        wanted = {"nameless": third, "many": third, "first": late}[more]
        key = keys.watch_key(wanted.id, ["x"])
        wait = db.ask("now", key, templates=() if more == "nameless" else (BY_USER,))
        if more == "first":  # nobody could name it before it was there
            db.append(insert("z"))
            db.settle()
            db.activate(late)
        db.append(*(change("todos", "insert", after={wanted.fields[0].name: "x"}) for _ in range(2)))
        db.settle()
        assert wait.outcome is True


def test_settings_of_memory_hold_from_then_on(tmp_path: Path) -> None:
    with Touched(tmp_path, memory={"hotMaxKeys": 1}) as db:
        with pytest.raises(Overloaded):
            db.ask("now", 1, 2)
        stream = db.rig.find(NAME)
        stream.profile = stream.profile.replace('"hotMaxKeys": 1', '"hotMaxKeys": 9, "filterPow2": 10')
        assert db.ask("now", 1, 2).outcome is None
        assert report(db.stream_touches, 0.0)["filterSize"] == 1024


def test_tokens_run_out_and_grow_again(tmp_path: Path) -> None:
    with Touched(tmp_path, fineTokensPerSecond=0, fineBurstTokens=2) as db:
        db.activate(BY_USER)
        db.append(insert("a"))
        db.settle()
        assert db.stream_touches.mode == "fine"
        db.append(insert("a"))
        db.settle()
        assert db.stream_touches.mode == "restricted"
        assert db.stream_touches.counts.dropped == 2


@pytest.mark.parametrize(
    ("policy", "bare", "named"), [("coarse", None, True), ("skipBefore", True, True), ("error", "halted", "halted")]
)
def test_an_update_that_does_not_say_what_was_before_goes_by_the_rule(
    tmp_path: Path, policy: str, bare: Any, named: Any
) -> None:
    with Touched(tmp_path, onMissingBefore=policy) as db:
        db.activate(BY_USER)
        waits = db.ask("now", A), db.ask("now", A, templates=(BY_USER,))
        table = db.ask("now", TABLE)
        db.append(change("todos", "update", after={"user": "a"}))
        db.settle()
        expected = [stream_touches.HALTED if one == "halted" else one for one in (bare, named)]
        assert [wait.outcome for wait in waits] == expected
        assert table.outcome == (stream_touches.HALTED if policy == "error" else True)


def test_a_stream_that_has_halted_goes_on_under_another_rule(tmp_path: Path) -> None:
    with Touched(tmp_path, onMissingBefore="error") as db:
        db.activate(BY_USER)
        cursor = db.cursor
        db.append(insert("a"), change("todos", "update", after={"user": "b"}), insert("b"))
        db.settle()
        assert db.ask("now", A).outcome == stream_touches.HALTED
        assert db.stream_touches.lag == 2
        stream = db.rig.find(NAME)
        stream.profile = stream.profile.replace('"error"', '"skipBefore"')
        db.settle()
        assert db.stream_touches.lag == 0
        assert [db.ask(cursor, key).outcome for key in (A, B)] == [True, True]


def test_a_bucket_that_overflows_wakes_everyone_it_concerns(tmp_path: Path) -> None:
    with Touched(tmp_path, memory={"pendingMaxKeys": 1}) as db:
        db.activate(BY_USER)
        waits = [db.ask("now", key, exact=True) for key in (A, B, keys.watch_key(BY_USER.id, ["c"]))]
        db.append(insert("a"), insert("b"))
        db.settle()
        assert [wait.outcome for wait in waits] == [True, True, None]
        assert db.stream_touches.counts.overflows == 1


def test_a_wait_for_many_keys_is_woken_by_any_of_them(tmp_path: Path) -> None:
    with Touched(tmp_path, memory={"keyIndexMaxKeys": 2}) as db:
        db.activate(BY_USER)
        wait, other = db.ask("now", 1, 2, 3, A), db.ask("now", 1, 2, 3, 4)
        assert len(db.stream_touches.waiters.broad) == 2
        assert not db.stream_touches.waiters.index
        db.append(insert("a"))
        db.settle()
        assert (wait.outcome, other.outcome) == (True, None)


def test_a_wait_for_many_keys_is_woken_where_rows_are_left_out(tmp_path: Path) -> None:
    with Touched(tmp_path, **NONE_LEFT, memory={"keyIndexMaxKeys": 2}) as db:
        db.activate(BY_USER)
        wait, coarse = db.ask("now", 1, 2, 3, A), db.ask("now", 1, 2, 3, coarse=True)
        db.append(insert("a"))
        db.settle()
        assert (wait.outcome, coarse.outcome) == (True, None)


def test_keys_that_are_waited_for_are_bounded(tmp_path: Path) -> None:
    with Touched(tmp_path, memory={"hotMaxKeys": 3}) as db:
        first = db.ask("now", 1, 2)
        with pytest.raises(Overloaded):
            db.ask("now", 3, 4)
        db.rig.engine.touches.leave(first.waiter)
        assert db.ask("now", 3, 4).outcome is None


def test_templates_come_in_once(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        first = db.activate(BY_USER)
        db.append(insert("a"))
        again = db.activate(BY_USER, InvalidTemplate())
        assert (len(first.added), len(again.added), again.denied) == (1, 0, [(0, "invalid")])
        assert again.accepted[0].active_from == first.accepted[0].active_from == 0


def test_a_template_cannot_come_in_again_with_other_encodings(tmp_path: Path) -> None:
    from headrace.profiles.state_protocol.keys import Field, Template

    with Touched(tmp_path) as db:
        db.activate(BY_USER)
        other = Template("todos", (Field("user", "int64"),))
        assert db.activate(other).denied == [(BY_USER.id, "invalid")]


def test_templates_come_in_at_a_rate(tmp_path: Path) -> None:
    with Touched(tmp_path, templates={"activationRateLimitPerMinute": 2}) as db:
        many = [by("todos", f"f{number}") for number in range(4)]
        activation = db.activate(*many)
        assert [active.template.id for active in activation.accepted] == [many[0].id, many[1].id]
        assert activation.denied == [(many[2].id, "rate_limited"), (many[3].id, "rate_limited")]
        assert db.activate(*many[:2]).denied == []


def test_any_number_of_templates_come_in_where_there_is_no_rate(tmp_path: Path) -> None:
    with Touched(tmp_path, templates={"activationRateLimitPerMinute": 0}) as db:
        assert len(db.activate(*(by("todos", f"f{number}") for number in range(200))).accepted) == 200


def test_the_template_that_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    limits = {"maxActiveTemplatesPerEntity": 2, "maxActiveTemplatesPerStream": 3}
    with Touched(tmp_path, templates=limits) as db:
        one, two, three = (by("todos", name) for name in ("one", "two", "three"))
        other, last = by("users", "name"), by("orders", "id")
        db.activate(one)
        db.activate(two)
        wait = db.ask("now", 5, templates=(one,))
        db.stream_touches.templates.see([one.id], 2e15)
        assert [active.template.id for active in db.activate(three).evicted] == [two.id]
        db.activate(other)
        gone = db.activate(last).evicted
        assert [active.template.id for active in gone] == [three.id]
        assert wait.outcome is None
        assert db.ask("now", 5, templates=(two,)).outcome == stream_touches.NOT_ACTIVE
        db.rig.reopen()
        assert {active.template.id for active in db.stream_touches.templates} == {one.id, other.id, last.id}


def test_who_waits_for_rows_of_a_template_that_goes_is_told(tmp_path: Path) -> None:
    with Touched(tmp_path, templates={"maxActiveTemplatesPerEntity": 1}) as db:
        db.activate(BY_USER)
        wait, bare = db.ask("now", A, templates=(BY_USER,)), db.ask("now", A)
        db.activate(by("todos", "status"))
        assert (wait.outcome, bare.outcome) == (stream_touches.NOT_ACTIVE, None)


def test_one_request_does_not_push_out_its_own_templates(tmp_path: Path) -> None:
    with Touched(tmp_path, templates={"maxActiveTemplatesPerStream": 2}) as db:
        many = [by("todos", f"f{number}") for number in range(3)]
        assert db.activate(*many).denied == [(many[2].id, "rate_limited")]


def test_a_template_that_nobody_uses_is_retired(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        db.activate(BY_USER, ttl_ms=0)
        db.activate(by("todos", "status"))
        db.rig.run(db.rig.engine.touches._tidy(db.stream_touches))
        assert len(db.stream_touches.templates) == 1
        assert db.stream_touches.counts.retired == 1
        assert db.ask("now", A, templates=(BY_USER,)).outcome == stream_touches.NOT_ACTIVE
        db.rig.reopen()
        assert len(db.stream_touches.templates) == 1


def test_a_template_that_someone_waits_with_is_in_use(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        db.activate(BY_USER, ttl_ms=60_000)
        db.ask("now", A, templates=(BY_USER,))
        active = db.stream_touches.templates.get(BY_USER.id)
        assert active is not None
        active.seen_ms = 0.0
        db.rig.run(db.rig.engine.touches._tidy(db.stream_touches))
        assert db.stream_touches.templates.get(BY_USER.id) is active


def test_templates_are_told_of_again_after_the_clock_was_set_back(tmp_path: Path) -> None:
    with Touched(tmp_path) as touched:
        stream_touches, rig = touched.stream_touches, touched.rig
        live = LiveMetrics(
            System(writer=rig.engine.writer, log=rig.engine.log, connect=rig.engine.connect).lived,
            rig.engine.touches,
            rig.clock,
        )

        def kinds() -> list[str]:
            stream_touches.counts.rows += 1
            return [record["type"] for record in live.records() if record["type"] != "live.tick"]

        assert kinds() == ["live.templates_snapshot"]
        assert kinds() == []
        rig.clock.us -= 3_600_000_000
        assert kinds() == ["live.templates_snapshot"]


def test_touches_that_are_switched_off_are_forgotten(tmp_path: Path) -> None:
    with Touched(tmp_path) as db:
        db.activate(BY_USER)
        wait, cursor, stream = db.ask("now", A), db.cursor, db.rig.find(NAME)
        profile, stream.profile = stream.profile, "generic"
        db.rig.run(db.rig.engine.touches._end(stream))
        assert wait.outcome == ""
        stream.profile = profile
        assert db.ask(cursor, A).outcome == stream_touches.OTHER_EPOCH
        assert not len(db.stream_touches.templates)
