"""The examples of pages and docstrings pass mypy and pyright, in strict mode, where the wheel is installed.

The Python blocks of a page are one program, as where pages are run; so is each Python file that a page writes.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.docs.test_docs import PAGES, ROOT

import headrace
from headrace import testing

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("pyright", "hatchling")),
        reason="the examples are not checked: pyright and hatchling are not installed; run: pip install -e '.[dev]'",
    ),
]

_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WRITTEN_FILE = re.compile(r"^cat > \w+\.py <<'END_OF_FILE'\n(.*?)^END_OF_FILE$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"::\n\n((?:    .*\n|\n)+)")
_INLINE = re.compile(r"Example: ``(.*?)``", re.DOTALL)

#: What pyright reports beyond errors of types, or because Arrow and pandas have none; a page may declare a table anew.
_PYRIGHT = {
    "typeCheckingMode": "strict",
    "reportDuplicateImport": False,
    "reportMissingTypeStubs": False,
    "reportRedeclaration": False,
    "reportUnknownArgumentType": False,
    "reportUnknownMemberType": False,
    "reportUnknownVariableType": False,
    "reportUnusedClass": False,
}
_MYPY = """
[mypy]
strict = true
disable_error_code = no-redef
cache_dir = cache
[mypy-pandas.*,polars.*,pyarrow.*]
ignore_missing_imports = true
"""

#: What the examples of docstrings use.
_DECLARATIONS = """
import headrace as hr
from headrace import testing


class Txn(hr.Event):
    user: str
    amount: float


@hr.table(key="user")
def Spending(txn: Txn) -> hr.Aggregated:
    return txn.agg(n=hr.count(), spent_5m=hr.sum("amount", window="5m"))
"""

#: Each line but the last has a mistake that both checkers must see.
_MISTAKES = """
import headrace as hr
class Txn(hr.Event, dedupe_kye="id"): amount: float
@hr.table(key="user")
def Spending(txn: Txn) -> hr.Aggregated: return txn.agregate(n=hr.count())
@hr.table(key="user")
def Other(txn: Txn) -> hr.Aggregated: return txn.agg(n=3)
hr.App().get(Txn.missing)
hr.App(prot=4437)
print(hr.errors.NoSuchError)
hr.Client().stream("a").append({"n": 1})
"""
_WRONG_LINES = {3, 5, 7, 8, 9, 10}


def blank_but(text: str, pattern: re.Pattern[str]) -> str:
    """What a pattern captures, on the lines on which it stands."""
    lines = [""] * (text.count("\n") + 1)
    for match in pattern.finditer(text):
        first = text.count("\n", 0, match.start(1))
        lines[first : first + match[1].count("\n")] = match[1].splitlines()
    return "\n".join(lines) + "\n"


def programs() -> Iterator[tuple[str, str]]:
    """The programs of the documentation, each with the name of its module."""
    for page in PAGES:
        text, stem = page.read_text(), page.stem.lower()
        if _PYTHON.search(text):
            yield f"page_{stem}", blank_but(text, _PYTHON)
        for number, match in enumerate(_WRITTEN_FILE.finditer(text)):
            yield f"file_{number}_of_{stem}", match[1]
    yield "docstrings", _DECLARATIONS + "\n".join(docstring_functions())
    yield "mistakes", _MISTAKES


def docstring_functions() -> Iterator[str]:
    """A function for each example of a docstring."""
    for name, documented in documented_objects():
        text = inspect.getdoc(documented) or ""
        codes = [
            textwrap.dedent(code) for code in _INDENTED.findall(f"{text}\n") if re.search(r"\b(hr|testing)\.", code)
        ]
        codes += [f"print({code})" for code in _INLINE.findall(text)]
        for number, code in enumerate(codes):
            yield f"def example_{number}_of_{name}() -> None:\n{textwrap.indent(code, '    ')}\n"


def documented_objects() -> Iterator[tuple[str, Any]]:
    """The public names of the package, the public methods of its classes, and its modules for tests."""
    yield "testing", testing
    for module, names in ((headrace, headrace.__all__), (testing, ("app", "replay", "assert_row"))):
        for name in names:
            documented = getattr(module, name)
            yield name, documented
            if inspect.isclass(documented):
                yield from (
                    (f"{name}_{method}", function)
                    for method, function in vars(documented).items()
                    if inspect.isfunction(function) and not method.startswith("_")
                )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory outside the checkout with the programs, and an environment with the wheel."""
    path = tmp_path_factory.mktemp("project")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    venv.create(path / "env", symlinks=True)
    (site,) = (path / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(next((path / "dist").glob("*.whl"))) as wheel:
        wheel.extractall(site)
    # What the wheel depends on is taken from here.
    (site / "dependencies.pth").write_text(f"{Path(msgspec.__file__).parents[1]}\n")
    (path / "mypy.ini").write_text(_MYPY)
    (path / "pyrightconfig.json").write_text(json.dumps(_PYRIGHT))
    for name, text in programs():
        (path / f"{name}.py").write_text(text)
    return path


def run(project: Path, *command: str) -> str:
    environ = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "PYRIGHT_PYTHON_GLOBAL_NODE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, f"{command[0]} did not see the mistakes, or did not run\n{done.stdout}\n{done.stderr}"
    return done.stdout


def mypy_errors(project: Path) -> dict[tuple[str, int], str]:
    files = [path.name for path in sorted(project.glob("*.py"))]
    python = str(project / "env/bin/python")
    found = re.findall(
        r"^(\w+)\.py:(\d+): error: (.*)$",
        run(project, "mypy", "--no-error-summary", "--python-executable", python, *files),
        re.MULTILINE,
    )
    return {(name, int(line)): message for name, line, message in found}


def pyright_errors(project: Path) -> dict[tuple[str, int], str]:
    printed = run(project, "pyright", "--outputjson", "--pythonpath", str(project / "env/bin/python"), str(project))
    found = [problem for problem in json.loads(printed)["generalDiagnostics"] if problem["severity"] == "error"]
    return {(Path(error["file"]).stem, error["range"]["start"]["line"] + 1): error["message"] for error in found}


@pytest.mark.parametrize("errors_of", [mypy_errors, pyright_errors])
def test_every_example_has_the_right_types_and_mistakes_are_seen(project: Path, errors_of: Any) -> None:
    errors = errors_of(project)
    assert {place: message for place, message in errors.items() if place[0] != "mistakes"} == {}
    assert {line for name, line in errors if name == "mistakes"} == _WRONG_LINES


def test_there_are_examples_of_every_kind() -> None:
    names = dict(programs())
    assert {"page_readme", "page_features", "page_sdk", "file_0_of_features"} <= set(names)
    assert "def example_0_of_testing(" in names["docstrings"]
    assert "def example_0_of_Event(" in names["docstrings"]
    assert names["docstrings"].count("print(hr.") > 50


def test_a_project_outside_the_checkout_runs_on_the_wheel(project: Path) -> None:
    code = "import headrace; print(headrace.Client, headrace.__file__)"
    command = [project / "env/bin/python", "-c", code]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    package = Path(done.stdout.split()[-1]).parent
    assert package.is_relative_to(project)
    assert (package / "py.typed").is_file()
