"""Writes what is made of the declarations of operators; with ``--check`` only says whether it is current.

These are the functions of the client, its exports of them, and the tables of the documentation. The client may not
import operators, which need packages that it installs without.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from headrace.operators.catalogue import DECLARATIONS, MEASURES, OPERATORS
from headrace.operators.declaration import EIGHT_NUMBERS, REQUIRED, SECTIONS, Declaration, Parameter
from headrace.query.search import OWN_KINDS

ROOT = Path(__file__).parents[1]
FUNCTIONS = ROOT / "src" / "headrace" / "client" / "operators.py"
EXPORTS = ROOT / "src" / "headrace" / "client" / "__init__.py"
FEATURES, AGGREGATES = ROOT / "docs" / "features.md", ROOT / "docs" / "aggregates.md"

_NOTE = "# Written by tools/operators.py from here on: change the class of an operator and run it.\n"
_TYPES = {
    "field": "str",
    "duration": "Span",
    "integer": "int",
    "number": "float",
    "edges": "Sequence[float]",
    "categories": "Sequence[str]",
    "where": "Where",
}
#: The shorter of two windows comes after the longer one.
_LAST = "sub_window"
_WIDTH = 112


def functions(head: str) -> str:
    """The module of the client's functions, given what is written by hand."""
    text = "\n\n".join(map(_function, DECLARATIONS.values()))
    return _format(f"{head.partition(_NOTE)[0]}{_NOTE}\n\n{text}\n", FUNCTIONS)


def _function(declaration: Declaration) -> str:
    signature = ", ".join(_signature(declaration))
    arguments = ", ".join(f"{key}={_python_name(key, found)}" for key, found in declaration.params.items())
    called = f'_feature("{declaration.name}", {arguments})'
    return f"def {declaration.name}({signature}) -> Feature:\n{_docstring(declaration)}\n    return {called}\n"


def _signature(declaration: Declaration) -> list[str]:
    """Parameters that must be given, then those that may be given in their place, then those by keyword."""
    required, optional, keywords = list[str](), list[str](), list[str]()
    for key, parameter in declaration.params.items():
        name, kind = _python_name(key, parameter), _TYPES[parameter.kind]
        if parameter.position == "required" or parameter.default is REQUIRED:
            required.append(f"{name}: {kind}")
        else:
            written = f"{name}: {kind if kind == 'Where' else f'{kind} | None'} = None"
            (optional if parameter.position == "optional" else keywords).append(written)
    required.sort(key=lambda written: written.startswith(_LAST))
    return [*required, *optional, *(["*", *keywords] if keywords else [])]


def _docstring(declaration: Declaration) -> str:
    sentence = declaration.doc[:1].upper() + declaration.doc[1:].replace("`", "``")
    lines, shown = textwrap.wrap(f"{sentence}.", _WIDTH - 3), f"Example: ``{example(declaration)}``"
    if len(lines) == 1 and len(lines[0]) + len(shown) < _WIDTH - 6:
        return f'    """{lines[0]} {shown}"""'
    lines += ["", shown]
    return "\n".join([f'    """{lines[0]}', *(f"    {line}".rstrip() for line in lines[1:]), '    """'])


def example(declaration: Declaration) -> str:
    """A call of the client's function with what must be given, and a window where there may be one."""
    values, keywords = list[str](), list[str]()
    for key, parameter in sorted(declaration.params.items(), key=lambda item: item[0] == _LAST):
        if parameter.position or parameter.default is REQUIRED:
            values.append(parameter.example)
        elif key == "window":
            keywords.append(f"{key}={parameter.example}")
    return f"hr.{declaration.name}({', '.join([*values, *keywords])})"


def _python_name(key: str, parameter: Parameter) -> str:
    return parameter.client_name or key


def exports(text: str) -> str:
    """A module that exports the functions, with all that there are."""
    block = re.search(r"from headrace\.client\.operators import \((.*?)\)", text, re.DOTALL)
    exported = re.search(r"__all__ = \[(.*?)\]", text, re.DOTALL)
    assert block is not None and exported is not None
    imported = _names(block[1]) | DECLARATIONS.keys()
    text = text.replace(block[1], ", ".join(sorted(imported)))
    every = sorted(_names(exported[1].replace('"', "")) | DECLARATIONS.keys())
    return _format(text.replace(exported[1], ", ".join(f'"{name}"' for name in every)), EXPORTS)


