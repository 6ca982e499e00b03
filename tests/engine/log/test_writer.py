from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.config import LimitsConfig
from headrace.engine.log.append import Append
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange
from headrace.errors import Conflict, HeadraceError, NotFound, Overloaded, Unavailable
from headrace.types import JSON, OCTETS
from support.engine_rig import Hold, Rig, array

#: An append that is committed by itself.
LONG = b"x" * (1024 * 1024)


class _Fail(StreamChange):
    def __init__(self, reason: Exception) -> None:
        super().__init__(lambda _: None)
        self.reason = reason

    def perform(self, batch: Batch) -> None:
        raise self.reason


def _behind_a_commit(rig: Rig, appends: int) -> list[int]:
    """Queue appends while the writer is busy; answers their positions in the order they were settled."""
    positions: list[int] = []

    async def queue() -> None:
        hold, done = Hold(), asyncio.Event()
        rig.engine.writer.submit(hold)
        await asyncio.to_thread(hold.entered.wait, 30)

        def settled(append: Append) -> None:
            positions.append(append.position)
            if len(positions) == appends:
                done.set()

        for _ in range(appends):
            rig.submit("s", b"x", settled)
            await asyncio.sleep(0)
        hold.go_on.set()
        await done.wait()

    rig.run(queue())
    return positions


def test_what_queues_up_during_a_commit_shares_the_next_one(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s", OCTETS)
        before = rig.engine.writer.commits
        assert _behind_a_commit(rig, 50) == list(range(1, 51))
        assert rig.engine.writer.commits == before + 2


def test_a_batch_is_bounded(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"batch_requests": 10}) as rig:
        rig.create("s", OCTETS)
        before = rig.engine.writer.commits
        assert _behind_a_commit(rig, 30) == list(range(1, 31))
        assert rig.engine.writer.commits == before + 1 + 3


def test_short_appends_go_before_long_ones_to_other_streams_and_those_to_one_stream_keep_their_order(
    tmp_path: Path,
) -> None:
    with Rig(tmp_path) as rig:
        for name in ("long", "short"):
            rig.create(name, OCTETS)
        settled: list[tuple[str, int, int]] = []
        before = rig.engine.writer.commits

        async def queue() -> None:
            hold, done = Hold(), asyncio.Event()
            rig.engine.writer.submit(hold)
            await asyncio.to_thread(hold.entered.wait, 30)

            def note(append: Append) -> None:
                settled.append((append.stream.name, len(append.body), append.position))
                if len(settled) == 6:
                    done.set()

            for name, body in (("long", LONG), ("long", b"x"), ("short", b"x"), ("long", LONG), ("short", b"xy")):
                rig.submit(name, body, note)
                await asyncio.sleep(0)
            rig.submit("long", b"xyz", note)
            await asyncio.sleep(0)
            hold.go_on.set()
            await done.wait()

        rig.run(queue())
        size = len(LONG)
        assert settled[:2] == [("short", 1, 1), ("short", 2, 2)]
        assert settled[2:] == [("long", size, 1), ("long", 1, 2), ("long", size, 3), ("long", 3, 4)]
        assert rig.engine.writer.commits == before + 1 + 5, "a long append is committed by itself"


def test_what_waits_for_long_appends_is_committed_in_bounded_batches(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"batch_requests": 10}) as rig:
        rig.create("s", OCTETS)
        before, positions = rig.engine.writer.commits, list[int]()

        async def queue() -> None:
            hold, done = Hold(), asyncio.Event()
            rig.engine.writer.submit(hold)
            await asyncio.to_thread(hold.entered.wait, 30)

            def note(append: Append) -> None:
                positions.append(append.position)
                if len(positions) == 33:
                    done.set()

            for body in (LONG, LONG, LONG, *[b"x"] * 30):
                rig.submit("s", body, note)
                await asyncio.sleep(0)
            hold.go_on.set()
            await done.wait()

        rig.run(queue())
        assert positions == list(range(1, 34))
        assert rig.engine.writer.commits == before + 1 + 3 + 3


