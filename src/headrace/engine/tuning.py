"""Auto-tune: from a memory limit to the sizes of caches, queues and gates.

The presets are chosen so that :func:`expected_bytes` stays below their limit with a tenth or more to spare. Between
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
    "storage.cache_bytes": tuple(n * MiB for n in (4, 30, 88, 220, 512, 1024)),
    "storage.decoded_bytes": tuple(n * MiB for n in (2, 16, 32, 64, 128, 256)),
    "limits.queue_bytes": tuple(n * MiB for n in (8, 32, 72, 176, 384, 512)),
    "limits.batch_bytes": tuple(n * MiB for n in (1, 4, 8, 8, 8, 16)),
    "limits.queue_requests": (10_000, 25_000, 50_000, 50_000, 100_000, 100_000),
    "limits.tail_columns_bytes": tuple(n * MiB for n in (4, 16, 48, 128, 256, 512)),
    "limits.companion_bytes": tuple(n * MiB for n in (4, 16, 48, 128, 256, 512)),
    # A body of the longest length must fit in.
    "limits.arriving_bytes": tuple(n * MiB for n in (12, 24, 48, 96, 128, 256)),
    "limits.unsent_bytes": tuple(n * MiB for n in (8, 24, 64, 128, 256, 512)),
    "features.tail_bytes": tuple(n * MiB for n in (1, 16, 24, 64, 256, 512)),
    "features.row_bytes": tuple(n * MiB for n in (1, 8, 16, 32, 64, 256)),
    "limits.cached_streams": (2_000, 28_000, 70_000, 150_000, 300_000, 800_000),
    "limits.waiters": (500, 3_000, 10_000, 20_000, 40_000, 60_000),
    "limits.concurrent_reads": (2, 4, 4, 8, 8, 16),
    "limits.concurrent_searches": (1, 1, 2, 2, 4, 8),
    "limits.concurrent_index_work": (1, 1, 1, 1, 2, 4),
    "server.max_connections": (300, 2_000, 7_000, 14_000, 30_000, 55_000),
}

# With what reads and writes Parquet, which is loaded with the first segment; code that the system may drop is left out.
PROCESS_BYTES = 88 * MiB
FOOTER_BYTES = 24 * MiB  # open footers of segments
SEALING_BYTES = 20 * MiB  # a row group in all its forms, and two parts of an upload
STREAM_BYTES = 1280
WAITER_BYTES = 1024
CONNECTION_BYTES = 16 * 1024
WORK_BYTES = 16 * MiB  # one search, or one index job


def preset_mb(limit_mb: int) -> int:
    """The largest preset that fits the limit."""
    if limit_mb < PRESETS_MB[0]:
        raise ConfigError(
            f"auto-tune needs {PRESETS_MB[0]} MB or more, and the limit is {limit_mb} MB", field="memory.limit_mb"
        )
    return PRESETS_MB[bisect_right(PRESETS_MB, limit_mb) - 1]


def tune(limit_mb: int, config: Config, explicit: Collection[str] = ()) -> Config:
    """The same configuration with its sizes fitted to the limit; a setting named or changed by the user wins."""
    preset_mb(limit_mb)
    sections: dict[str, dict[str, Any]] = {}
    for name, sizes in _PRESETS.items():
        section, field = name.split(".")
        given = getattr(getattr(config, section), field)
        if name not in explicit and given == getattr(getattr(_DEFAULTS, section), field):
            sections.setdefault(section, {})[field] = _between(limit_mb, sizes)
    changed = {name: msgspec.structs.replace(getattr(config, name), **sizes) for name, sizes in sections.items()}
    return msgspec.structs.replace(config, **changed)


def expected_parts(config: Config) -> dict[str, int]:
    """What each part of the server may come to hold under this configuration, in bytes."""
    limits = config.limits
    return {
        # The writer's page cache, a quarter of it for the reader, and an eighth for whoever seals.
        "sqlite_page_cache": config.storage.cache_bytes * 11 // 8,
        "decoded_segments": config.storage.decoded_bytes,
        "segment_footers": FOOTER_BYTES,
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
        "searches": limits.concurrent_searches * WORK_BYTES,
        "index_work": limits.concurrent_index_work * WORK_BYTES,
        "tail_columns": limits.tail_columns_bytes,
        "companions": limits.companion_bytes,
        "feature_tails": config.features.tail_bytes,
        # Rows of tables, and a quarter of that for entities.
        "state_rows": config.features.row_bytes * 5 // 4,
    }


def expected_bytes(config: Config) -> int:
    """What the whole process may come to hold under this configuration."""
    return PROCESS_BYTES + sum(expected_parts(config).values())


def _between(limit_mb: int, sizes: tuple[int, ...]) -> int:
    above = bisect_right(PRESETS_MB, limit_mb)
    if above == len(PRESETS_MB):
        return sizes[-1]
    low_mb, high_mb = PRESETS_MB[above - 1], PRESETS_MB[above]
    low, high = sizes[above - 1], sizes[above]
    return low + (high - low) * (limit_mb - low_mb) // (high_mb - low_mb)


_DEFAULTS = Config()
