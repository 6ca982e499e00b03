"""Who holds a stream in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import Config, StorageConfig
from headrace.engine.assembly import Engine
from headrace.engine.log.lifecycle import Delete
from headrace.engine.log.retention import Trim
from headrace.engine.log.stream import Stream
from headrace.errors import Fenced
from headrace.storage.streams import StreamRow


@pytest.mark.parametrize("kind", [Trim, Delete])
async def test_an_operation_that_is_refused_holds_no_stream(tmp_path: Path, kind: type[Trim | Delete]) -> None:
    engine = await Engine.open(Config(storage=StorageConfig(data_dir=str(tmp_path))))
    stream = Stream(StreamRow("s", "text/plain", 1, "[[0,0]]", id=1), ())
    engine.writer.fenced = True
    with pytest.raises(Fenced):
        kind(stream, lambda _: None).submit(engine.writer)
    assert stream.pins == 0
    engine.writer.fenced = False
    await engine.close()
