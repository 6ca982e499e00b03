"""A server whose every thread is profiled, or traced as by a debugger or a coverage tool, works as any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).with_name("profiled_story.py")


@pytest.mark.parametrize("kind", ["profile", "trace"])
def test_a_whole_story_ends_while_every_thread_is_watched(kind: str) -> None:
    told = subprocess.run([sys.executable, STORY, kind], capture_output=True, text=True, timeout=240, check=False)
    assert told.returncode == 0 and told.stdout.endswith("told\n"), told.stderr[-5_000:]