def _names(listed: str) -> set[str]:
    return {name.strip() for name in listed.split(",") if name.strip()}


def page(text: str) -> str:
    """The page about features with its tables."""
    sections = [f"{_title(section)}\n\n{_section(section)}" for section in SECTIONS]
    text = _between(text, "operators", "\n\n".join(sections))
    text = _between(text, "operators that need the log", _needing_log())
    return _between(text, "memory of operators", _memory())


def aggregates(text: str) -> str:
    """The page about aggregates with its tables of measures."""
    kinds = [f"| `{measure.kind}` | {measure.measures} | {measure.answers} |" for measure in OWN_KINDS]
    text = _between(text, "measures", "\n".join(["| kind | of | answers |", "|---|---|---|", *kinds]))
    rows = [
        _row(DECLARATIONS[name], operator.order, hidden=("where", "window"))
        for name, operator in OPERATORS.items()
        if name in MEASURES
    ]
    table = "\n".join(["| kind | members | order | answers |", "|---|---|---|---|", *rows])
    return _between(text, "operators as measures", table)


def _title(section: str) -> str:
    name, comma, rest = section.partition(", in ")
    return f"**{name}**{comma}{rest}"


def _section(section: str) -> str:
    declarations = [declaration for declaration in DECLARATIONS.values() if declaration.section == section]
    rows = [_row(declaration, OPERATORS[declaration.name].order) for declaration in declarations]
    return "\n".join(["| operator | parameters | order | result |", "|---|---|---|---|", *rows])


def _row(declaration: Declaration, order: str, hidden: Sequence[str] = ("where",)) -> str:
    cells = [_cell(key, parameter) for key, parameter in declaration.params.items() if key not in hidden]
    return f"| `{declaration.name}` | {', '.join(cells)}{' ' if cells else ''}| `{order}` | {declaration.doc} |"


def _cell(key: str, parameter: Parameter) -> str:
    default = parameter.default
    shown = "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
    written = f"`{key}`" if default is REQUIRED else f"`{key}={shown}`"
    return f"{written} {parameter.note}" if parameter.note else written


def _needing_log() -> str:
    by_reason: dict[str, list[str]] = {}
    for declaration in DECLARATIONS.values():
        if declaration.needs_log:
            by_reason.setdefault(declaration.needs_log, []).append(f"`{declaration.name}`")
    rows = [f"| {', '.join(names)} | {reason} |" for reason, names in by_reason.items()]
    return "\n".join(["| operators | why they need the log |", "|---|---|", *rows])


def _memory() -> str:
    by_memory: dict[str, list[str]] = {}
    for declaration in DECLARATIONS.values():
        by_memory.setdefault(declaration.memory, []).append(f"`{declaration.name}`")
    by_memory.pop(EIGHT_NUMBERS)
    rows = [f"| {', '.join(names)} | {memory} |" for memory, names in by_memory.items()]
    return "\n".join(["| operators | hold at most |", "|---|---|", *rows, f"| all others | {EIGHT_NUMBERS} |"])


def _between(text: str, what: str, table: str) -> str:
    begin, end = f"<!-- {what}: written by tools/operators.py -->\n", f"<!-- end of {what} -->\n"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{table}\n\n{end}{rest.partition(end)[2]}"


def _format(text: str, path: Path) -> str:
    return _ruff("format", path, _ruff("check", path, text, "--fix", "--quiet", "--select", "I,RUF022"))


def _ruff(command: str, path: Path, text: str, *options: str) -> str:
    arguments = [sys.executable, "-m", "ruff", command, *options, "--stdin-filename", str(path), "-"]
    return subprocess.run(arguments, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Write everything, or check it."""
    writers = {FUNCTIONS: functions, EXPORTS: exports, FEATURES: page, AGGREGATES: aggregates}
    wanted = {path: write(path.read_text()) for path, write in writers.items()}
    stale = [path for path, text in wanted.items() if path.read_text() != text]
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"{path} is not what operators declare: run tools/operators.py")
        print("" if stale else "operators.py, features.md and aggregates.md are current")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
