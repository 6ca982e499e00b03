"""One frozen configuration, and where each of its values came from.

A value is looked for in the flags, then in ``HEADRACE_SECTION__NAME``, then in ``headrace.toml``, then in the
defaults below. A key that no section knows is an error.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from headrace import decoding
from headrace.errors import BadRequest

MiB = 1024 * 1024
GiB = 1024 * MiB
Doc = msgspec.Meta
#: Octal, as ``chmod`` takes them; the owner may do everything.
_DIRECTORY_MODE = "^0?7[0-7]{2}$"
#: A body that is no append, such as a registration, has this length at most, whatever the limits say.
_LONGEST = 4 * MiB


def amount(description: str, *, minimum: int = 0, maximum: int = 2**53) -> msgspec.Meta:
    """The description of a number, and its range."""
    return msgspec.Meta(description=description, ge=minimum, le=maximum)


def positive(description: str) -> msgspec.Meta:
    """The description of a number of seconds above 0."""
    return msgspec.Meta(description=description, gt=0, le=2**53)


class ServerConfig(msgspec.Struct, frozen=True):
    """How the server listens, and who has access."""

    host: Annotated[str, Doc(description="address to bind")] = "127.0.0.1"
    port: Annotated[int, amount("port to bind; 0 takes a free one", maximum=65_535)] = 4437
    cors_origins: Annotated[tuple[str, ...], Doc(description="web origins that may call this server")] = ()
    tls_cert: Annotated[str, Doc(description="certificate file; with tls_key the server speaks TLS")] = ""
    tls_key: Annotated[str, Doc(description="private key file")] = ""
    max_connections: Annotated[int, amount("open connections at most", minimum=1)] = 16_000
    idle_timeout_s: Annotated[float, positive("an idle connection is closed after this")] = 75.0
    request_timeout_s: Annotated[float, positive("a request must have arrived whole within this")] = 30.0
    resolver_timeout_s: Annotated[float, positive("working time of a request that is no append; a search has 3 s")] = (
        5.0
    )
    append_timeout_s: Annotated[float, positive("working time of an append")] = 3.0
    long_poll_s: Annotated[float, amount("default wait of a long-poll")] = 4.0
    max_long_poll_s: Annotated[float, amount("longest wait a client may ask for")] = 60.0
    sse_lifetime_s: Annotated[float, positive("an SSE response ends after this and is resumed")] = 60.0
    key_requests_per_s: Annotated[int, amount("requests a second of a key without a limit of its own; 0: any")] = 0
    key_bytes_per_s: Annotated[int, amount("bytes a second of a key without a limit of its own; 0: any")] = 0
    write_timeout_s: Annotated[float, positive("a reader that takes nothing for this long is cut off")] = 30.0
    shutdown_grace_s: Annotated[float, amount("time to answer what was accepted at shutdown")] = 10.0


class StorageConfig(msgspec.Struct, frozen=True):
    """Where data is stored."""

    data_dir: Annotated[str, Doc(description="directory of the log")] = "./headrace-data"
    object_store: Annotated[str, Doc(description="URL of the object store; empty: objects/ in data_dir")] = ""
    object_mode: Annotated[
        str, Doc(description="permissions of a local object store, whose files get no x", pattern=_DIRECTORY_MODE)
    ] = "0700"
    seal_bytes: Annotated[int, amount("payload that is sealed at once into a segment", minimum=1)] = 16 * MiB
    seal_rows: Annotated[int, amount("entries that are sealed at once into a segment", minimum=1)] = 100_000
    seal_age_s: Annotated[float, amount("entries wait at most this long to be published")] = 300.0
    backlog_bytes: Annotated[int, amount("unpublished payload; beyond it appends are refused", minimum=1)] = 10 * GiB
    segment_cache_bytes: Annotated[int, amount("disk for segments fetched from the store")] = 1 * GiB
    decoded_bytes: Annotated[int, amount("memory for decoded parts of segments")] = 64 * MiB
    companion_cache_bytes: Annotated[int, amount("disk for companions fetched from the store")] = 2 * GiB
    tail_cache_bytes: Annotated[int, amount("disk for columns of events that no companion covers")] = 2 * GiB
    store_timeout_s: Annotated[float, positive("a request to the object store, with its retries")] = 30.0
    cache_bytes: Annotated[int, amount("SQLite page cache")] = 64 * MiB
    checkpoint_pages: Annotated[int, amount("WAL pages at most before a checkpoint", minimum=1)] = 4000
    max_database_bytes: Annotated[int, amount("size limit of the log; 0 is the disk's")] = 0

    @property
    def object_permissions(self) -> int:
        """The permissions of a local object store and its directories."""
        return int(self.object_mode, 8)

    @property
    def directory_permissions(self) -> int:
        """The permissions of the data directory: readers of an object store below it may pass, but not read."""
        return 0o700 | (0 if self.object_store else self.object_permissions & 0o011)


class LimitsConfig(msgspec.Struct, frozen=True):
    """Limits of requests, queues and caches."""

    body_bytes: Annotated[int, amount("an append's body, after decoding", minimum=1)] = 10 * MiB
    header_bytes: Annotated[int, amount("all headers of a request", minimum=1)] = 32 * 1024
    url_bytes: Annotated[int, amount("a request's target", minimum=1)] = 8 * 1024
    name_bytes: Annotated[int, amount("a stream name in UTF-8", minimum=1)] = 512
    read_bytes: Annotated[int, amount("payload of one read", minimum=1)] = 1 * MiB
    filter_scan_bytes: Annotated[int, amount("payload a filtered read looks at without an index")] = 100 * MiB
    aggregate_groups: Annotated[int, amount("groups in one aggregate, over all its buckets", minimum=1)] = 50_000
    aggregate_bytes: Annotated[int, amount("memory for the groups of one aggregate", minimum=1)] = 64 * MiB
    tail_columns_bytes: Annotated[int, amount("memory for columns of events that no file covers")] = 128 * MiB
    companion_bytes: Annotated[int, amount("memory for decoded parts of companions")] = 128 * MiB
    duckdb_bytes: Annotated[int, amount("memory of all DuckDB queries together", minimum=16 * MiB)] = 128 * MiB
    queue_requests: Annotated[int, amount("appends waiting for the writer", minimum=1)] = 50_000
    queue_bytes: Annotated[int, amount("bytes waiting for the writer", minimum=1)] = 64 * MiB
    batch_requests: Annotated[int, amount("appends in one commit", minimum=1)] = 2_000
    batch_bytes: Annotated[int, amount("bytes in one commit", minimum=1)] = 8 * MiB
    cached_streams: Annotated[int, amount("stream heads kept in memory", minimum=1)] = 150_000
    arriving_bytes: Annotated[int, amount("bodies that have not arrived whole yet", minimum=_LONGEST)] = 128 * MiB
    unsent_bytes: Annotated[int, amount("answers that slow readers have not taken yet")] = 256 * MiB
    waiters: Annotated[int, amount("parked long-polls and SSE responses")] = 20_000
    concurrent_reads: Annotated[int, amount("read gate: reads working off the loop", minimum=1)] = 4
    concurrent_searches: Annotated[int, amount("search gate", minimum=1)] = 2
    concurrent_index_work: Annotated[int, amount("index gate", minimum=1)] = 1

    def __post_init__(self) -> None:
        if self.arriving_bytes < self.body_bytes:
            raise ConfigError(
                f"limits.arriving_bytes is {self.arriving_bytes} and limits.body_bytes is {self.body_bytes}: a body of "
                "that length could never arrive; raise the first, or lower the second",
                field="limits.arriving_bytes",
            )


class MemoryConfig(msgspec.Struct, frozen=True):
    """How much memory the server process may use; caches, queues and gates are sized from that."""

    auto_tune: Annotated[bool, Doc(description="without limit_mb: all memory of the machine or the container")] = False
    limit_mb: Annotated[int, amount("memory limit; 0: half of the machine or the container, 2048 at most")] = 0


class SubscriptionsConfig(msgspec.Struct, frozen=True):
    """Wake-ups under ``__ds``."""

    enabled: Annotated[bool, Doc(description="serve subscriptions")] = True
    local_webhooks: Annotated[
        bool, Doc(description="webhooks may call loopback and link-local addresses, wherever the server is bound")
    ] = False
    max_per_key: Annotated[int, amount("subscriptions of one key", minimum=1)] = 100
    max_per_prefix: Annotated[int, amount("subscriptions of all keys with the same prefix", minimum=1)] = 250
    webhook_timeout_s: Annotated[float, positive("a webhook must answer within this")] = 10.0


class PipelineConfig(msgspec.Struct, frozen=True):
    """Derived data, and the Spark that computes it."""

    min_rows: Annotated[int, amount("published entries that are indexed together; 0: any number")] = 10_000
    unit_bytes: Annotated[int, amount("payload that one task indexes", minimum=1)] = 16 * MiB
    fan_out: Annotated[int, amount("companions that are merged into one of the next level", minimum=2)] = 16
    lease_s: Annotated[float, positive("a worker that is silent for this long has lost its work")] = 60.0
    stall_s: Annotated[float, positive("a worker without progress on its units for this long has lost them")] = 3600.0
    idle_s: Annotated[float, positive("without work Spark stops after this")] = 300.0
    master: Annotated[str, Doc(description="Spark master: local[*], spark://…, yarn, k8s://…")] = "local[*]"
    remote: Annotated[str, Doc(description="Spark Connect server (sc://…), in place of a master")] = ""
    memory: Annotated[str, Doc(description="memory of the Spark driver")] = "1g"
    poll_s: Annotated[float, positive("time between looks for work")] = 1.0
    lease_units: Annotated[int, amount("units of work in one Spark job", minimum=1)] = 16
    tasks: Annotated[int, amount("tasks of one Spark job at most", minimum=1)] = 16
    shuffle_partitions: Annotated[int, amount("partitions of what Spark groups", minimum=1)] = 4
    #: Settings of Spark itself by their names there; each is a setting ``pipeline.spark.…`` of ours.
    spark: dict[str, str] = {}


class FeaturesConfig(msgspec.Struct, frozen=True):
    """Feature tables: what the server holds and folds itself."""

    fold_rows: Annotated[int, amount("published events that the server folds itself, without Spark")] = 100_000
    tail_bytes: Annotated[int, amount("memory for the folded tails of tables")] = 256 * MiB
    row_bytes: Annotated[int, amount("memory for rows that were looked up")] = 64 * MiB
    state_cache_bytes: Annotated[int, amount("disk for states fetched from the store")] = 2 * GiB
    dedupe_keys: Annotated[int, amount("keys that one event source remembers; then the oldest go", minimum=1)] = (
        1_000_000
    )
    test_mode: Annotated[bool, Doc(description="whether `/v1/reset` removes every event source and table")] = False


class SystemConfig(msgspec.Struct, frozen=True):
    """The streams of the server itself, and where telemetry goes that names no stream."""

    metrics_interval_s: Annotated[float, amount("interval of `__stream_metrics__`; 0: it is not written")] = 10.0
    live_interval_s: Annotated[float, amount("interval of `__live_metrics__`; 0: it is not written")] = 1.0
    registry_log: Annotated[bool, Doc(description="keep account of who changed what in `__registry__`")] = True
    traces_stream: Annotated[str, Doc(description="the stream of spans sent to `/v1/traces`; empty: none")] = ""
    traces_auto_create: Annotated[bool, Doc(description="make that stream where there is none")] = False


class Config(msgspec.Struct, frozen=True):
    """The whole configuration, in sections."""

    server: ServerConfig = ServerConfig()
    storage: StorageConfig = StorageConfig()
    limits: LimitsConfig = LimitsConfig()
    memory: MemoryConfig = MemoryConfig()
    subscriptions: SubscriptionsConfig = SubscriptionsConfig()
    pipeline: PipelineConfig = PipelineConfig()
    features: FeaturesConfig = FeaturesConfig()
    system: SystemConfig = SystemConfig()


class ConfigError(BadRequest):
    """A setting is unknown, or does not fit its type or another setting."""

    code = "invalid_config"


#: The prefix of settings of Spark, whatever follows it.
SPARK = "pipeline.spark"
SPARK_MEANING = "a setting of Spark"
_SPARK_KEY = re.compile(r"spark(\.[\w/@$-]+)+")
#: What Spark itself masks in its logs and pages.
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
#: Settings of Spark that Headrace must set itself, and what to do instead.
_REFUSED_SPARK = {
    "spark.master": "set pipeline.master",
    "spark.remote": "set pipeline.remote",
    "spark.api.mode": "set pipeline.remote, which uses Spark Connect",
    "spark.submit.deployMode": "the driver is a process of `headrace pipeline`, on its machine",
    "spark.driver.memory": "set pipeline.memory",
    "spark.sql.shuffle.partitions": "set pipeline.shuffle_partitions",
    "spark.sql.session.timeZone": "times of derived data are in UTC",
    "spark.pyspark.python": "set the environment variable PYSPARK_PYTHON, of `headrace pipeline` or `headrace up`",
    "spark.pyspark.driver.python": "the driver runs on the Python of `headrace pipeline`",
}


def fields() -> dict[str, tuple[Any, Any, str]]:
    """Every setting as ``section.name`` → (type, default, description)."""
    return {
        name: (hint.__origin__, default, hint.__metadata__[0].description)
        for name, (hint, default) in _settings().items()
    }


def _settings() -> dict[str, tuple[Any, Any]]:
    """Every setting with its annotation, which has its limits, and its default."""
    settings: dict[str, tuple[Any, Any]] = {}
    for section in msgspec.structs.fields(Config):
        hints = get_type_hints(section.type, include_extras=True)
        for field in msgspec.structs.fields(section.type):
            if f"{section.name}.{field.name}" != SPARK:
                settings[f"{section.name}.{field.name}"] = (hints[field.name], field.default)
    return settings


def resolve(
    *,
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, tuple[object, str]]:
    """Every setting with its value and its source: flag, environment, file or default."""
    settings = _settings()
    values = {name: (default, "default") for name, (_, default) in settings.items()}
    for source, source_values in (
        ("file", _from_file(file)),
        ("environment", _from_environ(os.environ if environ is None else environ)),
        ("flag", dict(flags or {})),
    ):
        for name, value in source_values.items():
            if name.startswith(f"{SPARK}."):
                values[name] = (_spark_value(name, value, source), source)
                continue
            if name not in settings:
                raise _unknown_error(name, source, settings)
            values[name] = (_convert(name, value, settings[name][0], source), source)
    _build_config(values)  # which settings that do not go together end
    return values


def explicit_settings(
    *, file: Path | None = None, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> frozenset[str]:
    """The settings that are set, not left to their defaults."""
    settings = resolve(file=file, flags=flags, environ=environ)
    return frozenset(name for name, (_, source) in settings.items() if source != "default")


def load(
    *,
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration from all sources."""
    return _build_config(resolve(file=file, flags=flags, environ=environ))


