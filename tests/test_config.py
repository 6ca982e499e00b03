from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace import config
from headrace.config import Config, ConfigError, load, resolve


def test_without_any_source_everything_has_its_default() -> None:
    assert load(environ={}) == Config()


def test_a_flag_beats_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text("[server]\nport = 1\nhost = 'a'\nlong_poll_s = 2\n")
    environ = {"HEADRACE_SERVER__PORT": "2", "HEADRACE_SERVER__HOST": "b"}
    found = resolve(file=file, environ=environ, flags={"server.port": 3})
    assert found["server.port"] == (3, "flag")
    assert found["server.host"] == ("b", "environment")
    assert found["server.long_poll_s"] == (2.0, "file")
    assert found["server.tls_key"] == ("", "default")


def test_the_given_settings_are_those_that_are_not_left_to_the_defaults() -> None:
    assert config.explicit_settings(environ={"HEADRACE_MEMORY__LIMIT_MB": "0"}) == {"memory.limit_mb"}


def test_text_from_the_environment_is_converted_to_the_type_of_the_setting() -> None:
    environ = {
        "HEADRACE_SERVER__CORS_ORIGINS": "https://a.example, https://b.example,",
        "HEADRACE_MEMORY__AUTO_TUNE": "true",
        "HEADRACE_SERVER__IDLE_TIMEOUT_S": "1.5",
    }
    found = load(environ=environ)
    assert found.server.cors_origins == ("https://a.example", "https://b.example")
    assert found.memory.auto_tune is True
    assert found.server.idle_timeout_s == 1.5


def test_variables_of_the_command_line_and_of_others_are_no_settings() -> None:
    assert load(environ={"HEADRACE_URL": "x", "HEADRACE_KEY": "y", "PATH": "z"}) == Config()


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (
            {"HEADRACE_SERVER__PROT": "1"},
            "unknown setting 'server.prot' in the environment; did you mean 'server.port'",
        ),
        ({"HEADRACE_NOSECTION": "1"}, "unknown setting 'HEADRACE_NOSECTION' in the environment"),
        (
            {"HEADRACE_SERVER__PORT": "many"},
            "server.port: Expected `int`, got `str`; 'many' comes from the environment",
        ),
        ({"HEADRACE_SERVER__PORT": "65536"}, "server.port: Expected `int` <= 65535"),
        ({"HEADRACE_SERVER__PORT": "-1"}, "server.port: Expected `int` >= 0"),
        ({"HEADRACE_LIMITS__BODY_BYTES": "0"}, "limits.body_bytes: Expected `int` >= 1"),
        ({"HEADRACE_STORAGE__BACKLOG_BYTES": "0"}, "storage.backlog_bytes: Expected `int` >= 1"),
        ({"HEADRACE_LIMITS__ARRIVING_BYTES": "1000000"}, "limits.arriving_bytes: Expected `int` >= 4194304"),
        (
            {"HEADRACE_LIMITS__ARRIVING_BYTES": "5000000"},
            "limits.arriving_bytes is 5000000 and limits.body_bytes is 10485760",
        ),
        ({"HEADRACE_SERVER__IDLE_TIMEOUT_S": "0"}, "server.idle_timeout_s: Expected `float` > 0"),
        ({"HEADRACE_SERVER__LONG_POLL_S": "nan"}, "server.long_poll_s"),
        ({"HEADRACE_SERVER__LONG_POLL_S": "inf"}, "server.long_poll_s"),
    ],
)
def test_a_setting_that_is_unknown_or_does_not_fit_is_an_error(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(environ=environ)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nport = 'x'\n", "server.port"),
        ("[serve]\nport = 1\n", "unknown setting 'serve.port' in the file; did you mean 'server.port'"),
        ("port = 1\n", "outside a section"),
        ("[nope]\n", "unknown section 'nope' in the file$"),
        ("[serve]\n", "unknown section 'serve' in the file; did you mean 'server'"),
        ("[server\n", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load(file=file, environ={})


def test_a_section_may_be_empty(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text("[server]\n")
    assert load(file=file, environ={}) == Config()


def test_a_file_that_was_named_must_exist_and_the_usual_one_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environ={}) == Config()
    with pytest.raises(ConfigError, match="there is no file"):
        load(file=tmp_path / "missing.toml", environ={})
    (tmp_path / "headrace.toml").write_text("[server]\nport = 7\n")
    assert load(environ={}).server.port == 7


def test_every_setting_is_described_and_has_a_default_of_its_type() -> None:
    for name, (_, default, description) in config.fields().items():
        assert description, name
        assert resolve(flags={name: default}, environ={})[name] == (default, "flag")


@pytest.mark.parametrize(
    "text",
    [
        "[pipeline]\nspark.executor.memory = '4g'\nspark.speculation = true\nspark.task.cpus = 2",
        "[pipeline]\n'spark.executor.memory' = '4g'\n'spark.speculation' = true\n'spark.task.cpus' = '2'",
        "[pipeline.spark]\nexecutor.memory = '4g'\n'spark.speculation' = true\n'task.cpus' = 2",
    ],
)
def test_a_setting_of_spark_passes_through_however_the_file_writes_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "headrace.toml").write_text(text)
    expected = {"spark.executor.memory": "4g", "spark.speculation": "true", "spark.task.cpus": "2"}
    assert load(file=tmp_path / "headrace.toml", environ={}).pipeline.spark == expected


def test_a_setting_of_spark_comes_from_the_environment_and_a_flag_beats_it() -> None:
    environ = {
        "HEADRACE_PIPELINE__SPARK__EXECUTOR__MEMORY": "2g",
        "HEADRACE_PIPELINE__SPARK__driver__maxResultSize": "3g",
        "HEADRACE_PIPELINE__spark.executorEnv.MY_NAME": "x",
    }
    flags = config.spark_settings(["spark.executor.memory=4g", "spark.driver.extraJavaOptions=-Da=b"])
    resolved = resolve(environ=environ, flags=flags)
    assert resolved["pipeline.spark.executor.memory"] == ("4g", "flag")
    assert resolved["pipeline.spark.driver.maxResultSize"] == ("3g", "environment")
    assert load(environ=environ, flags=flags).pipeline.spark == {
        "spark.executor.memory": "4g",
        "spark.driver.maxResultSize": "3g",
        "spark.executorEnv.MY_NAME": "x",
        "spark.driver.extraJavaOptions": "-Da=b",
    }


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("spark.master", "local", "cannot be set: set pipeline.master"),
        ("spark.driver.memory", "8g", "cannot be set: set pipeline.memory"),
        ("spark.sql.session.timeZone", "CET", "times of derived data are in UTC"),
        ("spark.pyspark.python", "python3", "PYSPARK_PYTHON"),
        ("spark.a b", "x", "no name of a setting of Spark"),
        ("spark", "x", "unknown setting 'pipeline.spark' in the flag"),
        ("sparks.x", "x", "unknown setting 'pipeline.sparks.x' in the flag"),
        ("spark.jars", ["a.jar"], "a setting of Spark is a text, a number, true or false"),
    ],
)
def test_a_setting_of_spark_that_headrace_needs_or_nobody_can_take_is_refused(
    setting: str, value: object, says: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(environ={}, flags={f"pipeline.{setting}": value})


@pytest.mark.parametrize("pair", ["spark.executor.memory", "executor.memory=4g", "=x", ""])
def test_a_flag_that_is_no_setting_of_spark_is_refused(pair: str) -> None:
    with pytest.raises(ConfigError, match="--conf takes a setting of Spark"):
        config.spark_settings([pair])
