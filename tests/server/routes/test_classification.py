"""Every kind of change, asked for in every way: what is answered, and what the registry and the state are then.

The versions of the registry count changes of everyone, and these tests are alone with their server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from server.change_rows import CHANGES
from server.changes import CASCADES, GONE, LARGE, OTHER_KEY, USERS, Change
from server.pipelines import Payload, Pipeline

if TYPE_CHECKING:
    from server.conftest import Api


def begun(api: Api, change: Change) -> Pipeline:
    """A pipeline with three events."""
    made = Pipeline(api)
    change.before(made, made.descriptors)
    assert made.register().status_code == 200
    made.push(*({"user": "u", "amount": float(n), "n": n} for n in (1, 2, 3)))
    assert made.row(made.table) == USERS
    assert made.row(made.over_derived) == LARGE
    return made


def told(change: Change, pipeline: Pipeline, answer: Payload) -> None:
    """The diff says what the change is."""
    wanted = {"added": [], "removed": [], "changed": [], **change.told(pipeline)}
    assert {part: answer[part] for part in wanted} == wanted


def unchanged(pipeline: Pipeline, version: int, before: dict[str, Payload]) -> None:
    assert pipeline.version() == version
    assert pipeline.registered() == before
    assert pipeline.row(pipeline.table) == USERS
    assert pipeline.row(pipeline.over_derived) == LARGE


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_is_classified(change: Change, api: Api) -> None:
    pipeline = begun(api, change)
    version, before, given = pipeline.version(), pipeline.registered(), pipeline.changed()
    change.make(pipeline, given)

    for force in (False, True):
        preview = pipeline.register(given, dry_run=True, force=force)
        assert preview.status_code == 200, preview.text
        needs_force = change.destructive and not force
        assert preview.json()["status"] == ("conflict" if needs_force else "ok")
        assert preview.json()["registry_version"] == version
        assert "error" not in preview.json()
        told(change, pipeline, preview.json())
        unchanged(pipeline, version, before)

    plain = pipeline.register(given)
    if change.destructive:
        assert plain.status_code == 409
        assert plain.json()["status"] == "conflict"
        assert plain.json()["registry_version"] == version
        error = plain.json()["error"]
        assert error["code"] == "registration_conflict"
        assert error["errors"] and all(set(one) == {"code", "path", "message"} for one in error["errors"])
        told(change, pipeline, plain.json())
        unchanged(pipeline, version, before)
        plain = pipeline.register(given, force=True)

    assert plain.status_code == 200, plain.text
    assert plain.json()["status"] == "ok"
    is_new = change.name != "nothing"
    assert plain.json()["registry_version"] == version + is_new
    told(change, pipeline, plain.json())
    assert {name: plain.json()[name] for name in ("added", "removed", "changed")} == {
        name: preview.json()[name] for name in ("added", "removed", "changed")
    }
    assert pipeline.version() == version + is_new
    assert (pipeline.registered() != before) == is_new
    after = {pipeline.table: USERS, pipeline.over_derived: LARGE, **change.rows(pipeline)}
    if change.name == "change key":
        del after[pipeline.table]
        assert pipeline.row(pipeline.table, 1) == {}
    if change.name == OTHER_KEY:
        assert [pipeline.row(table, 1) for table in after] == [{}, {}]
        after = {}
    assert {table: pipeline.row(table) for table in after} == after

    again = pipeline.register(given)
    if change.name == CASCADES:
        assert again.status_code == 400
        assert again.json()["error"]["code"] == "missing_upstream"
    else:
        assert again.status_code == 200
        assert again.json()["registry_version"] == version + is_new
        assert not any(again.json()[part] for part in ("added", "removed", "changed"))


@pytest.mark.parametrize("change", [one for one in CHANGES if one.rows is not GONE], ids=lambda change: change.name)
def test_what_was_reborn_can_be_backfilled(change: Change, api: Api) -> None:
    pipeline = begun(api, change)
    given = pipeline.changed()
    change.make(pipeline, given)
    answer = pipeline.register(given, force=True, backfill=True)
    assert answer.status_code == 200, answer.text
    effects = answer.json()["plan"]["features"]
    broken = any(one["change"] == "break" for one in answer.json()["plan"]["streams"])
    for one in effects:
        if one["state"] != "cleared":
            assert one["born"] == "first_retained"
            assert one["seq"] == (3 if broken else 0)