def _build_config(values: Mapping[str, tuple[object, str]]) -> Config:
    sections: dict[str, dict[str, object]] = {}
    spark_settings: dict[str, str] = {}
    for name, (value, _) in values.items():
        section, _, key = name.partition(".")
        if name.startswith(f"{SPARK}."):
            spark_settings[key] = str(value)
        else:
            sections.setdefault(section, {})[key] = value
    sections["pipeline"]["spark"] = spark_settings
    return decoding.convert(sections, Config)


def _from_file(file: Path | None) -> dict[str, object]:
    path = file or Path("headrace.toml")
    if not path.exists():
        if file:
            raise ConfigError(f"there is no file {file}", field="config")
        return {}
    try:
        document = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as reason:
        raise ConfigError(f"{path} is not TOML: {reason}", field="config") from reason
    flat: dict[str, object] = {}
    for section, content in document.items():
        if not isinstance(content, dict):
            raise ConfigError(f"{section!r} stands outside a section in {path}", field=section)
        if not content and section not in Config.__struct_fields__:
            raise _unknown_error(section, "file", Config.__struct_fields__, kind="section")
        for key, value in content.items():
            flat |= _flatten_spark(f"{section}.{key}", value)
    return flat


def _flatten_spark(name: str, value: object) -> Iterable[tuple[str, object]]:
    """A setting of the file by its name; tables below ``pipeline.spark``, which dots in keys make, have many."""
    if not isinstance(value, dict) or not name.startswith(SPARK):
        yield _spark_name(name), value
        return
    for key, inner in value.items():
        yield from _flatten_spark(f"{name}.{key}", inner)


