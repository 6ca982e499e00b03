"""One bit is flipped in a file of any kind: what a server answers is right, or it says which file is damaged."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.config import StorageConfig
from headrace.engine.history import verify
from headrace.engine.history.takeover import recover_directory
from headrace.engine.products import JOURNALS
from headrace.errors import HeadraceError
from headrace.storage.objects import Objects
from headrace.types import SystemClock
from support import s3
from support.damage import Answer, Question, Running, answers, build, copied
from support.stored_objects import flipped

pytestmark = [pytest.mark.crash, pytest.mark.timeout(2400)]

CASES = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 5
#: A third of the flips is within so many bytes from the beginning, a third within so many from the end.
EDGE_BYTES = 256
#: What a server logs where it has made something anew, or does without it.
_HEALED = ("is damaged: it was dropped", "is left out from now on")
GOOD = ("right", "healed", "refused to start", "refused with a code", "told by recover")
#: So much of what was seen is printed.
DETAIL = 600
BAD = ("WRONG", "MISSING", "500", "hang", "unnamed", "unverified")


class Kind(NamedTuple):
    """Files of one kind: patterns below the data directory."""

    name: str
    patterns: tuple[str, ...]
    #: Whether ``headrace verify`` has to name every damaged one that is listed.
    verified: bool = False
    #: Whether the caches are removed, so that the file itself is read.
    uncached: bool = False


#: Read where a server has ended well, and so has moved its WAL into the database.
ENDED = [Kind("log database", ("headrace.db",)), Kind("keys", ("keys.db",))]
LOCAL = [
    Kind("log WAL", ("headrace.db-wal",)),
    Kind("log WAL index", ("headrace.db-shm",)),
    Kind("keys WAL", ("keys.db-wal",)),
    Kind("segments", ("objects/segments/*/*/*",), verified=True),
    Kind("companions", ("objects/companions/*/*/*",), verified=True),
    Kind("states", ("objects/states/*/*/*",), verified=True, uncached=True),
    Kind("manifests", ("objects/manifests/*/*/*",), verified=True),
    Kind("registries", ("objects/features/*", "objects/entities/*"), verified=True),
    Kind("leases", ("objects/nodes/*", "objects/epochs/*")),
    Kind("state cache", ("cache/states/*",)),
]
#: These are read when a directory is made from a store.
RECOVERED = [one for one in LOCAL if one.name in ("segments", "manifests", "registries", "leases")]
REMOTE = [
    Kind("segment cache", ("cache/*.parquet",)),
    Kind("companion cache", ("cache/companions/*",)),
    Kind("state cache of a remote store", ("cache/states/*",)),
]


class Case(NamedTuple):
    """One flip: the file, the byte and the bit."""

    kind: Kind
    number: int
    path: Path
    place: int
    bit: int

    def __str__(self) -> str:
        return f"{self.kind.name} {self.number}: bit {self.bit} of byte {self.place} of {self.path}"


class Outcome(NamedTuple):
    """How a case ended, and what was seen."""

    case: Case
    name: str
    detail: str = ""


def cases(base: Path, kind: Kind, skipped: set[Path]) -> Iterator[Case]:
    """Flips spread over the files of a kind, and over their beginnings, middles and ends."""
    found = [
        path
        for pattern in kind.patterns
        for path in sorted(base.glob(pattern))
        if path.is_file() and path.stat().st_size
    ]
    files = [path for path in found if path not in skipped]
    assert files, f"there are no {kind.name}"
    for number in range(CASES):
        chance = random.Random(f"{kind.name} {number}")
        path = chance.choice(files)
        size = path.stat().st_size
        low, high = [(0, min(EDGE_BYTES, size)), (0, size), (max(0, size - EDGE_BYTES), size)][number % 3]
        yield Case(kind, number, path, chance.randrange(low, high), chance.randrange(8))


def judged(found: list[Answer], right: list[Answer], log: str) -> tuple[str, str]:
    """The outcome of a server's answers, the worst first."""
    pairs = [(number, *pair) for number, pair in enumerate(zip(found, right, strict=True)) if pair[0] != pair[1]]
    for number, one, wanted in pairs:
        if one.status == 0:
            return "hang", f"question {number}: {one.document}"
        if one.status >= 500 and one.code in (None, "internal"):
            return "500", f"question {number}: {one}"
        if one.status < 500:
            lacks = one.status in (401, 403, 404, 410) or _size(one.document) < _size(wanted.document)
            return "MISSING" if lacks else "WRONG", f"question {number}: {_difference(one, wanted)}"
    if pairs:
        return "refused with a code", ", ".join(sorted({str(one.code) for _, one, _ in pairs}))
    return ("healed" if any(said in log for said in _HEALED) else "right"), ""


