"""``headrace doctor``: checks of this machine, with advice for those that fail."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli import output
from headrace.cli.arguments import LOCAL, Remote
from headrace.cli.config import ConfigFile, DataDir
from headrace.cli.output import AsJson
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.query.carry import EmptiedField

_MIN_FREE_BYTES = 1024**3
_SLOW_SYNC_MS = 10.0
_SYNCS = 20
_REQUEST_TIMEOUT_S = 2.0
_CACHE_BYTES = 8 * 1024 * 1024
_MAX_NAMED = 10
_SERVER_ADVICE = "look at --url or HEADRACE_URL, at --key or HEADRACE_KEY, and at the log of the server"


class Finding(NamedTuple):
    """The outcome of one check, with advice if it fails."""

    check: str
    status: str
    found: str
    advice: str = ""


def doctor(*, data_dir: DataDir = None, config: ConfigFile = None, remote: Remote = LOCAL, json: AsJson = False) -> int:
    """Check Java, Spark, the disk, the port, the object store and search fields of this machine.

    If --url or HEADRACE_URL names a server, check that too. 1 says that something would not work.
    """
    from headrace.config import load

    flags = {} if data_dir is None else {"storage.data_dir": data_dir}
    findings = list(examine(load(file=config, flags=flags)))
    if remote.url != LOCAL.url:
        findings.append(_server(remote))
    output.show_all([finding._asdict() for finding in findings], Finding._fields, as_json=json)
    return output.FAILED if any(finding.status == "bad" for finding in findings) else output.OK


def examine(config: Config) -> Iterator[Finding]:
    """All findings; a check that raises is a finding too."""
    for name, check in _CHECKS.items():
        try:
            yield check(config)
        except (HeadraceError, OSError, ImportError) as reason:
            status, advice = _FAILED.get(name, ("bad", ""))
            if isinstance(reason, ImportError):
                advice = "pip install 'headrace[server]'"
            yield Finding(name, status, str(reason), advice)


def _java(config: Config) -> Finding:
    from headrace.pipeline import java

    with tempfile.TemporaryDirectory() as scratch:
        java_home = java.find(Path(scratch))
    runtime = f"Java {java_home.version} ({java_home.source})"
    if (unfit := java.unfit_home()) is not None:
        advice = f"JAVA_HOME names {unfit}, where there is no Java 17 to 21: unset or correct it"
        return Finding("java", "warn", runtime, advice)
    return Finding("java", "ok", runtime)


def _spark(config: Config) -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Finding("spark", "ok", f"pyspark {version('pyspark')}")
    except PackageNotFoundError:
        advice = "pip install 'headrace[pipeline]'; without it answers are computed on the fly, only slower"
        return Finding("spark", "warn", "pyspark is not installed", advice)


def _disk(config: Config) -> Finding:
    free = shutil.disk_usage(_existing(config)).free
    enough = free > _MIN_FREE_BYTES
    advice = "" if enough else "appends are refused when the disk is full; make room"
    return Finding("disk", "ok" if enough else "warn", f"{free // 1024**2:,} MiB free", advice)


def _fsync(config: Config) -> Finding:
    """What one durable write costs: the least time of an acknowledged append."""
    with tempfile.NamedTemporaryFile(dir=_existing(config), prefix=".headrace-doctor-") as file:
        begun = perf_counter()
        for _ in range(_SYNCS):
            os.write(file.fileno(), b"x" * 4096)
            os.fsync(file.fileno())
        each = (perf_counter() - begun) * 1000 / _SYNCS
    slow = each > _SLOW_SYNC_MS
    advice = "appends wait for this; a local SSD takes less than a millisecond" if slow else ""
    return Finding("fsync", "warn" if slow else "ok", f"{each:.2f} ms", advice)


def _port(config: Config) -> Finding:
    host, port = config.server.host, config.server.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as reason:
            if _is_headrace(host, port):
                return Finding("port", "ok", f"a Headrace runs at {host}:{port}")
            return Finding("port", "warn", f"{host}:{port}: {reason.strerror}", "choose another with --port")
    return Finding("port", "ok", f"{host}:{port} is free")


def _is_headrace(host: str, port: int) -> bool:
    """Whether a Headrace server listens there."""
    connection = HTTPConnection(host, port, timeout=_REQUEST_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().read(64) == b'{"ok":true}'
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _server(remote: Remote) -> Finding:
    """Whether a server is ready, and takes the key if there is one."""
    from headrace.client.requests import Request

    try:
        with remote.connect() as client:
            ready = client.send(Request("GET", "/health/ready", changes=False)).decode(dict[str, object])
            version = client.send(Request("GET", "/", changes=False)).decode(dict[str, object]).get("version")
    except HeadraceError as reason:
        return Finding("server", "bad", f"{remote.url}: {reason.message}", _SERVER_ADVICE)
    troubles = [f"{part}: {ready[part]}" for part in ("object_store", "database") if ready.get(part, "ok") != "ok"]
    if troubles:
        return Finding("server", "warn", f"{remote.url}: {'; '.join(troubles)}", "look at the log of the server")
    return Finding("server", "ok", f"{remote.url} is ready: Headrace {version}")


def _store(config: Config) -> Finding:
    from headrace.storage.objects import Objects

    url = config.storage.object_store or str(Path(config.storage.data_dir) / "objects")
    if "://" not in url and not Path(url).is_dir():
        return Finding("store", "ok", f"{url} will be made")
    objects = Objects.open(url, timeout_s=config.storage.store_timeout_s)
    begun = perf_counter()
    next(iter(objects.list("manifests")), None)
    return Finding("store", "ok", f"{url} answers in {(perf_counter() - begun) * 1000:.0f} ms")


def _search(config: Config) -> Finding:
    """Whether all search fields of all streams can have values."""
    emptied = list(_emptied_fields(Path(config.storage.data_dir) / "headrace.db"))
    if not emptied:
        return Finding("search", "ok", "no search field was emptied by a change of schema")
    named = [f"{stream}: {field.field} from version {field.from_version} on" for stream, field in emptied[:_MAX_NAMED]]
    mends = [f"{stream}: {field.field} {_json(field.dump()['binding'])}" for stream, field in emptied[:_MAX_NAMED]]
    more = "" if len(emptied) <= _MAX_NAMED else f"; and {len(emptied) - _MAX_NAMED} more"
    advice = "add these bindings with `headrace schema apply STREAM --search FILE`: " + "; ".join(mends) + more
    return Finding("search", "warn", "fields without values: " + "; ".join(named) + more, advice)


def _emptied_fields(path: Path) -> Iterator[tuple[str, EmptiedField]]:
    import msgspec

    from headrace.query.carry import emptied_fields
    from headrace.schema.registry import Registry
    from headrace.storage import database
    from headrace.storage.registries import Registries

    if not path.exists():
        return
    with closing(database.connect(path, cache_bytes=_CACHE_BYTES, readonly=True)) as connection, database.using(path):
        for name, document in Registries(connection).newest():
            for field in emptied_fields(Registry.load(msgspec.json.decode(document))):
                yield name, field


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _existing(config: Config) -> Path:
    """The data directory, or the nearest directory above it that exists."""
    data_dir = Path(config.storage.data_dir).resolve()
    return next(path for path in (data_dir, *data_dir.parents) if path.is_dir())


_CHECKS: dict[str, Callable[[Config], Finding]] = {
    "java": _java,
    "spark": _spark,
    "disk": _disk,
    "fsync": _fsync,
    "port": _port,
    "store": _store,
    "search": _search,
}
#: What it means that a check fails, and what to do then; a server needs no Java.
_FAILED = {
    "java": ("warn", "only the pipeline needs Java; without it answers are computed on the fly, only slower"),
    "disk": ("bad", "choose another place with --data-dir"),
    "fsync": ("bad", "choose a place that can be written to with --data-dir"),
    "search": ("bad", "look at the database of the data directory"),
    "store": ("bad", "look at storage.object_store, and at the credentials in the environment"),
}
