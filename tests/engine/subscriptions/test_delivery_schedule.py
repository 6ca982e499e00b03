from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.subscriptions.delivery import Schedule

_STEP = st.one_of(
    st.tuples(st.just("set"), st.sampled_from("abc"), st.none() | st.integers(0, 20)),
    st.tuples(st.just("pop"), st.integers(0, 20)),
)


@given(st.lists(_STEP, max_size=40))
def test_what_is_popped_is_exactly_what_is_due(steps: list[tuple[object, ...]]) -> None:
    schedule: Schedule[str] = Schedule()
    model: dict[str, int] = {}
    for step in steps:
        match step:
            case ("set", str(key), int(due)):
                schedule.set(key, due)
                model[key] = due
            case ("set", str(key), None):
                schedule.set(key, None)
                model.pop(key, None)
            case ("pop", int(now)):
                due_now = {key for key, due in model.items() if due <= now}
                assert sorted(schedule.pop(now)) == sorted(due_now)
                model = {key: due for key, due in model.items() if key not in due_now}
        next_us = schedule.next_us()
        assert not model or (next_us is not None and next_us <= min(model.values()))


def test_moving_a_moment_later_again_and_again_keeps_one_entry() -> None:
    schedule: Schedule[str] = Schedule()
    for due in range(1_000):
        schedule.set("a", due)
    assert len(schedule._heap) == 1
    assert schedule.pop(998) == []
    assert schedule.pop(999) == ["a"]
