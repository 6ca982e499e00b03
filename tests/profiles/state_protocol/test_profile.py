"""The settings of touch: every default, every range, and every key that nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.profiles import table
from headrace.profiles.definition import Profile
from headrace.profiles.state_protocol.profile import StateProtocol
from headrace.schema.problem import Problem

DEFAULTS = {
    "enabled": True,
    "coarseIntervalMs": 100,
    "touchCoalesceWindowMs": 100,
    "onMissingBefore": "coarse",
    "lagDegradeFineTouchesAtSourceOffsets": 5000,
    "lagRecoverFineTouchesAtSourceOffsets": 1000,
    "fineTouchBudgetPerBatch": 2000,
    "fineTokensPerSecond": 200_000,
    "fineBurstTokens": 400_000,
    "lagReservedFineTouchBudgetPerBatch": 200,
    "memory": {
        "bucketMs": 100,
        "filterPow2": 22,
        "k": 4,
        "pendingMaxKeys": 100_000,
        "keyIndexMaxKeys": 32,
        "hotKeyTtlMs": 10_000,
        "hotTemplateTtlMs": 10_000,
        "hotMaxKeys": 1_000_000,
        "hotMaxTemplates": 4096,
    },
    "templates": {
        "defaultInactivityTtlMs": 3_600_000,
        "lastSeenPersistIntervalMs": 300_000,
        "gcIntervalMs": 60_000,
        "maxActiveTemplatesPerEntity": 256,
        "maxActiveTemplatesPerStream": 2048,
        "activationRateLimitPerMinute": 100,
    },
}


def read(**settings: Any) -> Profile | list[Problem]:
    return table.read({"profile": {"kind": "state-protocol", **settings}})


def problems(touch: Any) -> list[str]:
    found = read(touch=touch)
    assert isinstance(found, list)
    return [problem.pointer for problem in found]


def test_touch_has_its_defaults() -> None:
    found = read(touch={"enabled": True})
    assert isinstance(found, Profile)
    assert found.document == {"kind": "state-protocol", "touch": DEFAULTS}
    assert read(touch=DEFAULTS).settings == found.settings  # type: ignore[union-attr]


@pytest.mark.parametrize("touch", [{}, {"enabled": False}, {"enabled": False, "memory": {"k": 2}}])
def test_touch_that_is_off_has_no_other_settings(touch: Any) -> None:
    found = read(touch=touch)
    assert isinstance(found, Profile)
    assert found.document["touch"] == {"enabled": False}
    assert isinstance(found.hook, StateProtocol) and found.hook.touch is None


def test_without_touch_messages_are_judged_all_the_same() -> None:
    found = read()
    assert isinstance(found, Profile)
    assert found.document == {"kind": "state-protocol"}
    assert found.hook is not None
    assert found.hook.failures(b"5")


@pytest.mark.parametrize(
    ("section", "name", "good", "bad"),
    [
        ("", "coarseIntervalMs", (0.5, 1), (0, -1, "5")),
        ("", "touchCoalesceWindowMs", (1,), (0,)),
        ("", "onMissingBefore", ("coarse", "skipBefore", "error"), ("before", None)),
        ("", "lagDegradeFineTouchesAtSourceOffsets", (0, 1), (-1, 1.5)),
        ("", "lagRecoverFineTouchesAtSourceOffsets", (0, 1), (-1, 1.5)),
        ("", "fineTouchBudgetPerBatch", (0, 1), (-1, 1.5)),
        ("", "fineTokensPerSecond", (0,), (-1,)),
        ("", "fineBurstTokens", (0,), (-1,)),
        ("", "lagReservedFineTouchBudgetPerBatch", (0,), (-1,)),
        ("memory", "bucketMs", (1,), (0, 1.5)),
        ("memory", "filterPow2", (10, 30), (9, 31)),
        ("memory", "k", (1, 8), (0, 9)),
        ("memory", "pendingMaxKeys", (1,), (0,)),
        ("memory", "keyIndexMaxKeys", (1, 1024), (0, 1025)),
        ("memory", "hotKeyTtlMs", (1,), (0,)),
        ("memory", "hotTemplateTtlMs", (1,), (0,)),
        ("memory", "hotMaxKeys", (1,), (0,)),
        ("memory", "hotMaxTemplates", (1,), (0,)),
        ("templates", "defaultInactivityTtlMs", (0, 1), (-1,)),
        ("templates", "lastSeenPersistIntervalMs", (1,), (0,)),
        ("templates", "gcIntervalMs", (1,), (0,)),
        ("templates", "maxActiveTemplatesPerEntity", (1,), (0,)),
        ("templates", "maxActiveTemplatesPerStream", (1,), (0,)),
        ("templates", "activationRateLimitPerMinute", (0, 1), (-1,)),
    ],
)
def test_every_setting_has_its_range(section: str, name: str, good: tuple[Any], bad: tuple[Any]) -> None:
    for value in good:
        given = {section: {name: value}} if section else {name: value}
        found = read(touch={"enabled": True, **given})
        assert isinstance(found, Profile), value
        shown = found.document["touch"][section] if section else found.document["touch"]
        assert shown[name] == value
    for value in bad:
        given = {section: {name: value}} if section else {name: value}
        where = f"/profile/touch/{section}/{name}" if section else f"/profile/touch/{name}"
        assert problems({"enabled": True, **given}) == [where], value


def test_what_nobody_knows_is_refused_and_everything_is_named_at_once() -> None:
    assert problems({"enabled": "yes", "speed": 1, "memory": {"k": 0, "size": 1}, "templates": []}) == [
        "/profile/touch/speed",
        "/profile/touch/enabled",
        "/profile/touch/memory/size",
        "/profile/touch/memory/k",
        "/profile/touch/templates",
    ]
    assert isinstance(read(mode="x"), list)
