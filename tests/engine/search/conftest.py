from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "data") as opened:
        yield opened
