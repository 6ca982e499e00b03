"""Auto-tune: from a memory limit to the sizes of caches, queues and gates.

The presets are chosen so that :func:`expected_bytes` and the pages of program files stay within their limit. Between
two presets every size grows in a straight line. The costs of the process and of a stream were
measured and rounded up; the others are estimates on the safe side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from typing import Any

import msgspec

from headrace.config import Config, ConfigError, MiB

PRESETS_MB = (256, 512, 1024, 2048, 4096, 8192)

_PRESETS: dict[str, tuple[int, ...]] = {
    "storage.cache_bytes": tuple(n * MiB for n in (4, 16, 52, 128, 480, 960)),
    "storage.decoded_bytes": tuple(n * MiB for n in (2, 8, 32, 64, 128, 256)),
    "limits.queue_bytes": tuple(n * MiB for n in (6, 16, 56, 64, 320, 448)),
    "limits.batch_bytes": tuple(n * MiB for n in (1, 2, 8, 8, 8, 16)),
    "limits.queue_requests": (10_000, 25_000, 50_000, 50_000, 100_000, 100_000),
    "limits.tail_columns_bytes": tuple(n * MiB for n in (4, 8, 36, 88, 256, 512)),
    "limits.companion_bytes": tuple(n * MiB for n in (4, 8, 36, 88, 256, 512)),
    "limits.aggregate_bytes": tuple(n * MiB for n in (6, 16, 16, 64, 64, 64)),
    "limits.duckdb_bytes": tuple(n * MiB for n in (16, 32, 64, 128, 256, 512)),
    # A body of the longest length must fit in.
    "limits.arriving_bytes": tuple(n * MiB for n in (12, 14, 40, 96, 112, 256)),
    "limits.unsent_bytes": tuple(n * MiB for n in (6, 12, 40, 128, 208, 448)),
    "features.tail_bytes": tuple(n * MiB for n in (1, 6, 20, 48, 144, 288)),
    "features.row_bytes": tuple(n * MiB for n in (1, 4, 16, 32, 64, 192)),
    "limits.cached_streams": (2_000, 10_000, 48_000, 150_000, 240_000, 700_000),
    "limits.waiters": (500, 2_000, 10_000, 20_000, 40_000, 60_000),
    "limits.concurrent_reads": (2, 2, 4, 4, 8, 16),
    "limits.concurrent_searches": (1, 1, 2, 2, 4, 8),
    "limits.concurrent_index_work": (1, 1, 1, 1, 2, 4),
    "server.max_connections": (300, 1_000, 5_000, 16_000, 26_000, 55_000),
}

# With everything loaded that reads and writes Parquet, computes aggregates, and hands out work to Spark.
PROCESS_BYTES = 100 * MiB
# Pages of program files. They are not counted below the second preset: the system drops them where memory is short.
CODE_BYTES = 128 * MiB
FOOTER_BYTES = 24 * MiB  # open footers of segments, at most
SQLITE_BYTES = 16 * MiB  # statements and schemas of all connections
SEALING_BYTES = 20 * MiB  # a row group in all its forms, and two parts of an upload
STREAM_BYTES = 1280
WAITER_BYTES = 1024
CONNECTION_BYTES = 16 * 1024
WORK_BYTES = 16 * MiB  # one search, or one index job
BESIDE_BYTES = 16 * MiB


def preset_mb(limit_mb: int) -> int:
    """The largest preset that fits the limit."""
    if limit_mb < PRESETS_MB[0]:
        raise ConfigError(
            f"the server needs {PRESETS_MB[0]} MB or more, and the limit is {limit_mb} MB", field="memory.limit_mb"
        )
    return PRESETS_MB[bisect_right(PRESETS_MB, limit_mb) - 1]


def tune(limit_mb: int, config: Config, explicit: Collection[str] = ()) -> Config:
    """The same configuration with its sizes fitted to the limit; a setting named or changed by the user wins."""
    preset_mb(limit_mb)
    sections: dict[str, dict[str, Any]] = {}
    for name, sizes in _PRESETS.items():
        section, field = name.split(".")
        configured = getattr(getattr(config, section), field)
        if name not in explicit and configured == getattr(getattr(_DEFAULTS, section), field):
            sections.setdefault(section, {})[field] = _interpolate(limit_mb, sizes)
    changed = {name: msgspec.structs.replace(getattr(config, name), **sizes) for name, sizes in sections.items()}
    return msgspec.structs.replace(config, **changed)


def expected_parts(config: Config) -> dict[str, int]:
    """The most memory that each part of the server can use under this configuration, in bytes."""
    limits = config.limits
    return {
        "sqlite_page_cache": sqlite_bytes(config),
        "decoded_segments": config.storage.decoded_bytes,
        "segment_footers": footer_bytes(config),
        "sealing": SEALING_BYTES,
        "append_queue": limits.queue_bytes,
        "arriving_bodies": limits.arriving_bytes,
        "unsent_answers": limits.unsent_bytes,
        # One batch is being committed while the one before it is being answered.
        "append_batches": limits.batch_bytes * 2,
        "cached_streams": limits.cached_streams * STREAM_BYTES,
        "waiters": limits.waiters * WAITER_BYTES,
        "connections": config.server.max_connections * CONNECTION_BYTES,
        # Rows, the joined body, its encoded form and the copy in the socket.
        "reads": limits.concurrent_reads * limits.read_bytes * 4,
        # Groups, and what they are made from.
        "searches": limits.concurrent_searches * (WORK_BYTES + limits.aggregate_bytes),
        "index_work": limits.concurrent_index_work * WORK_BYTES,
        "tail_columns": limits.tail_columns_bytes,
        "companions": limits.companion_bytes,
        # Open footers, keys of segments, and events that were given out last.
        "beside_companions": 3 * beside_companions(config),
        "duckdb": limits.duckdb_bytes,
        # Packed rows, rows at hand, and events that are not folded yet.
        "feature_tails": config.features.tail_bytes * 2,
        # Rows of tables; a quarter of that for entities, and half of it for their tails.
        "state_rows": config.features.row_bytes * 7 // 4,
    }


def sqlite_bytes(config: Config) -> int:
    """The most memory that all connections to the database can use."""
    # The writer's page cache, a quarter of it for the reader, and an eighth for whoever seals.
    return SQLITE_BYTES + config.storage.cache_bytes * 11 // 8


def footer_bytes(config: Config) -> int:
    """The most memory that open footers of segments can use."""
    return min(FOOTER_BYTES, config.storage.decoded_bytes)


def beside_companions(config: Config) -> int:
    """The limit of each of the smaller caches of searches."""
    return min(BESIDE_BYTES, config.limits.companion_bytes // 4)


def expected_bytes(config: Config) -> int:
    """The most memory that the process can use under this configuration."""
    return PROCESS_BYTES + sum(expected_parts(config).values())


def code_bytes(limit_mb: int) -> int:
    """What pages of program files count for under a limit."""
    return min(CODE_BYTES, (limit_mb - PRESETS_MB[0]) * MiB // 2)


def _interpolate(limit_mb: int, sizes: tuple[int, ...]) -> int:
    above = bisect_right(PRESETS_MB, limit_mb)
    if above == len(PRESETS_MB):
        return sizes[-1]
    low_mb, high_mb = PRESETS_MB[above - 1], PRESETS_MB[above]
    low, high = sizes[above - 1], sizes[above]
    return low + (high - low) * (limit_mb - low_mb) // (high_mb - low_mb)


_DEFAULTS = Config()