def _difference(one: Answer, wanted: Answer) -> str:
    """Where two answers begin to differ."""
    found, right = str(one), str(wanted)
    same = next((at for at, pair in enumerate(zip(found, right, strict=False)) if pair[0] != pair[1]), 0)
    at = max(0, same - 50)
    return f"{found[at : at + 150]} instead of {right[at : at + 150]}"


def _size(document: Any) -> int:
    return len(str(document))


class Seen(NamedTuple):
    """The answers of a server, none where it did not start; what it logged, if it hung, and what a recovery told."""

    answers: list[Answer]
    log: str
    hangs: bool = False
    problems: tuple[str, ...] = ()


class Campaign:
    """Runs cases on copies of one data directory."""

    def __init__(self, base: Path, questions: list[Question], work: Path, **settings: str) -> None:
        self.base, self.questions, self.work, self.settings = base, questions, work, settings
        self._beginning = threading.Lock()
        self.right = self.undamaged()

    def undamaged(self) -> list[Answer]:
        """The answers that are right."""
        first, again = (self._undamaged(self.work / f"undamaged-{number}") for number in range(2))
        assert first.answers == again.answers, "the answers differ without damage"
        assert not first.problems and all(one.status < 500 for one in first.answers), first
        return first.answers

    def _undamaged(self, target: Path) -> Seen:
        seen = self.asked(copied(self.base, target))
        shutil.rmtree(target)
        return seen

    def asked(self, path: Path) -> Seen:
        """What a server on a directory answers."""
        with self._beginning:
            running = Running(path, self.settings)
        try:
            found = list(answers(running.url, self.questions)) if running.url else []
        finally:
            running.close()
        return Seen(found, running.log(), running.hangs)

    def run(self, case: Case) -> Outcome:
        """Flip, start, ask."""
        target = self.work / f"{case.kind.name}-{case.number}".replace(" ", "-")
        copied(self.base, target, case.path)
        damaged = target / case.path.relative_to(self.base)
        flipped(damaged, case.place, case.bit)
        if case.kind.uncached:
            shutil.rmtree(target / "cache")
        try:
            if case.kind.verified and not self.is_named(target, damaged):
                return Outcome(case, "unverified", "headrace verify does not name it")
            seen = self.asked(target)
        finally:
            shutil.rmtree(target)
        if seen.hangs:
            return Outcome(case, "hang", seen.log)
        if not seen.answers:
            named = damaged.name.removesuffix("-wal") in seen.log
            return Outcome(case, "refused to start" if named else "unnamed", seen.log.strip()[-600:])
        outcome, detail = judged(seen.answers, self.right, seen.log)
        if outcome in ("WRONG", "MISSING") and any(damaged.name in problem for problem in seen.problems):
            outcome = "told by recover"
        return Outcome(case, outcome, detail)

    def is_named(self, target: Path, damaged: Path) -> bool:
        """Whether a verification of the store names the damaged object."""
        key = damaged.relative_to(target / "objects").as_posix()
        reports = verify.verify(Objects.open(str(target / "objects")), JOURNALS)
        return any(key.startswith(damage.object.rpartition(".")[0]) for one in reports for damage in one.damage)


class Recovering(Campaign):
    """The same where the log is lost, and the directory is made from the store."""

    def asked(self, path: Path) -> Seen:
        for lost in [*path.glob("headrace.db*"), path / "lock"]:
            lost.unlink(missing_ok=True)
        shutil.rmtree(path / "cache", ignore_errors=True)
        storage = StorageConfig(data_dir=str(path), object_store=str(path / "objects"))
        try:
            problems = recover_directory(storage, SystemClock(), journals=JOURNALS).problems
        except HeadraceError as refused:
            return Seen([], refused.message)
        return super().asked(path)._replace(problems=tuple(problems))


