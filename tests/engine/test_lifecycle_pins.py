"""Who holds a stream in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config import Config, StorageConfig
from headrace.engine.assembly import Engine
from headrace.engine.log.lifecycle import Call, Delete, StreamChange
from headrace.engine.log.stream import Stream
from headrace.errors import Fenced
from headrace.storage.streams import StreamRow


@pytest.mark.parametrize(
    "make_change",
    [
        lambda stream: Call(lambda batch: None, lambda _: None, pinned=(stream,)),
        lambda stream: Delete(stream, lambda _: None),
    ],
)
async def test_an_operation_that_is_refused_holds_no_stream(
    tmp_path: Path, make_change: Callable[[Stream], StreamChange]
) -> None:
    engine = await Engine.open(Config(storage=StorageConfig(data_dir=str(tmp_path))))
    stream = Stream(StreamRow("s", "text/plain", 1, "[[0,0]]", id=1), ())
    engine.writer.fenced = True
    with pytest.raises(Fenced):
        make_change(stream).submit(engine.writer)
    assert stream.pins == 0
    engine.writer.fenced = False
    await engine.close()
