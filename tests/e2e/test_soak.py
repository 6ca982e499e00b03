"""Mixed load of every kind on `headrace up`: answers stay right, and nothing grows without end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.soak.run import lines, soak

_DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
_SECONDS = 600 if _DEEP else 120

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(_SECONDS + 400)]


def test_a_server_under_mixed_load_answers_right_and_does_not_grow(tmp_path: Path) -> None:
    found = soak(_SECONDS, tmp_path, auto_tune=1024)
    print(lines(found))
    assert not found.troubles
