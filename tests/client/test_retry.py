"""Pauses grow, jitter and end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.client.errors import ApiError, BadAnswer, Unreachable
from headrace.client.retry import LONGEST_PAUSE_S, Backoff, is_surely_unprocessed, is_transient, pause_s
from headrace.errors import HeadraceError

LOST = Unreachable("lost")


@given(failures=st.integers(1, 100), chance=st.floats(0, 1), asked=st.integers(0, 100))
def test_pause_is_bounded_and_never_shorter_than_asked(failures: int, chance: float, asked: int) -> None:
    pause = pause_s(failures, errors.Overloaded("busy", retry_after=asked), lambda: chance)
    assert asked <= pause <= max(asked, LONGEST_PAUSE_S)
    assert pause >= 0.05


def test_pause_doubles_until_it_is_longest() -> None:
    pauses = [pause_s(failures, LOST, lambda: 1.0) for failures in range(1, 9)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_patience_ends_with_the_error_and_is_renewed_by_success() -> None:
    now = 0.0
    backoff = Backoff(1.0, lambda: now)
    backoff.pause_s(LOST)
    now = 0.9
    backoff.reset()
    now = 1.5
    backoff.pause_s(LOST)
    now = 2.5
    with pytest.raises(Unreachable):
        backoff.pause_s(LOST)


def test_no_patience_fails_at_once() -> None:
    with pytest.raises(Unreachable):
        Backoff(0.0).pause_s(LOST)


@pytest.mark.parametrize(
    ("error", "passing", "harmless"),
    [
        (LOST, True, False),
        (Unreachable("refused", sent=False), True, True),
        (errors.Overloaded("busy"), True, True),
        (errors.Unavailable("stopping"), True, True),
        (errors.AppendTimedOut("unknown"), True, False),
        (ApiError(502, "x", "proxy", {}), True, False),
        (ApiError(500, "internal", "bug", {}), True, False),
        (errors.CorruptData("bytes"), False, False),
        (errors.ObjectMissing("gone"), False, False),
        (errors.StoreUnavailable("away"), True, True),
        (BadAnswer("what"), False, False),
        (errors.NotFound("x"), False, False),
        (errors.ProducerFenced("x"), False, False),
    ],
)
def test_error_says_whether_to_try_again(error: HeadraceError, passing: bool, harmless: bool) -> None:
    assert is_transient(error) == passing
    assert is_surely_unprocessed(error) == harmless
