"""``headrace operator``: what features and rollups can be computed with, as operators declare it themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from headrace.cli import output
from headrace.cli.output import AsJson, UsageError

if TYPE_CHECKING:
    from headrace.operators.declaration import Declaration
    from headrace.operators.declaration import Parameter as Declared

app = App(
    name="operator",
    help="List what features and rollups can compute.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace operator ls", "headrace operator ls --rollup", "headrace operator show mean"
    ),
)

Name = Annotated[str, Parameter(help="The operator, or another name of it.")]
Rollup = Annotated[bool, Parameter(negative=(), help="Only operators that a rollup can have as measures.")]


@app.command(name="ls")
def list_operators(*, rollup: Rollup = False, json: AsJson = False) -> None:
    """List operators: their parameters, and what they answer."""
    from headrace.operators.catalogue import DECLARATIONS, MEASURES

    chosen = [declaration for name, declaration in DECLARATIONS.items() if name in MEASURES or not rollup]
    documents = map(_document, chosen)
    output.show_all(documents, ("operator", "parameters", "answers"), as_json=json, format_row=_row)


@app.command
def show(operator: Name, /, *, json: AsJson = False) -> None:
    """Show an operator with the types, the bounds and the defaults of its parameters."""
    from headrace.operators.catalogue import ALIASES, DECLARATIONS

    declaration = DECLARATIONS.get(ALIASES.get(operator, operator))
    if declaration is None:
        raise UsageError(f"there is no operator {operator!r}; `headrace operator ls` lists them")
    document = _document(declaration)
    if not output.wants_table(json):
        print(output.encode(document))
        return
    parameters = document.pop("parameters")
    output.show(document, as_json=False)
    print()
    output.show_all(parameters, ("parameter", "takes", "default"), as_json=False)


def _document(declaration: Declaration) -> dict[str, Any]:
    from headrace.operators.catalogue import MEASURES, OPERATORS
    from headrace.operators.declaration import REQUIRED

    return {
        "operator": declaration.name,
        "section": declaration.section,
        "parameters": [
            {
                "parameter": name,
                "takes": _describe(parameter),
                "default": "required" if parameter.default is REQUIRED else parameter.default,
            }
            for name, parameter in declaration.params.items()
        ],
        "answers": declaration.doc,
        "result": declaration.result,
        "order": OPERATORS[declaration.name].order,
        "needs_log": declaration.needs_log,
        "memory": declaration.memory,
        "rollup": declaration.name in MEASURES,
        "aliases": list(declaration.aliases),
    }


def _describe(parameter: Declared) -> str:
    """What a parameter takes, with its bounds."""
    match parameter.kind:
        case "field":
            return f"a field of type {' or '.join(parameter.types)}"
        case "where":
            return "a condition"
        case "duration":
            return "a duration such as 500ms, 30m or 7d"
        case "integer":
            return f"a whole number {parameter.bounds()}"
        case "number":
            return f"a number {parameter.bounds()}"
        case "edges":
            return "rising numbers"
    return "values"


def _row(document: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the table: parameters by name, in brackets where they may be left out."""
    names = [
        each["parameter"] if each["default"] == "required" else f"[{each['parameter']}]"
        for each in document["parameters"]
    ]
    return {**document, "parameters": " ".join(names)}
