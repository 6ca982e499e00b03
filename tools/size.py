"""Fails where a module exceeds 500 lines or a function 60, and names what comes near."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MODULE_LINES, FUNCTION_LINES = 500, 60


def oversized(path: Path) -> list[str]:
    """Complaints about one file."""
    text = path.read_text()
    complaints = []
    if (lines := text.count("\n")) > MODULE_LINES:
        complaints.append(f"{path}: {lines} lines, at most {MODULE_LINES}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                complaints.append(f"{path}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES}")
    return complaints


def main() -> int:
    """Check src, bench, tools and tests."""
    files = sorted(path for top in ("src", "bench", "tools", "tests") for path in Path(top).rglob("*.py"))
    complaints = [line for path in files if "node_modules" not in path.parts for line in oversized(path)]
    print("\n".join(complaints) or f"{len(files)} files within {MODULE_LINES} lines, functions within {FUNCTION_LINES}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
