"""Writes the blocking client from the awaiting one; with ``--check`` only says whether it is current."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "headrace" / "client"
AWAITING, BLOCKING = CLIENT / "aio.py", CLIENT / "client.py"
_NOTE = "# Written by tools/blocking_client.py: change aio.py and run it.\n"
#: Words of the awaiting client, and what the blocking one has in their place.
_WORDS = (
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b__a(enter|exit)__", r"__\1__"),
    (r"\basyncio\b", "time"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\ban ``async with``", "a ``with``"),
    (r"for (\w+) in ([^\n]+):\n +yield \1\n", r"yield from \2\n"),
    (r"\bthat awaits?:", "that blocks:"),
    (r"\bthat await\b", "that block"),
)
_RUFF = ("--fix", "--quiet", "--select", "F401,I001")


def blocking(source: str) -> str:
    """The source of the awaiting client without ``async`` and ``await``."""
    lines = source.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    text, cuts = b"".join(lines), set[tuple[int, int]]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith):
            start = starts[node.lineno - 1] + node.col_offset
            cuts.add((start, start + len(b"async ")))
        elif isinstance(node, ast.Await):
            start, value = starts[node.lineno - 1] + node.col_offset, node.value
            cuts.add((start, starts[value.lineno - 1] + value.col_offset))
            end = starts[(value.end_lineno or 0) - 1] + (value.end_col_offset or 0)
            if text[end : end + 2] == b")." and text[start - 1 : start] == b"(":
                cuts |= {(start - 1, start), (end, end + 1)}
        elif isinstance(node, ast.comprehension) and node.is_async:
            raise ValueError("an asynchronous comprehension has no blocking form here")
    for start, end in sorted(cuts, reverse=True):
        text = text[:start] + text[end:]
    plain = text.decode()
    for pattern, replacement in _WORDS:
        plain = re.sub(pattern, replacement, plain)
    plain = _ruff("check", *_RUFF, text=_NOTE + plain)
    return _ruff("format", text=plain)


def _ruff(*arguments: str, text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(BLOCKING), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Write the blocking client, or check it."""
    wanted = blocking(AWAITING.read_text())
    if sys.argv[1:] == ["--check"]:
        if BLOCKING.read_text() != wanted:
            print(f"{BLOCKING} is not what {AWAITING} makes: run tools/blocking_client.py")
            return 1
        print(f"{BLOCKING.name} is current")
        return 0
    BLOCKING.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