# Read by the command line itself, or by the libraries below us.
_NOT_SETTINGS = {"HEADRACE_URL", "HEADRACE_KEY"}


def _from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in environ.items():
        if name.startswith("HEADRACE_") and name not in _NOT_SETTINGS:
            section, separator, key = name.removeprefix("HEADRACE_").partition("__")
            dotted = f"{section.lower()}.{_key_from_environ(key)}"
            flat[_spark_name(dotted) if separator else name] = value
    return flat


def _key_from_environ(key: str) -> str:
    """The key of a variable; one of Spark keeps its capitals, unless it is all capitals."""
    dotted = key.replace("__", ".")
    if not dotted.lower().startswith("spark."):
        return key.lower()
    return dotted.lower() if dotted.isupper() else f"spark{dotted[5:]}"


def spark_settings(pairs: Iterable[str]) -> dict[str, object]:
    """The settings of flags ``--conf spark.key=value``, by their dotted names."""
    settings = dict[str, object]()
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.startswith("spark."):
            reason = f"--conf takes a setting of Spark such as spark.executor.memory=4g, not {pair!r}"
            raise ConfigError(reason, field="conf")
        settings[f"pipeline.{key}"] = value
    return settings


def shown_value(name: str, value: object) -> object:
    """A value as it may be shown: settings of Spark that look like secrets are masked, as Spark does."""
    return "*****" if name.startswith(f"{SPARK}.") and _SECRET.search(name) else value


