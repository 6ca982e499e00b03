"""The same story on every kind of Spark: executors in this process, in others, behind Spark Connect, on an S3 API."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from headrace.config import PipelineConfig
from headrace.errors import Unavailable
from headrace.pipeline.driver import Driver, DriverConfig
from headrace.pipeline.work import Work
from support import s3
from support.spark_stories import SETTINGS, Story, companions, pipeline

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def told(server: ServerProcess) -> Story:
    """Two streams whose segments are published."""
    story = Story(server.url)
    story.append("first", 330)
    story.append("second", 170)
    story.published()
    return story


def check_done(story: Story, server: ServerProcess) -> None:
    """Everything is described, much of it by companions of companions, and every answer is right."""
    story.check()
    story.check_covered()
    found = companions(server.data_dir)
    for stream, listed in found.items():
        assert [one.first_seq for one in listed] == [0, *(one.end_seq for one in listed[:-1])], stream
        assert max(one.level for one in listed) > 0, stream
    assert len(found) == 2
    assert not status(server)["due"]


def status(server: ServerProcess) -> dict[str, Any]:
    with closing(Work(server.url)) as work:
        return work.status()


def run(server: ServerProcess, *flags: str, environ: Mapping[str, str] | None = None) -> None:
    process = pipeline(server.url, *flags, environ=environ)
    try:
        _, said = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, said


def without_java(directory: Path) -> dict[str, str]:
    """The environment of a machine that has no Java: where it was found, everything else still is."""
    directory.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).glob("*") if (Path(place) / "java").exists() else ():
            if command.name != "java" and not (directory / command.name).exists():
                (directory / command.name).symlink_to(command)
    places = [place for place in os.environ["PATH"].split(os.pathsep) if not (Path(place) / "java").exists()]
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return environ | {"PATH": os.pathsep.join([str(directory), *places])}


def test_executors_in_this_process(spark: SparkSession, start_server: StartServer, tmp_path: Path) -> None:
    assert spark is not None, "the driver finds this session"
    server = start_server(**SETTINGS)
    story = told(server)
    story.check()
    config = PipelineConfig(master="local[2]", tasks=4, lease_units=8)
    Driver(DriverConfig(server.url, None, None, config, once=True), tmp_path).run()
    check_done(story, server)
    # What comes later is work again, and merged with what was there.
    story.append("second", 160)
    story.published()
    Driver(DriverConfig(server.url, None, None, config, once=True), tmp_path).run()
    story.check()
    story.check_covered()


def test_executors_in_other_processes(start_server: StartServer) -> None:
    server = start_server(**SETTINGS)
    story = told(server)
    run(server, "--master", "local-cluster[2,1,1024]")
    check_done(story, server)


def test_spark_connect(start_server: StartServer) -> None:
    server = start_server(**SETTINGS)
    story = told(server)
    run(server, "--remote", "local[2]")
    check_done(story, server)


def test_a_store_behind_an_s3_api_and_a_machine_without_java(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3.service() as backend:
        bucket = s3.bucket(backend)
        try:
            for name, value in bucket.environ.items():
                monkeypatch.setenv(name, value)
            server = start_server(**SETTINGS, storage__object_store=bucket.url)
            story = told(server)
            environ = without_java(tmp_path / "bin")
            assert shutil.which("java", path=environ["PATH"]) is None
            run(server, "--master", "local[2]", environ=environ)
            check_done(story, server)
            assert any(method == "PUT" and "/companions/" in path for method, path in bucket.seen)
        finally:
            bucket.close()


def test_a_store_that_executors_cannot_see_is_refused(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(**SETTINGS)
    told(server)
    process = pipeline(server.url, "--master", "spark://nowhere:7077")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "executors elsewhere cannot see a store in a directory of the server" in said
    config = PipelineConfig(remote="sc://nowhere:15002")
    with pytest.raises(Unavailable) as refusal:
        Driver(DriverConfig(server.url, None, None, config, once=True), tmp_path).run()
    assert refusal.value.facts["reason"] == "hidden_store"
    assert not status(server)["leases"], "what was leased was given back"