def test_an_append_does_not_go_before_a_change_to_its_stream_that_waits_for_a_long_append(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        for name in ("long", "deleted", "other"):
            rig.create(name, OCTETS)
        settled: list[tuple[str, HeadraceError | None]] = []

        async def queue() -> None:
            hold, done = Hold(), asyncio.Event()
            rig.engine.writer.submit(hold)
            await asyncio.to_thread(hold.entered.wait, 30)

            def note(append: Append) -> None:
                settled.append((append.stream.name, append.error))
                if len(settled) == 3:
                    done.set()

            rig.submit("long", LONG, note)
            rig.engine.log.delete(rig.find("deleted"), lambda _: None)
            for name in ("deleted", "other"):
                rig.submit(name, b"x", note)
            await asyncio.sleep(0)
            hold.go_on.set()
            await done.wait()

        rig.run(queue())
        assert [name for name, _ in settled] == ["other", "long", "deleted"]
        assert isinstance(settled[2][1], NotFound)


def test_a_refused_operation_does_not_disturb_its_batch(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s", JSON)
        refused = _Fail(Conflict("no"))

        async def together() -> Append:
            done: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
            rig.engine.writer.submit(refused)
            rig.submit("s", array(1), done.set_result)
            return await done

        assert rig.run(together()).error is None
        assert isinstance(refused.error, Conflict)
        assert rig.read("s") == [b"1"]


def test_a_failed_commit_is_rolled_back_whole_and_the_next_one_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s", JSON)

        async def together() -> HeadraceError | None:
            done: asyncio.Future[HeadraceError | None] = asyncio.get_running_loop().create_future()
            rig.submit("s", array(1), lambda a: done.set_result(a.error))
            rig.engine.writer.submit(_Fail(ZeroDivisionError("a bug")))
            return await done

        error = rig.run(together())
        assert error is not None
        assert error.status == 500
        assert error.code == "internal"
        assert error.facts["request_id"] in caplog.text
        assert rig.engine.writer.failed_commits == 1
        assert rig.find("s").head.next_seq == 0
        assert rig.append("s", array(2)).position == 1
        assert rig.read("s") == [b"2"]


def test_a_full_queue_takes_nothing_more_until_there_is_room(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"queue_requests": 3}) as rig:
        rig.create("s", OCTETS)

        async def overfill() -> None:
            hold, done = Hold(), asyncio.Event()
            rig.engine.writer.submit(hold)
            rig.submit("s", b"1", lambda _: None)
            rig.submit("s", b"2", lambda _: done.set())
            with pytest.raises(Overloaded):
                rig.submit("s", b"3", lambda _: None)
            with pytest.raises(Overloaded):
                rig.engine.log.delete(rig.find("s"), lambda _: None)
            publishing = asyncio.create_task(rig.engine.sealer.publish(rig.find("s").id))
            await asyncio.sleep(0)
            hold.go_on.set()
            await done.wait()
            assert await publishing is not None

        rig.run(overfill())
        rig.append("s", b"4")
        assert b"".join(rig.read("s")) == b"124"
        assert rig.engine.writer.queued_requests == 0
        assert rig.engine.writer.queued_bytes == 0
        assert rig.find("s").pins == 0


def test_a_queue_that_stays_full_does_not_keep_the_server_from_its_own_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(tmp_path, storage={"seal_bytes": 1}) as rig:
        for name in ("buried", "deleted", "retained", "sealed"):
            rig.create(name, OCTETS, b"x")
        accessed = rig.create("accessed", OCTETS, ttl_s=1000)
        rig.publish("buried")
        gone = rig.find("deleted").id
        for name in ("buried", "deleted"):
            rig.delete(name)
        stream = rig.find("retained")
        rig.settle(lambda done: rig.engine.log.set_retention(stream, done, age_us=None, size=0))
        rig.run(rig.engine.apply(lambda batch: batch.streams.set_meta("spare_epoch", -1)))
        rig.clock.us += 7 * 3_600_000_000
        rig.engine.log.catalog.note_access(accessed)
        monkeypatch.setattr(rig.engine.writer, "_limits", LimitsConfig(queue_requests=0))
        rig.sweep()
        rig.run(rig.engine.sealer.work())
        assert rig.run(rig.engine.sealer.publish(gone)) is None
        with pytest.raises(Overloaded):
            rig.append("sealed", b"y")
        row, connection = rig.engine.streams.by_name("accessed"), rig.engine.streams._connection
        assert row is not None and row.deadline_us == accessed.deadline_us
        assert stream.head.first_seq == 1
        assert rig.engine.streams.meta("spare_epoch", -1) >= 0
        for table in ("wal", "garbage", "graves", "unpublished"):
            assert connection.execute(f"SELECT count(*) FROM {table}").get == 0, table


def test_the_work_of_the_server_takes_no_place_of_a_client(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"queue_requests": 1}) as rig:
        rig.create("s", OCTETS)

        async def fill() -> None:
            hold, done = Hold(), asyncio.Event()
            hold.is_chore = True
            rig.engine.writer.submit(hold)
            assert rig.engine.writer.queued_requests == 1
            assert rig.engine.writer.full is False
            rig.submit("s", b"1", lambda _: done.set())
            with pytest.raises(Overloaded):
                rig.submit("s", b"2", lambda _: None)
            hold.go_on.set()
            await done.wait()

        rig.run(fill())
        rig.append("s", b"3")
        assert b"".join(rig.read("s")) == b"13"
        assert rig.engine.writer.queued_requests == 0
        assert rig.engine.writer.full is False


def test_a_caller_whose_time_ran_out_is_told_and_the_append_goes_on(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s", OCTETS)
        answers: list[tuple[bool, bool]] = []

        async def wait_too_long() -> None:
            hold, settled = Hold(), asyncio.Event()
            rig.engine.writer.submit(hold)

            def answered(append: Append) -> None:
                answers.append((append.expired, append.settled))
                if append.settled:
                    settled.set()

            append = Append(rig.find("s"), b"late", 1, answered)
            rig.engine.log.append(append)
            hold.submitted -= 10
            append.submitted -= 3
            rig.engine.writer.expire()
            rig.engine.writer.expire()
            hold.go_on.set()
            await settled.wait()

        rig.run(wait_too_long())
        assert answers == [(True, False), (True, True)]
        assert rig.read("s") == [b"late"]


def test_a_writer_that_stops_commits_what_it_accepted_and_takes_nothing_more(tmp_path: Path) -> None:
    errors: list[HeadraceError | None] = []
    with Rig(tmp_path) as rig:
        rig.create("s", OCTETS)

        async def stop_with_work_queued() -> None:
            for _ in range(5):
                rig.submit("s", b"x", lambda append: errors.append(append.error))
            stopping = asyncio.create_task(rig.engine.writer.stop())
            await asyncio.sleep(0)
            with pytest.raises(Unavailable):
                rig.submit("s", b"y", lambda _: None)
            await stopping

        rig.run(stop_with_work_queued())
        assert errors == [None] * 5
        assert rig.read("s") == [b"x"] * 5
