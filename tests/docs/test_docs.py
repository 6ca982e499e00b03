"""The documentation tells the truth: its blocks run, its tables are complete, its names and links exist.

The first word after the fence says what a block is:

=================  ====================================================================================
``sh``             runs in bash; ``sh fails`` must fail; ``sh background`` runs on until the page ends
``python``         runs; the blocks of a page share their names
``output``         what the block before printed, ``...`` stands for anything; ``output background`` is what the
                   background has printed so far
``toml``, ``json``  settings that load; a document that parses
``text``           is not run
=================  ====================================================================================

Each page has a server of its own, and all of them together one more, on which they are followed in the order in which
the index lists them. Where a page says ``http://127.0.0.1:4437``, that server is meant. A page may say in a comment
which settings its server has: ``<!-- server: storage__seal_age_s=1 -->``.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tools import structure

import headrace
from headrace import config, errors
from headrace.cli.main import COMMANDS, Command
from headrace.pipeline.session import NEEDED
from headrace.reduce.work_units import JOBS
from headrace.server.routes.route_table import openapi_document
from support.polling import wait_until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
ADDRESS = "http://127.0.0.1:4437"
#: How long a block may take; one that starts Spark takes a minute on a busy machine.
BLOCK_S = 240
KINDS = {"sh", "sh fails", "sh background", "python", "output", "output background", "toml", "json", "text"}
_FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SERVER = re.compile(r"^<!-- server: (.*) -->$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PACKAGES = (
    "cli|client|server|pipeline|engine|profiles|storage|extract|reduce|query|schema|format|config|types|errors"
    "|deadline|decoding|testing"
)
_DOTTED = re.compile(rf"`((?:{_PACKAGES})\.(?!py`)[A-Za-z_.]+)`")


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    text: str
    place: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    lines = [text.count("\n", 0, match.start()) + 1 for match in _FENCE.finditer(text)]
    found = zip(_FENCE.finditer(text), lines, strict=True)
    return [Block(match[1].strip(), match[2], f"{page.name}:{line}") for match, line in found]


class Reader:
    """Someone who follows a page with the server before them."""

    def __init__(self, url: str, home: Path, data_dir: Path) -> None:
        self._url = url
        self._home = home
        self._printed = ""
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._background: list[subprocess.Popen[str]] = []
        self._noise = home / "background.out"
        # A refused request must fail its block.
        (home / ".curlrc").write_text("fail-with-body\nsilent\nmax-time = 60\n")
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "HEADRACE_URL": url,
            "HEADRACE_STORAGE__DATA_DIR": str(data_dir),
            "NO_COLOR": "1",
        }

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        kind, text = block.kind, block.text.replace(ADDRESS, self._url)
        match kind:
            case "sh" | "sh fails":
                self._run(text, block.place, succeeds=kind == "sh")
            case "sh background":
                self._start(text)
            case "python":
                self._exec(text, block.place)
            case "output":
                _compare(block, self._said(self._printed))
            case "output background":
                self._compare_background(block)
            case "toml":
                path = self._home / "headrace.toml"
                path.write_text(text)
                config.load(file=path, environ={})
            case "json":
                json.loads(text)

    def leave(self) -> None:
        """End what runs in the background."""
        for process in self._background:
            process.kill()
            process.wait()

    def _run(self, text: str, place: str, *, succeeds: bool) -> None:
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(
            command, env=self._environ, cwd=self._home, capture_output=True, text=True, timeout=BLOCK_S, check=False
        )
        assert (done.returncode == 0) == succeeds, f"{place}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        self._printed = done.stdout if succeeds else done.stdout + done.stderr

    def _start(self, text: str) -> None:
        with self._noise.open("w") as noise:
            command = ["bash", "-c", f"exec {text}"]
            self._background.append(
                subprocess.Popen(command, env=self._environ, cwd=self._home, stdout=noise, text=True)
            )
        # It has begun when it has said something.
        wait_until(lambda: self._noise.stat().st_size > 0, 10)

    def _exec(self, text: str, place: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, place, "exec"), self._names)
        self._printed = printed.getvalue()

    def _compare_background(self, block: Block) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: _agrees(block.text, self._said(self._noise.read_text())), 10)
        _compare(block, self._said(self._noise.read_text()))

    def _said(self, text: str) -> str:
        return text.replace(self._url, ADDRESS).replace("\r\n", "\n")


def _agrees(wanted: str, got: str) -> bool:
    return doctest.OutputChecker().check_output(
        wanted.strip() + "\n", got.strip() + "\n", doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )


def _compare(block: Block, got: str) -> None:
    assert _agrees(block.text, got), f"{block.place} promises\n{block.text}\nbut this was printed\n{got}"


def _runs(page: Path) -> bool:
    return any(block.kind.startswith(("sh", "python", "toml")) for block in blocks(page))


#: Pages that start Spark.
_ON_SPARK = {"spark.md": [pytest.mark.spark, pytest.mark.timeout(300)]}


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name, marks=_ON_SPARK.get(page.name, [])) for page in PAGES if _runs(page)]
)
def test_every_block_of_a_page_does_what_the_page_says(page: Path, tmp_path: Path, start_server: Any) -> None:
    server = start_server(**_settings(page))
    _follow(page, server, tmp_path)


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_pages_can_be_followed_in_the_order_of_the_index_on_one_server(tmp_path: Path, start_server: Any) -> None:
    listed = [DOCS / link for link in _LINK.findall((DOCS / "index.md").read_text()) if (DOCS / link).is_file()]
    pages = [ROOT / "README.md", *dict.fromkeys(listed)]
    server = start_server(**{name: value for page in pages for name, value in _settings(page).items()})
    for page in pages:
        _follow(page, server, tmp_path)


def _settings(page: Path) -> dict[str, str]:
    """The settings that the server of a page has."""
    return dict(setting.split("=") for found in _SERVER.findall(page.read_text()) for setting in found.split())


def _follow(page: Path, server: Any, home: Path) -> None:
    reader = Reader(server.url, home, server.data_dir)
    try:
        for block in blocks(page):
            reader.follow(block)
    finally:
        reader.leave()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert page.read_text().count("\n```") == 2 * len(blocks(page)), "a fence is indented or left open"
    assert {block.place: block.kind for block in blocks(page) if block.kind not in KINDS} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text()):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in _anchors(goal), f"{page.name}: {link}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text())) <= targets


def test_every_page_is_in_the_index() -> None:
    linked = set(_LINK.findall((DOCS / "index.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= linked


def test_every_package_is_on_the_map() -> None:
    page = (DOCS / "architecture.md").read_text()
    table = page.partition("## Map of the source")[2].partition("\n\n## ")[0]
    packages = [found.name for found in pkgutil.walk_packages(headrace.__path__, "headrace.") if found.ispkg]
    # What is below profiles and storage is one thing each, and needs no row.
    large = [name for name in packages if not re.match(r"headrace\.(profiles\.|storage\.migrations)", name)]
    assert [name for name in large if f"`{name.removeprefix('headrace.')}`" not in table] == []


def test_every_top_package_is_where_things_live() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things live")[2].partition("\n\n## ")[0]
    paths = [path for path in (ROOT / "src/headrace").iterdir() if not path.name.startswith(("_", "py.typed"))]
    names = [f"{path.name}/" if path.is_dir() else path.name for path in paths]
    assert sorted(name for name in names if not re.search(rf"`(src/headrace/)?{re.escape(name)}`", table)) == []


def checked_layers(contract: str) -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return next(entry["layers"] for entry in contracts if entry["name"] == contract)


def drawn_layers(heading: str) -> list[str]:
    """The layers of the first drawing after some words of the architecture, without what is said of them."""
    page = (DOCS / "architecture.md").read_text().partition(heading)[2]
    lines = page.partition("```text\n")[2].partition("```")[0].splitlines()
    steps = [step.strip() for line in lines for step in re.split(r"└▶|─▶", line)]
    return [re.split(r" {2,}", step)[0] for step in steps if step]


def test_the_layers_are_those_that_are_checked() -> None:
    layers = [layer.replace("headrace.", "") for layer in checked_layers("layers point down")]
    assert drawn_layers("## Layers") == layers
    assert f"**Imports point down:** {' → '.join(layers)}." in " ".join((ROOT / "CONTRIBUTING.md").read_text().split())


def test_the_layers_of_the_engine_are_those_that_are_checked() -> None:
    layers = checked_layers("layers of the engine point down")
    drawn = drawn_layers("Inside `engine` the layers are:")
    # Modules of one layer that may import each other are drawn by the name of one of them.
    assert len(drawn) == len(layers)
    assert all(name == layer or name in layer.split(" : ") for name, layer in zip(drawn, layers, strict=True))
    rules = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    assert f"Inside the engine: {' → '.join(drawn)}." in rules


def test_the_caps_of_sizes_are_those_that_are_checked() -> None:
    rules = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    assert f"The caps are {structure.MODULE_LINES} and {structure.FUNCTION_LINES}, and they are checked." in rules
    assert f"or {structure.SMALL_LINES} lines" in rules


def test_every_table_of_the_database_is_listed() -> None:
    page = (DOCS / "architecture.md").read_text().partition("## What lies on disk")[2]
    files = (ROOT / "src/headrace/storage/migrations").glob("*.sql")
    tables = {name for file in files for name in re.findall(r"CREATE TABLE (\w+)", file.read_text())}
    assert sorted(name for name in tables if f"`{name}`" not in page) == []


def test_every_job_and_what_executors_need_is_listed() -> None:
    page = (DOCS / "pipeline.md").read_text()
    table = page.partition("| job | makes |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(JOBS)
    needed = page.partition("They need\nPython with ")[2].partition(";")[0]
    assert set(re.findall(r"`(\w+)`", needed)) == set(NEEDED)


def test_every_name_in_the_code_exists() -> None:
    names = {name for page in PAGES for name in _DOTTED.findall(page.read_text())} - config.fields().keys()
    assert "engine.log.writer.Writer.submit" in names
    for name in names:
        _resolve(f"headrace.{name}")


def _resolve(name: str) -> Any:
    found, path = headrace, "headrace"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(found, part):
            importlib.import_module(path)
        found = getattr(found, part)
    return found


def test_every_file_in_the_code_exists() -> None:
    paths = {path for page in PAGES for path in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", page.read_text())}
    tops = [ROOT, ROOT / "src", ROOT / "src/headrace"]
    assert paths
    assert sorted(path for path in paths if not any((top / path).exists() for top in tops)) == []


def test_every_top_level_command_is_in_its_page() -> None:
    page = (DOCS / "cli.md").read_text()
    names = [command.name for commands in COMMANDS.values() for command in commands]
    assert [name for name in names if not re.search(rf"^## .*\b{name}\b|`headrace {name}\b", page, re.MULTILINE)] == []


@pytest.mark.parametrize(
    "command", [command for group in COMMANDS.values() for command in group if command.home.endswith("app")]
)
def test_every_command_is_in_its_page(command: Command) -> None:
    page, noun = (DOCS / "cli.md").read_text(), command.name
    module, _, app = command.home.partition(":")
    verbs = [verb for verb in getattr(importlib.import_module(f"headrace.cli.{module}"), app) if verb[0] != "-"]
    assert verbs
    assert [verb for verb in verbs if not re.search(rf"`(headrace )?{noun} {verb}\b", page)] == []


def setting_rows() -> Iterator[str]:
    """The rows of the settings table, as the page must have them."""
    for name, (kind, default, description) in config.fields().items():
        yield f"| `{name}` | {_kind(kind)} | {_default(default)} | {description} |"


def _kind(kind: Any) -> str:
    names = {str: "text", int: "integer", float: "number", bool: "true or false"}
    return names.get(kind, "list of text")


def _default(value: Any) -> str:
    if value in ("", ()):
        return "empty"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def test_every_setting_is_listed_with_its_default_and_description() -> None:
    rows = re.findall(r"^\| `[a-z_]+\.[a-z_]+` \|.*$", (DOCS / "configuration.md").read_text(), re.MULTILINE)
    assert rows == list(setting_rows())


def every_error() -> list[type[errors.HeadraceError]]:
    """The whole tree, once every module that adds to it is loaded."""
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(set(errors.every_error()), key=lambda kind: (kind.status, kind.code, kind.__name__))


def _status(kind: type[errors.HeadraceError]) -> str:
    elsewhere = ("headrace.client", "headrace.cli", "headrace.config", "headrace.pipeline", "headrace.storage.database")
    return "none" if kind.__module__.startswith(elsewhere) else str(kind.status)


def test_every_error_is_listed_with_its_status() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\d+|none) \| `(\w+)` \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    real = {(kind.code, kind.__name__): _status(kind) for kind in every_error()}
    assert {(code, name) for code, _, name in listed} == set(real)
    assert [(code, real[code, name], name) for code, _, name in listed] == listed


def test_every_route_parameter_and_status_is_in_the_protocol() -> None:
    page = (DOCS / "protocol.md").read_text()
    for path, item in openapi_document()["paths"].items():
        for method in item.keys() - {"parameters"}:
            assert f"`{method.upper()} {path}`" in page, f"{method} {path}"
            for parameter in item[method]["parameters"]:
                assert f"`{parameter['name']}`" in page, f"{method} {path}: {parameter['name']}"
            for status, answer in item[method]["responses"].items():
                assert f"| {status} |" in page, f"{method} {path}: {status}"
                for header in answer.get("headers", {}):
                    assert f"`{header}`" in page, f"{method} {path}: {header}"


def test_every_metric_is_listed(server: Any) -> None:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        scraped = set(re.findall(r"^# HELP (headrace_\w+)", answer.read().decode(), re.MULTILINE))
    listed = set(re.findall(r"`(headrace_\w+)`", (DOCS / "operations.md").read_text()))
    assert scraped <= listed
    # Not every system tells how much memory a process has.
    assert {name for name in listed - scraped if not name.startswith("headrace_memory_")} == set()
