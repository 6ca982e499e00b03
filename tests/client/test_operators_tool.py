"""What a tool writes of the declarations of operators is current."""

from __future__ import annotations

import inspect

from tools import operators as tool

import headrace as hr
from headrace.operators.catalogue import DECLARATIONS


def test_functions_of_the_client_are_current() -> None:
    assert tool.functions(tool.FUNCTIONS.read_text()) == tool.FUNCTIONS.read_text()


def test_exports_are_current() -> None:
    assert tool.exports(tool.EXPORTS.read_text()) == tool.EXPORTS.read_text()


def test_the_tables_of_the_documentation_are_current() -> None:
    assert tool.page(tool.FEATURES.read_text()) == tool.FEATURES.read_text()
    assert tool.aggregates(tool.AGGREGATES.read_text()) == tool.AGGREGATES.read_text()


def test_examples_are_calls_that_work() -> None:
    for name, declaration in DECLARATIONS.items():
        text = tool.example(declaration)
        feature = eval(text, {"hr": hr})
        assert feature.op == name
        assert f"``{text}``" in (inspect.getdoc(getattr(hr, name)) or "")
