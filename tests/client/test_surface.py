"""What ``import headrace`` offers, and what it leaves alone."""

from __future__ import annotations

import ast
import pydoc
import re
import rlcompleter
import subprocess
import sys

import pytest

import headrace
import headrace.client
from headrace import errors


def test_package_offers_what_the_client_offers() -> None:
    assert headrace.__all__ == sorted([*headrace.client.__all__, "errors"])
    assert headrace.errors is errors
    for name in headrace.client.__all__:
        assert getattr(headrace, name) is getattr(headrace.client, name)


def test_every_public_name_is_listed_and_completed() -> None:
    assert set(headrace.__all__) <= set(dir(headrace))
    assert [name for name in dir(headrace) if name not in headrace.__all__ and not name.startswith("__")] == []
    completer = rlcompleter.Completer({"hr": headrace})
    assert {completer.complete("hr.ev", state) for state in range(2)} == {"hr.event(", "hr.event_type_mix("}


def test_help_begins_with_an_overview_whose_names_exist() -> None:
    text = pydoc.plain(pydoc.render_doc(headrace))
    assert "__getattr__" not in text
    assert all(f"    {name}(" in text for name in ("event", "table", "quantile"))
    overview = text.partition("DESCRIPTION")[2].partition("PACKAGE CONTENTS")[0]
    names = re.findall(r"``hr\.(\w+)``", overview)
    assert {"Client", "App", "event", "table"} <= set(names) <= set(headrace.__all__)


def test_import_loads_no_other_module() -> None:
    code = "import sys; before = set(sys.modules); import headrace; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout)) == {"__future__", "headrace"}


def test_errors_of_the_server_are_at_hand_without_the_client() -> None:
    code = "import sys, headrace; print(headrace.errors.NotFound.code, 'headrace.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["not_found", "False"]


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = headrace.nonsense


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import headrace", ["httpx2", "msgspec", "headrace.client"]),
        ("import headrace; headrace.Client", ["apsw", "starlette", "uvicorn", "headrace.config", "rich"]),
        ("import headrace.cli.main", ["apsw", "starlette", "uvicorn", "httpx2", "headrace.client", "headrace.config"]),
    ],
)
def test_import_loads_no_more_than_it_needs(statement: str, absent: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
