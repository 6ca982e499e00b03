"""From a file to answers takes six commands, the start of the server among them, and no JSON is written by hand.

From there to a training set and customers of two systems takes six more, and one Python file.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "your-data.md").read_text()
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HERE_DOCUMENT = re.compile(r"^cat > (\S+) <<'END'\n.*?^END\n", re.MULTILINE | re.DOTALL)
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


def second_half() -> str:
    return PAGE.partition("\n## From the stream to a training set")[2].partition("\n## What comes next")[0]


def test_the_second_half_has_six_commands_and_one_python_file_at_most() -> None:
    shell = [text for kind, text in FENCE.findall(second_half()) if kind == "sh"]
    files = [name for text in shell for name in HERE_DOCUMENT.findall(text)]
    typed = [line for text in shell for line in HERE_DOCUMENT.sub("", text).splitlines() if line]
    assert len(typed) <= MOST_COMMANDS, typed
    assert [name for name in files if name.endswith(".py")] == ["users.py"]
    assert [kind for kind, _ in FENCE.findall(second_half()) if kind not in ("sh", "output")] == []
    for word in ("register", "python3 users.py", "crm-a.csv", "--from-stream", "--source crm-a", "entity ls"):
        assert any(word in command for command in typed), word
    assert [command for command in typed if "{" in command or ".json " in command] == []
    for word in ('stream="traffic"', "timestamp_field", "training_set", "to_pandas"):
        assert word in second_half(), word
