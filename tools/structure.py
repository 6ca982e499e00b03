"""Fails where the structure of the source gets worse: vague names, riddles, hidden imports, modules of a wrong size.

Each rule has a ceiling, the number of findings that it tolerates. A ceiling may only be lowered. ``--list`` prints
every finding, ``--list RULE`` those of a rule.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headrace"
#: Directories whose modules and functions have a greatest size.
SIZED = ("src", "bench", "tools", "tests")
MODULE_LINES, FUNCTION_LINES = 500, 60

#: How many findings of a rule are tolerated. Lower a number when it can be lowered, and never raise one.
CEILINGS = {
    "repeated class name": 0,
    "gerund as module name": 0,
    "vague name": 6,
    "dialect in a name": 14,
    "dialect in a docstring": 2,
    "local import": 16,
    "local import without a reason": 0,
    "small module": 3,
    "too many lines": 0,
}
#: Modules whose name ends like a gerund, and why they may.
GERUNDS = {
    "headrace.decoding": "an ordinary noun for what it does, as in the standard library's encodings",
    "headrace.testing": "where Python packages keep what tests of their users need",
    "headrace.engine.subscriptions.keyring": "a keyring is a thing",
}
#: Names of variables and parameters that do not say what they hold.
VAGUE = frozenset({
    "found", "one", "place", "given", "told", "asked", "wish", "saying", "known", "look", "share", "ground", "stretch",
    "standing", "aside", "odd", "reach", "lives", "births", "eyes", "hands",
})  # fmt: skip
#: Words that say nothing to a stranger, as parts of the names of functions, classes, attributes and variables.
DIALECT = frozenset({
    "asked", "birth", "births", "born", "fate", "found", "given", "happens", "hear", "heard", "hears", "known",
    "life", "lives", "look", "looks", "most", "normalised", "odd", "patience", "patient", "place", "reach", "routed",
    "said", "saying", "storing", "stretch", "tell", "tells", "told", "whole", "wish", "wishes", "within",
})  # fmt: skip
#: Ordinary names that have such a word.
_ORDINARY = re.compile(
    "half_life|NotFound|not_found|look_?up|most_recent|most_common|Lookup|HalfLife|MostRecent"
    "|as_known_at|AS_KNOWN_AT|AsKnownAt"
)
#: Phrases of the same kind, in docstrings.
RIDDLES = re.compile(
    r"\b(what (becomes|became|came|comes) of|com(es|e) to (be|that|this|it)|(is|are|was|were|be) told|told apart"
    r"|tells? [^.]{0,25}apart|of under|how things stand|stands? on|speaks? for|at hand|lives|born|births?|hears?"
    r"|whoever|wish(es)?)\b",
    re.IGNORECASE,
)
SMALL_LINES = 80
#: The command line imports what a command needs when it runs, so that it starts quickly.
_LAZY = "headrace.cli"
_COMMENT = re.compile(r"#(?!\s*(noqa|type:))")
_IMPORT = re.compile(r"\s*(from|import) ")


class Module(NamedTuple):
    """A module or a package of the source."""

    name: str
    path: Path
    text: str
    tree: ast.Module


class Import(NamedTuple):
    """A statement that imports our own modules."""

    importer: Module
    line: int
    targets: frozenset[str]
    is_local: bool


def read_modules(source: Path) -> list[Module]:
    """The modules of a package and of those in it."""
    modules = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        text = path.read_text()
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules.append(Module(name, path, text, ast.parse(text)))
    return modules


def find_problems(modules: list[Module]) -> dict[str, list[str]]:
    """What breaks each rule, as lines that name the place."""
    imports = [entry for module in modules for entry in _imports(module, {other.name for other in modules})]
    local_imports = [entry for entry in imports if entry.is_local and not _is_below(entry.importer.name, _LAZY)]
    return {
        "repeated class name": list(_repeated_classes(modules)),
        "gerund as module name": [
            module.name for module in modules if module.name.endswith("ing") and module.name not in GERUNDS
        ],
        "vague name": [line for module in modules for line in _vague_names(module)],
        "dialect in a name": [line for module in modules for line in _dialect_names(module)],
        "dialect in a docstring": [line for module in modules for line in _riddles(module)],
        "local import": [_describe(entry) for entry in local_imports],
        "local import without a reason": [_describe(entry) for entry in local_imports if not _has_comment(entry)],
        "small module": list(_small_modules(modules, imports)),
    }


def _repeated_classes(modules: list[Module]) -> Iterator[str]:
    """Public classes whose name another class of the same top package has."""
    homes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in modules:
        top_package = ".".join(module.name.split(".")[:2])
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[top_package, node.name].append(module.name)
    for (_, name), names in sorted(homes.items()):
        if len(names) > 1:
            yield f"{name}: {', '.join(names)}"


def _vague_names(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            yield f"{module.name}:{node.lineno}: {node.id}"
        elif isinstance(node, ast.arg) and node.arg in VAGUE:
            yield f"{module.name}:{node.lineno}: {node.arg}"


def _dialect_names(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        words = re.findall("[A-Z]?[a-z]+|[A-Z]+", _ORDINARY.sub("", name))
        if not DIALECT.isdisjoint(word.lower() for word in words):
            yield f"{module.name}:{node.lineno}: {name}"


def _riddles(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            phrases = [match[0] for match in RIDDLES.finditer(" ".join((ast.get_docstring(node) or "").split()))]
            if phrases:
                yield f"{module.name}:{getattr(node, 'lineno', 1)}: {', '.join(phrases)}"


def _imports(module: Module, names: set[str]) -> Iterator[Import]:
    """The imports of our own modules, by statement."""
    waiting: list[tuple[ast.AST, bool]] = [(module.tree, False)]
    while waiting:
        node, is_local = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            targets = frozenset(_targets(node, names)) - {module.name}
            if targets:
                yield Import(module, node.lineno, targets, is_local)
        is_local = is_local or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        waiting += [(child, is_local) for child in ast.iter_child_nodes(node)]


def _targets(node: ast.Import | ast.ImportFrom, names: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in names)
    elif node.module in names:  # no import of ours is relative: ruff sees to it
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            yield submodule if submodule in names else str(node.module)


def _has_comment(entry: Import) -> bool:
    """Whether a comment stands beside an import, or above the imports that it belongs to."""
    lines = entry.importer.text.splitlines()
    number = entry.line - 1
    while number > 0 and not _COMMENT.search(lines[number]) and _IMPORT.match(lines[number - 1]):
        number -= 1
    above = lines[number - 1].lstrip() if number else ""
    return bool(_COMMENT.search(lines[number]) or _COMMENT.match(above))


def _small_modules(modules: list[Module], imports: list[Import]) -> Iterator[str]:
    """Modules that only one other imports, and that are too short to be an idea of their own."""
    importers: dict[str, set[str]] = defaultdict(set)
    for entry in imports:
        for target in entry.targets:
            importers[target].add(entry.importer.name)
    for module in modules:
        lines = module.text.count("\n")
        if module.path.name != "__init__.py" and lines < SMALL_LINES and len(importers[module.name]) == 1:
            yield f"{module.name} ({lines} lines, only {next(iter(importers[module.name]))})"


def find_oversized(paths: Iterable[Path]) -> Iterator[str]:
    """Modules and functions with too many lines."""
    for path in paths:
        text = path.read_text()
        if (lines := text.count("\n")) > MODULE_LINES:
            yield f"{path}: {lines} lines, at most {MODULE_LINES}"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    yield f"{path}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES}"


def _describe(entry: Import) -> str:
    return f"{entry.importer.name}:{entry.line}: {', '.join(sorted(entry.targets))}"


def _is_below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def main() -> int:
    """Check the source against the ceilings."""
    modules = read_modules(SOURCE)
    files = sorted(path for name in SIZED for path in (ROOT / name).rglob("*.py") if "node_modules" not in path.parts)
    problems = {**find_problems(modules), "too many lines": list(find_oversized(files))}
    listed = sys.argv[2:] or list(problems) if "--list" in sys.argv else []
    for name in sorted(GERUNDS.keys() - {module.name for module in modules}):
        print(f"{name} is gone: remove its excuse from tools/structure.py")
    failed = False
    for rule, lines in problems.items():
        ceiling = CEILINGS[rule]
        exceeds = len(lines) > ceiling
        failed |= exceeds
        if exceeds or rule in listed:
            print("\n".join(f"{rule}: {line}" for line in lines))
        advice = f"; lower its ceiling in tools/structure.py to {len(lines)}" if len(lines) < ceiling else ""
        print(f"{rule}: {len(lines)}, at most {ceiling}{advice}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
