"""``headrace recover``, ``verify``, ``backup`` and ``restore``: a data directory, its object store, their copies."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import msgspec
from cyclopts import Parameter

from headrace.cli import output
from headrace.cli.config import ConfigFile, DataDir, load_storage
from headrace.cli.output import AsJson, UsageError
from headrace.errors import NotFound

if TYPE_CHECKING:
    from headrace.engine.history.recovery import RecoveredStream
    from headrace.engine.history.verify import VerifyReport
    from headrace.storage.backup import Backup
    from headrace.storage.objects import Objects

_MAY_BE_THERE = ("keys.db", "keys.db-wal", "keys.db-shm", "objects", "cache", "sealing", "reserve")


def recover(
    *,
    source: Annotated[str, Parameter(name="--from", help="URL of the object store, or its directory.")],
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> int:
    """Fill a new data directory with every stream that is published in an object store, and become its writer."""
    from headrace.engine.history.takeover import recover_directory
    from headrace.engine.products import JOURNALS
    from headrace.storage.backup import refuse_if_used
    from headrace.types import SystemClock

    chosen = load_storage(data_dir, config, source)
    refuse_if_used(Path(chosen.data_dir), *_MAY_BE_THERE)
    _refuse_missing(source)
    recovered_streams: list[RecoveredStream] = []
    logging.getLogger("headrace").addHandler(logging.NullHandler())  # what is logged is complained of below
    with output.progress_bar("recovering") as report:

        def report_progress(done: int, total: int, recovered_stream: RecoveredStream | None) -> None:
            report(done, total)
            if recovered_stream is not None:
                recovered_streams.append(recovered_stream)

        recovered = recover_directory(chosen, SystemClock(), journals=JOURNALS, on_progress=report_progress)
    output.show_all(
        (stream._asdict() for stream in recovered_streams), ("stream", "entries", "segments", "bytes"), as_json=json
    )
    return _print_problems(({"message": problem} for problem in recovered.problems), json)


def verify(
    *,
    data_dir: DataDir = None,
    object_store: Annotated[str | None, Parameter(help="URL of the object store, or its directory.")] = None,
    stream: Annotated[str | None, Parameter(help="Only this one.")] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> int:
    """Check every object of a store against its manifest, with or without a server; names each that is damaged."""
    from headrace.engine.history import verify as verification
    from headrace.engine.products import JOURNALS

    if data_dir is not None and object_store is not None:
        raise UsageError("give --data-dir or --object-store, not both")
    chosen = load_storage(data_dir, config, object_store)
    objects = _open_store(chosen.object_store or str(Path(chosen.data_dir) / "objects"), chosen.store_timeout_s)
    damaged: list[dict[str, str]] = []
    columns = ("stream", "generation", "state", "entries", "segments", "bytes", "orphans", "damaged")
    as_table = output.wants_table(json)
    with output.progress_bar("verifying") as report:
        rows = _report_rows(
            _collect_damage(verification.verify(objects, JOURNALS, stream=stream, on_progress=report), damaged, stream),
            as_table,
        )
        if as_table:
            rows = list(rows)  # the bar comes first
        else:
            output.show_all(rows, columns, as_json=json)
    if as_table:
        output.show_all(rows, columns, as_json=json)
    return _print_problems(damaged, json)


def backup(
    target: Annotated[Path, Parameter(help="A directory that is made for it.")],
    /,
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> int:
    """Copy the log and the keys of a data directory as of one moment, while a server may be running on it."""
    from headrace.storage.backup import back_up
    from headrace.types import SystemClock

    chosen = load_storage(data_dir, config)
    with output.progress_bar("copying") as report:
        taken = back_up(Path(chosen.data_dir), chosen.object_store, target, SystemClock(), report)
    output.show({"target": str(target), **_facts(taken)}, as_json=json)
    return _print_problems(({"message": problem} for problem in taken.problems), json)


def restore(
    source: Annotated[Path, Parameter(help="The directory of a backup.")],
    /,
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Fill a new data directory from a backup; the server that starts there goes on from what was published since."""
    from headrace.storage import backup as backups

    chosen = load_storage(data_dir, config)
    with output.progress_bar("copying") as report:
        taken = backups.restore(source, chosen, report)
    output.show({"data_dir": chosen.data_dir, **_facts(taken)}, as_json=json)


def _refuse_missing(url: str) -> None:
    """Refuse a store in a directory that does not exist: opening it would create it."""
    path = None if "://" in url and not url.startswith("file:") else unquote(urlsplit(url).path)
    if path is not None and not Path(path).is_dir():
        raise NotFound(f"there is no object store in {path}", object_store=url)


def _open_store(url: str, timeout_s: float) -> Objects:
    from headrace.storage.objects import Objects

    _refuse_missing(url)
    return Objects.open(url, timeout_s=timeout_s)


def _collect_damage(
    reports: Iterable[VerifyReport], damaged: list[dict[str, str]], stream: str | None
) -> Iterator[VerifyReport]:
    is_there = stream is None
    for report in reports:
        is_there = True
        damaged += [damage._asdict() for damage in report.damage]
        yield report
    if not is_there:
        raise NotFound(f"nothing of {stream!r} is in the object store", stream=stream)


def _report_rows(reports: Iterable[VerifyReport], as_table: bool) -> Iterable[dict[str, Any]]:
    for report in reports:
        facts = {**msgspec.structs.asdict(report), "damage": [damage._asdict() for damage in report.damage]}
        if as_table:
            facts |= {"orphans": len(report.orphans), "damaged": len(report.damage)}
        yield facts


def _facts(taken: Backup) -> dict[str, Any]:
    from headrace.types import rfc3339

    return {
        "taken_at": rfc3339(taken.taken_us),
        "bytes": sum(copied.bytes for copied in taken.files.values()),
        "files": sorted(taken.files),
        "objects": taken.objects,
        "object_bytes": taken.object_bytes,
        "object_store": taken.object_store or ("included" if taken.objects else "none"),
    }


def _print_problems(problems: Iterable[dict[str, str]], as_json: bool) -> int:
    """Print each problem to stderr; returns the exit code."""
    code = output.OK
    for problem in problems:
        code = output.FAILED
        print(output.encode(problem) if as_json else f"headrace: {problem['message']}", file=sys.stderr)
    return code
