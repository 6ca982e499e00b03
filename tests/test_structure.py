"""The tool that keeps the structure of the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import structure
from tools.structure import find_problems, read_modules


def problems(directory: Path, **files: str) -> dict[str, list[str]]:
    """What breaks a rule in a package of these modules, whose names have two underscores where there is a dot."""
    (directory / "headrace").mkdir(exist_ok=True)
    (directory / "headrace" / "__init__.py").touch()
    for name, text in files.items():
        path = (directory / "headrace" / name.replace("__", "/")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {rule: lines for rule, lines in find_problems(read_modules(directory / "headrace")).items() if lines}


def test_a_class_name_is_unique_within_a_top_package(tmp_path: Path) -> None:
    repeated = "class Segment:\n    pass\n\nclass _Private:\n    pass\n"
    engine = {"engine__log": repeated, "engine__search__hits": repeated}
    assert problems(tmp_path, storage__rows=repeated, **engine) == {
        "repeated class name": ["Segment: headrace.engine.log, headrace.engine.search.hits"]
    }


def test_a_gerund_names_a_module_only_where_it_is_excused(tmp_path: Path) -> None:
    modules = {"decoding": "", "engine__sealing": "", "engine__seal": ""}
    assert problems(tmp_path, **modules) == {"gerund as module name": ["headrace.engine.sealing"]}


@pytest.mark.parametrize(
    "text",
    [
        "found = 1\n",
        "for found in ():\n    pass\n",
        "def read(*, found: int) -> None: ...\n",
        "read = lambda found: 1\n",
        "rows = [1 for found in ()]\n",
        "if (found := 1):\n    pass\n",
    ],
)
def test_a_variable_or_a_parameter_with_a_vague_name_is_noticed(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, config=text)["vague name"] == ["headrace.config:1: found"]


def test_a_vague_word_may_be_the_name_of_what_is_used(tmp_path: Path) -> None:
    assert problems(tmp_path, config="rows = [read(found=1), pages.found]\n") == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def most_rows(): ...\n", "most_rows"),
        ("class TableLives: ...\n", "TableLives"),
        ("page.is_whole = True\n", "is_whole"),
        ("_MOST = 1\n", "_MOST"),
        ("def read(*, patience_s: float): ...\n", "patience_s"),
    ],
)
def test_a_name_with_a_word_of_the_dialect_is_noticed(tmp_path: Path, text: str, name: str) -> None:
    assert problems(tmp_path, config=text) == {"dialect in a name": [f"headrace.config:1: {name}"]}


def test_an_ordinary_name_may_have_such_a_word(tmp_path: Path) -> None:
    text = "half_life_ms = almost = 1\n\nclass RequestLookup:\n    def look_up(self): ...\n"
    assert problems(tmp_path, config=text) == {}


def test_a_riddle_in_a_docstring_is_noticed(tmp_path: Path) -> None:
    text = 'def settle():\n    """What becomes\n    of units, for whoever asks."""\n'
    assert problems(tmp_path, config=text) == {
        "dialect in a docstring": ["headrace.config:1: What becomes of, whoever"]
    }


def test_a_module_or_a_function_with_too_many_lines_is_noticed(tmp_path: Path) -> None:
    module = tmp_path / "wide.py"
    module.write_text("def wide():\n" + "    pass\n" * 60 + "rows = 1\n" * 500)
    assert list(structure.find_oversized([module])) == [
        f"{module}: 561 lines, at most 500",
        f"{module}:1: wide has 61 lines, at most 60",
    ]


LOCAL = "def start():\n{}    from headrace import config{}\n    import json\n"


@pytest.mark.parametrize(
    ("above", "beside"),
    [
        ("    # Loaded only when it is needed.\n", ""),
        ("", "  # loaded only when it is needed"),
        ("    # Both load pyarrow.\n    from headrace import errors\n", ""),
    ],
)
def test_a_local_import_has_a_reason_where_a_comment_is_near(tmp_path: Path, above: str, beside: str) -> None:
    files = {"config": "", "errors": "", "engine__log": LOCAL.format(above, beside)}
    assert "local import without a reason" not in problems(tmp_path, **files)


@pytest.mark.parametrize("above", ["", "    # A comment.\n    rows = 1\n", "    import re  # noqa: F401\n"])
def test_a_local_import_without_a_comment_is_noticed(tmp_path: Path, above: str) -> None:
    line = 2 + above.count("\n")
    text = LOCAL.format(above, "  # type: ignore[x]")
    wanted = [f"headrace.engine.log:{line}: headrace.config"]
    noticed = problems(tmp_path, config="", engine__log=text)
    assert noticed == {"local import": wanted, "local import without a reason": wanted, **small("config", "engine.log")}


def small(name: str, importer: str) -> dict[str, list[str]]:
    return {"small module": [f"headrace.{name} (0 lines, only headrace.{importer})"]}


def test_the_command_line_may_import_where_it_needs(tmp_path: Path) -> None:
    assert problems(tmp_path, config="", cli__main=LOCAL.format("", "")) == small("config", "cli.main")


def test_a_small_module_has_two_importers(tmp_path: Path) -> None:
    importing = "from headrace.types import Clock\n"
    assert problems(tmp_path, types="", config=importing) == small("types", "config")
    assert problems(tmp_path, errors=importing) == {}


def test_a_module_of_eighty_lines_may_have_one_importer(tmp_path: Path) -> None:
    files = {"config": "import headrace.types\n", "types": "\n" * structure.SMALL_LINES}
    assert problems(tmp_path, **files) == {}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    monkeypatch.setattr(structure, "SOURCE", tmp_path / "headrace")
    monkeypatch.setattr(structure, "GERUNDS", {})
    (tmp_path / "headrace").mkdir()
    return tmp_path / "headrace"


def test_more_than_the_ceiling_fails_and_is_listed(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "config.py").write_text("eyes = 1\n")
    monkeypatch.setitem(structure.CEILINGS, "vague name", 1)
    assert structure.main() == 0
    assert "headrace.config:1" not in capsys.readouterr().out
    monkeypatch.setitem(structure.CEILINGS, "vague name", 0)
    assert structure.main() == 1
    assert "vague name: headrace.config:1: eyes\nvague name: 1, at most 0" in capsys.readouterr().out


def test_less_than_the_ceiling_asks_for_a_lower_one(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(structure.CEILINGS, "small module", 3)
    assert structure.main() == 0
    assert "small module: 0, at most 3; lower its ceiling in tools/structure.py to 0" in capsys.readouterr().out


def test_an_excuse_for_a_module_that_is_gone_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(structure, "GERUNDS", {"headrace.sealing": "it is gone"})
    assert structure.main() == 0
    assert "headrace.sealing is gone: remove its excuse from tools/structure.py" in capsys.readouterr().out