def table(outcomes: list[Outcome]) -> str:
    """How many cases of each kind ended how."""
    names = [name for name in (*GOOD, *BAD) if any(one.name == name for one in outcomes)]
    lines = [["kind of file", "cases", *names]]
    for kind in dict.fromkeys(one.case.kind.name for one in outcomes):
        counts = Counter(one.name for one in outcomes if one.case.kind.name == kind)
        lines.append([kind, str(counts.total()), *(str(counts[name] or "") for name in names)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def check(outcomes: list[Outcome]) -> None:
    """Print the table, and fail for every bad outcome."""
    print("\n" + table(outcomes))
    bad = [f"{one.name}: {one.case}\n    {one.detail[-DETAIL:]}" for one in outcomes if one.name in BAD]
    assert not bad, "\n".join(bad)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Question]]:
    base = tmp_path_factory.mktemp("local") / "base"
    return base, build(base)


def unlisted(base: Path) -> set[Path]:
    """Objects that no server reads any more."""
    reports = verify.verify(Objects.open(str(base / "objects")), JOURNALS)
    return {base / "objects" / key for report in reports for key in report.orphans}


def test_a_flipped_bit_is_never_an_answer(local: tuple[Path, list[Question]], tmp_path: Path) -> None:
    base, questions = local
    campaign, skipped = Campaign(base, questions, tmp_path), unlisted(base)
    chosen = [case for kind in LOCAL for case in cases(base, kind, skipped)]
    with ThreadPoolExecutor(2) as threads:
        check(list(threads.map(campaign.run, chosen)))


def test_a_flipped_bit_in_a_database_is_never_an_answer(local: tuple[Path, list[Question]], tmp_path: Path) -> None:
    base, questions = local
    ended = copied(base, tmp_path / "ended")
    running = Running(ended, {})
    running.end()
    assert not list(ended.glob("*-wal"))
    campaign = Campaign(ended, questions, tmp_path)
    chosen = [case for kind in ENDED for case in cases(ended, kind, set())]
    with ThreadPoolExecutor(2) as threads:
        check(list(threads.map(campaign.run, chosen)))


def test_a_flipped_bit_is_told_where_a_directory_is_recovered(
    local: tuple[Path, list[Question]], tmp_path: Path
) -> None:
    base, questions = local
    campaign, skipped = Recovering(base, questions, tmp_path), unlisted(base)
    chosen = [case for kind in RECOVERED for case in cases(base, kind, skipped)]
    with ThreadPoolExecutor(2) as threads:
        check(list(threads.map(campaign.run, chosen)))


class OfRemoteStore(Campaign):
    """The same with a remote store, which every case leaves as it was."""

    def __init__(self, objects: Objects, *known: Any, **settings: str) -> None:
        self._objects = objects
        self._kept = {info.key for info in objects.list("")}
        super().__init__(*known, **settings)

    def asked(self, path: Path) -> Seen:
        seen = super().asked(path)
        self._objects.delete([info.key for info in self._objects.list("") if info.key not in self._kept])
        return seen


class WhileOpen(OfRemoteStore):
    """The same where the bit is flipped in a file that a server has open."""

    def __init__(self, *known: Any, **settings: str) -> None:
        self.case: Case | None = None
        super().__init__(*known, **settings)

    def run(self, case: Case) -> Outcome:
        self.case = case
        return super().run(case._replace(kind=case.kind._replace(name=case.kind.name + ", open")))

    def asked(self, path: Path) -> Seen:
        case, self.case = self.case, None
        if case is None:
            return super().asked(path)
        damaged = path / case.path.relative_to(self.base)
        flipped(damaged, case.place, case.bit)  # back
        running = Running(path, self.settings)
        try:
            before = list(answers(running.url, self.questions))
            assert before == self.right
            flipped(damaged, case.place, case.bit)
            found = list(answers(running.url, self.questions))
        finally:
            running.close()
        self._objects.delete([info.key for info in self._objects.list("") if info.key not in self._kept])
        return Seen(found, running.log())


#: Nothing that was decoded is kept, so that every question reads the files.
UNCACHED = {"limits__companion_bytes": "1", "storage__decoded_bytes": "1", "features__row_bytes": "1"}


@pytest.mark.parametrize("campaign", [OfRemoteStore, WhileOpen])
def test_a_flipped_bit_in_a_cache_of_a_remote_store_is_healed(
    campaign: type[OfRemoteStore], bucket: s3.S3, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    settings = {"storage__object_store": bucket.url, **(UNCACHED if campaign is WhileOpen else {})}
    questions = build(base, **settings)
    running = campaign(Objects.open(bucket.url), base, questions, tmp_path, **settings)
    outcomes = [running.run(case) for kind in REMOTE for case in cases(base, kind, set())]
    check(outcomes)
    assert {one.name for one in outcomes} <= {"right", "healed"}
