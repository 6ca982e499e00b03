"""What ``import headrace`` offers, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace
import headrace.client


def test_package_offers_what_the_client_offers() -> None:
    assert headrace.__all__ == headrace.client.__all__ == sorted(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name) is getattr(headrace.client, name)


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