def _spark_name(name: str) -> str:
    """The name of a setting, of which ``spark`` may have been written twice."""
    return name.replace(f"{SPARK}.spark.", f"{SPARK}.", 1)


def _spark_value(name: str, value: object, source: str) -> str:
    """The value of a setting of Spark, as Spark takes it; raises ConfigError where Headrace needs its own."""
    key = name.removeprefix("pipeline.")
    if not _SPARK_KEY.fullmatch(key):
        raise ConfigError(f"{name!r} in the {source} is no name of a setting of Spark", field=name)
    if key in _REFUSED_SPARK:
        raise ConfigError(f"{name} in the {source} cannot be set: {_REFUSED_SPARK[key]}", field=name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigError(
        f"{name}: a setting of Spark is a text, a number, true or false; this comes from the {source}", field=name
    )


def _convert(name: str, value: object, hint: Any, source: str) -> object:
    raw = value
    if isinstance(value, str) and getattr(hint.__origin__, "__origin__", None) is tuple:
        value = tuple(part.strip() for part in value.split(",") if part.strip())
    try:
        return decoding.convert(value, hint, strict=not isinstance(value, str))
    except msgspec.ValidationError as reason:
        raise ConfigError(f"{name}: {reason}; {raw!r} comes from the {source}", field=name) from reason


def _unknown_error(name: str, source: str, names: Iterable[str], *, kind: str = "setting") -> ConfigError:
    near = difflib.get_close_matches(name, list(names), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"unknown {kind} {name!r} in the {source}{hint}", field=name)
