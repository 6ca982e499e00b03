"""The table of leases against a simple model: whatever happens, what is not done is due, leased, resting or parked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.derive.leases import ATTEMPTS, LeaseLost
from headrace.reduce.work_units import Result
from support.work_rig import SECOND, Worker, opened, publish, searched

LEASE_S, STALL_S = 60, 150
STREAMS = ("a", "b")

#: The stream and the first entry of a unit; each has ten entries.
Key = tuple[str, int]


class Failed(NamedTuple):
    """What is known about a unit that has failed, or whose worker was lost."""

    attempts: int = 0
    lost: int = 0
    retry_us: int = 0


class ModelLease:
    """A lease that a worker has, as long as it is held."""

    def __init__(self, grant: Grant, now_us: int) -> None:
        self.grant = grant
        self.units = {unit.unit: (unit.stream, unit.first_seq) for unit in grant.units}
        self.progress_us = now_us
        self.expires_us = now_us + LEASE_S * SECOND
        self.most_reported = self.last_reported = 0
        #: Whether the server has restarted since it last heard of this lease.
        self.is_unknown = False

    def hear(self, now_us: int, *, done: int | None = None, settled: bool = False) -> None:
        """The worker is heard of, perhaps with progress."""
        reported = self.last_reported if done is None else done
        if self.is_unknown:
            self.is_unknown, self.progress_us = False, now_us
            self.most_reported = max(reported, self.last_reported)
        elif settled or reported > self.most_reported:
            self.progress_us = now_us
        self.most_reported, self.last_reported = max(self.most_reported, reported), reported
        capped = min(now_us + LEASE_S * SECOND, self.progress_us + STALL_S * SECOND)
        self.expires_us = max(self.expires_us, capped)


class Leases(RuleBasedStateMachine):
    """Workers that lease, report, give back, fall silent and hang."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.rig = opened(Path(self._directory.name) / "data", lease_s=LEASE_S, stall_s=STALL_S, fan_out=100)
        self.worker = Worker(self.rig)
        self.open: set[Key] = set()
        self.failed: dict[Key, Failed] = {}
        self.held: list[ModelLease] = []
        self.ended: list[Grant] = []

    def teardown(self) -> None:
        self.rig.close()
        self._directory.cleanup()

    @initialize()
    def create(self) -> None:
        for name in STREAMS:
            searched(self.rig, name)
            self.publish(name, 2)

    @rule(name=st.sampled_from(STREAMS), segments=st.integers(2, 3))
    def publish(self, name: str, segments: int) -> None:
        if self.rig.find(name).head.next_seq < 100:
            start = self.rig.find(name).head.next_seq
            publish(self.rig, name, segments * 10)
            self.open |= {(name, start + 10 * number) for number in range(segments)}

    @rule(limit=st.sampled_from([1, 2, 100]))
    def lease(self, limit: int) -> None:
        due = self.due()
        grant = self.worker.lease(limit)
        assert (grant is None) == (not due)
        if grant is not None:
            lease = ModelLease(grant, self.now_us)
            given = set(lease.units.values())
            assert given <= due
            assert len(given) == 1 or not any(self.failed.get(key, Failed()).lost > 1 for key in given)
            self.held.append(lease)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def heartbeat(self, data: Any) -> None:
        lease = data.draw(st.sampled_from(self.held))
        done = data.draw(st.integers(0, 2))
        lease.hear(self.now_us, done=done)
        until_us, _ = self.worker.beat(lease.grant, done, len(lease.units))
        assert until_us == lease.expires_us

    @precondition(lambda self: self.held)
    @rule(data=st.data(), repeated=st.booleans())
    def commit(self, data: Any, repeated: bool) -> None:
        lease = data.draw(st.sampled_from(self.held))
        results, outcomes = [], {}
        for made in self.worker.made(lease.grant):
            if made.unit in lease.units:
                outcomes[made.unit] = data.draw(st.sampled_from(["committed", "failed", "later"]))
                failing = Result(made.unit, error="no")
                results += {"committed": [made], "failed": [failing], "later": []}[outcomes[made.unit]]
        for _ in range(1 + repeated):
            self.worker.commit(lease.grant, results)
        lease.hear(self.now_us, settled=bool(results))
        for unit, outcome in outcomes.items():
            if outcome != "later":
                key = lease.units.pop(unit)
                if outcome == "committed":
                    self.open.remove(key)
                    self.failed.pop(key, None)
                else:
                    self.fail(key, most=ATTEMPTS, lost=0)
        if not lease.units:
            self.end(lease)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        lease = data.draw(st.sampled_from(self.held))
        self.worker.release(lease.grant)
        self.end(lease)

    @rule(seconds=st.sampled_from([1, 10, 50, 60, 70]))
    def pass_time(self, seconds: int) -> None:
        self.rig.clock.us += seconds * SECOND
        for lease in [one for one in self.held if one.expires_us <= self.now_us]:
            for key in lease.units.values():
                self.fail(key, most=ATTEMPTS if len(lease.units) == 1 else ATTEMPTS - 1, lost=1)
            self.end(lease)

    @rule()
    def restart(self) -> None:
        self.rig.reopen()
        for lease in self.held:
            lease.is_unknown = True

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def come_back(self, data: Any) -> None:
        """A worker whose lease has ended changes nothing."""
        grant = data.draw(st.sampled_from(self.ended))
        for late in (lambda: self.worker.beat(grant), lambda: self.worker.commit(grant, self.worker.made(grant))):
            try:
                late()
            except LeaseLost:
                continue
            raise AssertionError("a lease that has ended was taken for one that is held")

    @rule(name=st.sampled_from(STREAMS))
    def run_now(self, name: str) -> None:
        """What was parked is tried again."""
        self.rig.run(self.rig.engine.work.run(self.rig.find(name)))
        self.failed = {key: failed for key, failed in self.failed.items() if key[0] != name}

    @invariant()
    def everything_is_told(self) -> None:
        found = self.rig.run(self.rig.engine.work.overview())
        names = found.names
        leased = {(names[unit.stream], unit.first_seq)
                  for _, units in found.leases for unit in units if unit.outcome is None}  # fmt: skip
        resting = {(names[one.stream], one.first_seq) for one in found.resting}
        parked = {(names[one.stream], one.first_seq) for one in found.parked}
        assert leased == self.leased()
        assert parked == {key for key in self.failed if self.is_parked(key)}
        assert resting == {key for key in self.failed if not self.is_parked(key) and self.is_resting(key)}
        assert set(found.due) == {name for name, _ in self.due()}
        assert self.open <= leased | resting | parked | self.due()
        assert found.complete
        assert found.counts == {
            "due": len(found.due),
            "leases": len(found.leases),
            "units": len(leased),
            "resting": len(found.resting),
            "parked": len(found.parked),
            "workers": sum(one.alive for one in found.workers),
            "pipelines": 0,
        }
        assert len(found.leases) == len(self.held)

    @property
    def now_us(self) -> int:
        return self.rig.clock.us

    def leased(self) -> set[Key]:
        return {key for lease in self.held for key in lease.units.values()}

    def due(self) -> set[Key]:
        failed = {key for key in self.failed if self.is_parked(key) or self.is_resting(key)}
        return self.open - self.leased() - failed

    def is_parked(self, key: Key) -> bool:
        return self.failed[key].attempts >= ATTEMPTS

    def is_resting(self, key: Key) -> bool:
        return self.failed[key].retry_us > self.now_us

    def fail(self, key: Key, *, most: int, lost: int) -> None:
        before = self.failed.get(key, Failed())
        attempts = min(most, before.attempts + 1)
        pause_us = min(60 * SECOND, SECOND << (attempts - 1))
        self.failed[key] = Failed(attempts, before.lost + lost, self.now_us + pause_us)

    def end(self, lease: ModelLease) -> None:
        self.held.remove(lease)
        if lease.units:
            self.ended.append(lease.grant)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=max(10, settings.default.max_examples // 6), stateful_step_count=30)
