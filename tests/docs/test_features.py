"""The page about features has every operator with its parameters, and every setting of events."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.client.declared import EventSettings
from headrace.operators.catalogue import DECLARATIONS, OPERATORS
from headrace.operators.declaration import REQUIRED, Declaration

PAGE = (Path(__file__).parents[2] / "docs" / "features.md").read_text()


def parameters(operator: Declaration) -> set[str]:
    """As the page writes them: with ``=`` and the default where they may be left out."""
    return {
        name if found.default is REQUIRED else f"{name}={_default(found.default)}"
        for name, found in operator.params.items()
        if name != "where"
    }


def _default(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def test_every_operator_is_listed_once_with_its_parameters() -> None:
    section = PAGE[PAGE.index("### Operators\n") : PAGE.index("#### Operators that need the log")]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(name for name, *_ in rows) == sorted(DECLARATIONS)
    assert {name: order for name, _, order in rows} == {name: each.order for name, each in OPERATORS.items()}
    listed = {name: set(re.findall(r"`([a-z_]+(?:=[0-9.]*)?)`", said)) for name, said, _ in rows}
    assert listed == {name: parameters(operator) for name, operator in DECLARATIONS.items()}


def test_every_operator_that_needs_the_log_is_listed_with_its_reason() -> None:
    section = PAGE[PAGE.index("#### Operators that need the log") : PAGE.index("**Memory.**")]
    listed = {
        name: reason
        for names, reason in re.findall(r"^\| (`.*`) \| ([^`|]*) \|$", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
        if name in OPERATORS
    }
    assert listed == {name: each.declaration.needs_log for name, each in OPERATORS.items() if each.order == "log"}


def test_every_setting_of_an_event_is_listed() -> None:
    settings = EventSettings.__annotations__.keys()
    assert {name for name in settings if f"| `{name}` |" not in PAGE} == set()
