"""``headrace config show`` and the flags of ``headrace serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cli.serve import ServerFlags
from headrace.config import load

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace


def test_each_setting_says_where_it_came_from(
    headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "other.toml"
    file.write_text('[server]\nhost = "::1"\nport = 1\n')
    monkeypatch.setenv("HEADRACE_SERVER__PORT", "2")
    rows = {row["setting"]: row for row in headrace("config", "show", "--config", str(file)).lines}
    assert rows["server.host"]["value"] == "::1"
    assert rows["server.host"]["source"] == "file"
    assert rows["server.port"]["value"] == 2
    assert rows["server.port"]["source"] == "environment"
    assert rows["storage.data_dir"]["source"] == "default"
    assert all(row["meaning"] for row in rows.values())


def test_settings_of_spark_are_shown_and_secrets_among_them_are_masked(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "spark.toml"
    file.write_text("[pipeline]\nspark.executor.memory = '4g'\nspark.hadoop.fs.s3a.secret.key = 'hush'\n")
    lines = headrace("config", "show", "--config", str(file)).lines
    shown = {row["setting"]: (row["value"], row["source"], row["meaning"]) for row in lines}
    assert shown["pipeline.spark.executor.memory"] == ("4g", "file", "a setting of Spark")
    assert shown["pipeline.spark.hadoop.fs.s3a.secret.key"] == ("*****", "file", "a setting of Spark")


def test_unknown_setting_is_a_usage_error(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[server]\nprot = 1\n")
    done = headrace("config", "show", "--config", str(file))
    assert done.code == 2
    assert "server.port" in done.err
    assert headrace("serve", "--config", str(tmp_path / "absent.toml")).code == 2


def test_settings_that_do_not_go_together_are_not_shown(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LIMITS__BODY_BYTES", "1000000000")
    done = headrace("config", "show")
    assert done.code == 2
    assert done.out == b""
    assert "limits.arriving_bytes" in done.err and "limits.body_bytes" in done.err


@pytest.mark.parametrize(
    ("auto_tune", "expected"), [(None, (False, 0)), (True, (True, 0)), (512, (True, 512)), (False, (False, 0))]
)
def test_auto_tune_may_name_the_memory(auto_tune: int | bool | None, expected: tuple[bool, int]) -> None:
    memory = load(flags=ServerFlags(auto_tune=auto_tune).settings(), environ={}).memory
    assert (memory.auto_tune, memory.limit_mb) == expected


def test_flags_reach_the_configuration() -> None:
    flags = ServerFlags(
        host="::1", port=0, data_dir="d", object_store="file:///o", cors_origin=["a", "b"], tls_cert="c", tls_key="k"
    )
    config = load(flags=flags.settings(), environ={})
    assert config.server.host == "::1"
    assert config.server.port == 0
    assert config.server.cors_origins == ("a", "b")
    assert config.server.tls_cert == "c"
    assert config.server.tls_key == "k"
    assert config.storage.data_dir == "d"
    assert config.storage.object_store == "file:///o"
