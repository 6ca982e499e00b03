"""From a file to answers takes six commands, the start of the server among them, and no JSON is written by hand."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "your-data.md").read_text()
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_COMMANDS = 6


def commands() -> list[str]:
    """What someone types on the page: the start of the server, commands, and programs; the sample file is no step."""
    story = PAGE.partition("\n## How long it takes")[0]
    steps = [(kind, text) for kind, text in FENCE.findall(story) if kind in ("sh", "python")]
    typed = ["headrace serve"]
    for kind, text in steps[1:]:
        typed += [text] if kind == "python" else text.strip().splitlines()
    return typed


def test_the_story_has_six_commands_at_most() -> None:
    assert "`headrace serve`" in PAGE
    assert "python3 - > requests.csv" in FENCE.findall(PAGE)[0][1]
    assert len(commands()) <= MOST_COMMANDS
    for word in ("import", "search", "aggregate", "schema evolve", "to_pandas"):
        assert any(word in command for command in commands()), word


def test_nobody_writes_json_by_hand() -> None:
    assert [command for command in commands() if "{" in command or ".json" in command] == []
