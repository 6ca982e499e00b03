"""Writes the blocking clients from the awaiting ones; with ``--check`` only says whether they are current."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "headrace" / "client"
#: Each module that awaits, and the module that is written from it.
MODULES = {path: CLIENT / path.name for path in sorted((CLIENT / "aio").glob("[!_]*.py"))}
_NOTE = "# Written by tools/blocking_client.py: change aio/{name} and run it.\n"
#: Words of the awaiting client, and what the blocking one has in their place.
_WORDS = (
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\bclient\.aio\b", "client"),
    (r"\b__a(enter|exit|iter)__", r"__\1__"),
    (r"\basyncio\.to_thread\(([\w.]+)(?:, )?", r"\1("),
    (r"\basyncio\b", "time"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\ban ``async with``", "a ``with``"),
    (r"for (\w+) in ([^\n]+):\n +yield \1\n", r"yield from \2\n"),
    (r"\bthat awaits?:", "that blocks:"),
    (r"\bthat await\b", "that block"),
)
_RUFF = ("--fix", "--quiet", "--select", "F401,I001")


def blocking(source: str, path: Path) -> str:
    """The source of a module that awaits without ``async`` and ``await``, as it is written to a path."""
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
    plain = _ruff("check", path, *_RUFF, text=_NOTE.format(name=path.name) + plain)
    return _ruff("format", path, text=plain)


def _ruff(command: str, path: Path, *options: str, text: str) -> str:
    arguments = [sys.executable, "-m", "ruff", command, *options, "--stdin-filename", str(path), "-"]
    return subprocess.run(arguments, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Write the blocking clients, or check them."""
    wanted = {path: blocking(awaiting.read_text(), path) for awaiting, path in MODULES.items()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"{path} is not what aio/{path.name} makes: run tools/blocking_client.py")
        print("" if stale else f"{', '.join(path.name for path in wanted)} are current")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
