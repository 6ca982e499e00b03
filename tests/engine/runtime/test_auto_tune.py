from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import Config, ConfigError, LimitsConfig, MiB, ServerConfig, StorageConfig, fields
from headrace.engine.runtime import auto_tune

_LIMITS = st.integers(256, 20_000)
_TUNED = [
    "storage.cache_bytes",
    "storage.decoded_bytes",
    "limits.queue_bytes",
    "limits.batch_bytes",
    "limits.queue_requests",
    "limits.tail_columns_bytes",
    "limits.companion_bytes",
    "limits.duckdb_bytes",
    "limits.aggregate_bytes",
    "limits.arriving_bytes",
    "limits.unsent_bytes",
    "features.tail_bytes",
    "features.row_bytes",
    "limits.cached_streams",
    "limits.waiters",
    "limits.concurrent_reads",
    "limits.concurrent_searches",
    "limits.concurrent_index_work",
    "server.max_connections",
]


def _value(config: Config, name: str) -> int:
    section, field = name.split(".")
    value: int = getattr(getattr(config, section), field)
    return value


@given(_LIMITS)
def test_the_expected_memory_stays_within_the_limit(limit_mb: int) -> None:
    expected = auto_tune.expected_bytes(auto_tune.tune(limit_mb, Config())) + auto_tune.code_bytes(limit_mb)
    assert expected <= limit_mb * MiB


@given(_LIMITS, _LIMITS)
def test_more_memory_never_makes_anything_smaller(one: int, other: int) -> None:
    small, large = (auto_tune.tune(limit_mb, Config()) for limit_mb in sorted((one, other)))
    assert all(_value(small, name) <= _value(large, name) for name in _TUNED)


@given(_LIMITS)
def test_only_sizes_change(limit_mb: int) -> None:
    tuned, plain = auto_tune.tune(limit_mb, Config()), Config()
    untouched = [name for name in fields() if name not in _TUNED]
    assert all(_value(tuned, name) == _value(plain, name) for name in untouched)
    assert all(_value(tuned, name) >= 1 for name in _TUNED)


@given(_LIMITS)
def test_a_setting_that_the_user_changed_wins(limit_mb: int) -> None:
    given_config = Config(
        storage=StorageConfig(cache_bytes=3 * MiB),
        limits=LimitsConfig(concurrent_searches=17),
        server=ServerConfig(max_connections=12),
    )
    tuned = auto_tune.tune(limit_mb, given_config)
    assert tuned.storage.cache_bytes == 3 * MiB
    assert tuned.limits.concurrent_searches == 17
    assert tuned.server.max_connections == 12
    assert tuned.limits.queue_bytes == auto_tune.tune(limit_mb, Config()).limits.queue_bytes


def test_a_setting_that_the_user_named_wins_even_with_its_default() -> None:
    tuned = auto_tune.tune(8192, Config(), {"storage.cache_bytes"})
    assert tuned.storage.cache_bytes == Config().storage.cache_bytes
    assert tuned.limits.cached_streams > Config().limits.cached_streams


def test_sizes_lie_between_those_of_the_presets_around_the_limit() -> None:
    low, middle, high = (auto_tune.tune(limit_mb, Config()).limits.cached_streams for limit_mb in (512, 768, 1024))
    assert low < middle < high


@pytest.mark.parametrize(("limit_mb", "preset"), [(256, 256), (511, 256), (512, 512), (5000, 4096), (10**6, 8192)])
def test_the_preset_is_the_largest_that_fits(limit_mb: int, preset: int) -> None:
    assert auto_tune.preset_mb(limit_mb) == preset


def test_a_body_of_the_longest_length_can_always_arrive() -> None:
    tuned = auto_tune.tune(256, Config())
    assert tuned.limits.arriving_bytes >= tuned.limits.body_bytes


def test_a_body_that_is_too_long_for_the_memory_is_refused_unless_room_is_given_to_it() -> None:
    longer = Config(limits=LimitsConfig(body_bytes=20 * MiB))
    with pytest.raises(ConfigError, match=r"limits.arriving_bytes is .* and limits.body_bytes is"):
        auto_tune.tune(256, longer)
    assert auto_tune.tune(1024, longer).limits.body_bytes == 20 * MiB
    assert auto_tune.tune(256, longer, {"limits.arriving_bytes"}).limits.body_bytes == 20 * MiB


def test_beyond_the_largest_preset_nothing_grows() -> None:
    assert msgspec.structs.asdict(auto_tune.tune(8192, Config())) == msgspec.structs.asdict(
        auto_tune.tune(10**6, Config())
    )


def test_what_segments_take_is_expected() -> None:
    config = Config(storage=StorageConfig(decoded_bytes=5 * MiB))
    parts = auto_tune.expected_parts(config)
    assert parts["decoded_segments"] == 5 * MiB
    assert parts["segment_footers"] == 5 * MiB


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="256 MB"):
        auto_tune.tune(255, Config())
