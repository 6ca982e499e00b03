"""`python -m bench --only stalls`: the longest append beside each load, in this tree and in an earlier commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from bench.against import checked_out, version_of
from bench.requests import stream_path
from bench.serving import running
from bench.stalls.abuses import ABUSES, Abuse
from bench.stalls.beside import Beside, beside
from bench.targets import Target

#: The most that an append may wait beside any load, and what is aimed at.
MOST_SECONDS, GOAL_SECONDS = 1.0, 0.25
_APPENDED = "plain"


@dataclass(frozen=True)
class Row:
    """What came of one load: in the earlier commit, where one was asked for, and in this tree."""

    abuse: Abuse
    before: Beside | None
    after: Beside

    @property
    def holds(self) -> bool:
        """Whether no append waited for too long."""
        return self.after.longest <= MOST_SECONDS and not self.after.refused


def measure(space: Path, progress: Callable[[str], None], commit: str | None = None) -> list[Row]:
    """Carry out every load beside appends, each on a fresh server; with a commit, on one of that first."""
    rows = []
    with nullcontext() if commit is None else _version(commit, space) as earlier:
        current = version_of(Path.cwd() / "src")
        for abuse in ABUSES.values():
            progress(abuse.title)
            before = None if earlier is None else _beside(earlier, space, abuse)
            rows.append(Row(abuse, before, _beside(current, space, abuse)))
    return rows


def lines(rows: list[Row], commit: str | None = None) -> str:
    """The table that is printed."""
    head = f"{'append beside, p99 / max in ms':<44}{commit or '':>18}{'this tree':>18}  loop busy  answers"
    found = [head]
    for row in rows:
        before = "" if row.before is None else _waited(row.before)
        busy = "" if row.after.busy is None else f"{row.after.busy.bound * 1e3:,.0f} ms"
        answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(row.after.statuses.items()))
        verdict = "" if row.holds else "  FAIL"
        found.append(f"{row.abuse.title:<44}{before:>18}{_waited(row.after):>18}{busy:>11}  {answers}{verdict}")
    longest, bounds = max(row.after.longest for row in rows), (GOAL_SECONDS * 1e3, MOST_SECONDS * 1e3)
    found.append("\nThe longest append took {:,.0f} ms (goal {:,.0f}, at most {:,.0f}).".format(longest * 1e3, *bounds))
    return "\n".join(found)


def _waited(came: Beside) -> str:
    return f"{came.p99 * 1e3:,.0f} / {came.longest * 1e3:,.0f}"


@contextmanager
def _version(commit: str, space: Path) -> Iterator[Target]:
    with checked_out(commit, space) as tree:
        yield version_of(tree / "src")


def _beside(target: Target, space: Path, abuse: Abuse) -> Beside:
    with running(target, space) as server:
        load = abuse.prepare(server)
        server.create(_APPENDED)
        return beside(server.port, load, stream_path(_APPENDED))
