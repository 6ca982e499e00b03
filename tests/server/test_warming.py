"""What is imported where it is used is loaded before the first request needs it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.engine.object_caches import MODULES

ROOT = Path(headrace.__file__).parent
#: They serve requests; of the others, Spark and the command line are no business of a server.
PACKAGES = ("engine", "extract", "format", "profiles", "query", "reduce", "schema", "server", "storage")
#: Needed by workers, at the start, or where a log is damaged.
ELSEWHERE = {"pyspark.sql", "uvloop", "headrace.format.sqlite_wal"}


def imported_late() -> Iterator[str]:
    """The modules that functions of the server import."""
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Import):
                        yield from (alias.name for alias in node.names)
                    elif isinstance(node, ast.ImportFrom) and node.module is not None:
                        inner = [f"{node.module}.{alias.name}" for alias in node.names]
                        modules = [name for name in inner if _is_module(name)]
                        yield from modules or [node.module]


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split(".")[1:])
    return name.startswith("headrace.") and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_server_loads_everything_that_requests_import_once_it_is_ready(tmp_path: Path) -> None:
    log = tmp_path / "imports"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environ |= {"HEADRACE_SERVER__PORT": "0", "HEADRACE_STORAGE__DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, "-v", "-m", "headrace.server"]
    with log.open("w") as file, subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=file) as server:
        try:
            assert server.stdout is not None and server.stdout.readline()
            missing = _missing(log)
            until = time.monotonic() + 240
            while missing and time.monotonic() < until:
                time.sleep(0.1)
                missing = _missing(log)
        finally:
            server.terminate()
    assert not missing, "add them to headrace.engine.object_caches"


def _missing(log: Path) -> set[str]:
    loaded = set(re.findall(r"^import '([\w.]+)'", log.read_text(), re.MULTILINE))
    return {*imported_late(), *MODULES} - ELSEWHERE - loaded
