"""Which companions answer: found out once, and again when something has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.registries import change
from headrace.engine.search import companion_coverage
from headrace.types import JSON
from support.work_rig import Worker, covered, listed, opened, publish, search, searched


def test_what_was_committed_answers_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        assert covered(rig, "s") == []
        grant = worker.granted()
        for number, result in enumerate(worker.made(grant), 1):
            worker.commit(grant, [result])
            assert len(covered(rig, "s")) == number
        assert rig.engine.coverage.listed(rig.find("s")) == listed(rig, "s")


def test_a_question_that_was_answered_is_answered_anew_for_another_definition(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        searched(rig, "s", 10, "user", "city")
        Worker(rig).work()
        assert covered(rig, "s", fields=["city"]) == [(0, 10)]
        change(rig, "s", search=search("user"))
        assert covered(rig, "s", fields=["city"]) == []
        assert covered(rig, "s", fields=["user"]) == covered(rig, "s") == [(0, 10)]


def test_a_stream_without_search_is_covered_by_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        stream = rig.create("plain", JSON)
        assert rig.engine.coverage.defined(stream) is None
        assert covered(rig, "plain") == covered(rig, "plain", fields=[]) == []


def test_what_is_kept_in_memory_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companion_coverage, "_MAX_COMPANIONS", 5)
    with opened(tmp_path) as rig:
        for name in "abc":
            searched(rig, name, 20)
        Worker(rig).work()
        for _ in range(2):
            for name in "abc":
                assert covered(rig, name) == [(0, 10), (10, 20)]
                assert covered(rig, name, fields=["user"]) == covered(rig, name, fields=[]) == covered(rig, name)
        cache = rig.engine.coverage._cache
        cached = [cache.get(rig.find(name).id) for name in "abc"]
        assert cached[0] is None
        assert [len(listed.companions) for listed in cached[1:]] == [2, 2]
        assert cache.bytes == 4
        publish(rig, "a", 60)
        Worker(rig).work()
        assert len(covered(rig, "a")) == 8
        assert cache.bytes == 5
        assert [cache.get(rig.find(name).id) is None for name in "abc"] == [False, True, True]
