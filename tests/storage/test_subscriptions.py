from __future__ import annotations

from pathlib import Path

import pytest

from headrace.storage import database
from headrace.storage.streams import DELETED, SOFT_DELETED, StreamRow, Streams
from headrace.storage.subscriptions import LinkRow, SubscriptionRow, SubscriptionRows


@pytest.fixture
def connection(tmp_path: Path) -> database.Connection:
    opened = database.connect(tmp_path / "log.db", cache_bytes=1 << 20)
    database.migrate(opened)
    return opened


def row(id: str, generation: int = 0) -> SubscriptionRow:
    return SubscriptionRow(
        key_id="k1",
        prefix="mine/",
        id=id,
        definition='{"type":"webhook"}',
        base_url="http://here",
        created_us=1,
        generation=generation,
        wake_id="w_1",
        holder=None,
        lease_until_us=2,
        deliver_at_us=None,
        attempts=3,
        last_error="no",
    )


def link(owner: str, path: str, acked: str = "0", stream: int | None = None) -> LinkRow:
    return LinkRow(subscription=owner, path=path, stream=stream, explicit=path < "b", acked=acked)


def test_what_was_saved_is_read_back_and_the_newest_counts(connection: database.Connection) -> None:
    rows = SubscriptionRows(connection)
    for saved in (row("s"), row("t"), row("s", generation=9)):
        rows.save(saved)
    assert sorted(rows.all(), key=lambda found: found.id) == [row("s", generation=9), row("t")]
    rows.save_links([link("s", "b"), link("s", "a"), link("t", "a"), link("s", "b", acked="7", stream=4)])
    assert rows.links("s") == [link("s", "a"), link("s", "b", acked="7", stream=4)]


def test_links_go_one_by_one_or_with_their_subscription(connection: database.Connection) -> None:
    rows = SubscriptionRows(connection)
    rows.save(row("s"))
    rows.save(row("t"))
    rows.save_links([link(owner, path) for owner in "st" for path in "abc"])
    rows.unlink("s", ["a", "zzz"])
    assert [found.path for found in rows.links("s")] == ["b", "c"]
    rows.remove("s")
    assert rows.links("s") == [] and [found.id for found in rows.all()] == ["t"]
    assert len(rows.links("t")) == 3


def test_live_streams_are_named_in_order_after_a_name_and_under_a_prefix(connection: database.Connection) -> None:
    streams, rows = Streams(connection), SubscriptionRows(connection)
    for name, state in (("a", 0), ("b/1", 0), ("b/2", DELETED), ("b/3", SOFT_DELETED), ("b/é", 0), ("c", 0)):
        streams.insert(StreamRow(name=name, state=state, content_type="x", created_us=0, epochs="[]"))
    assert rows.stream_names("", "", 10) == ["a", "b/1", "b/é", "c"]
    assert rows.stream_names("", "b/1", 1) == ["b/é"]
    assert rows.stream_names("b/", "", 10) == ["b/1", "b/é"]
    assert rows.stream_names("b/", "b/é", 10) == []


def test_a_secret_is_made_once(connection: database.Connection) -> None:
    rows = SubscriptionRows(connection)
    assert rows.secret("token", b"first") == b"first"
    assert rows.secret("token", b"second") == b"first"
    assert rows.secret("ed25519", b"third") == b"third"
