"""Which hook a stream has is told by the registry that manages it, or by its profile."""

from __future__ import annotations

import pytest

from headrace.engine.log.append_hook import AppendHooks, StreamManager
from headrace.errors import CorruptData
from headrace.profiles.hook import Hook
from headrace.storage.streams import StreamRow
from headrace.types import JSON


def row(name: str = "s", **values: str) -> StreamRow:
    return StreamRow(name=name, content_type=JSON, created_us=0, epochs="[[0,0]]", **values)


class Named(Hook):
    """A hook that knows the stream it was loaded for."""

    def __init__(self, row: StreamRow) -> None:
        self.name = row.name


HOOKS = AppendHooks({"kept": StreamManager(Named, is_retained=False), "usual": StreamManager(Named)})


@pytest.mark.parametrize("kind", ["kept", "usual"])
def test_a_managed_stream_has_the_hook_of_its_registry(kind: str) -> None:
    managed = row("a", managed=f'{{"kind":"{kind}","event":{{"kind":"other"}}}}')
    hook = HOOKS.load(managed)
    assert isinstance(hook, Named)
    assert hook.name == "a"
    assert HOOKS.is_retained(managed) == (kind == "usual")


def test_a_registry_that_nobody_knows_is_corrupt_data_that_names_the_stream() -> None:
    with pytest.raises(CorruptData) as refused:
        HOOKS.load(row("a", managed='{"kind":"other"}'))
    assert refused.value.facts["stream"] == "a"


def test_a_plain_stream_has_no_hook_and_is_retained_as_its_rule_says() -> None:
    assert HOOKS.load(row()) is None
    assert HOOKS.is_retained(row())


def test_streams_of_the_server_have_the_routing_keys_of_their_registries_and_no_others() -> None:
    ours, theirs = (HOOKS.load(row(name, profile='{"kind":"metrics"}')) for name in ("__metrics__", "metrics"))
    assert ours is not None
    assert theirs is not None
    assert (ours.suggests, theirs.suggests) == (False, True)
