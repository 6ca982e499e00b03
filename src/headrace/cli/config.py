"""``headrace config``: every setting, its value, and where that came from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headrace.cli import output
from headrace.cli.output import AsJson

if TYPE_CHECKING:
    from headrace.config import StorageConfig

DataDir = Annotated[str | None, Parameter(help="Directory of the log.")]
SparkSettings = Annotated[
    list[str] | None,
    Parameter(name="--conf", negative=(), help="A setting of Spark, such as spark.executor.memory=4g; repeatable."),
]
ConfigFile = Annotated[Path | None, Parameter(name="--config", help="A TOML file; default ./headrace.toml.")]

app = App(
    name="config",
    help="Show the configuration.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace config show",
        "HEADRACE_SERVER__PORT=8080 headrace config show",
    ),
)


@app.command
def show(*, config: ConfigFile = None, json: AsJson = False) -> None:
    """Print each setting with its value and its source: flag, environment, file or default."""
    from headrace.config import SPARK_MEANING, fields, resolve, shown_value

    meanings = {name: description for name, (_, _, description) in fields().items()}
    rows = (
        {
            "setting": name,
            "value": shown_value(name, value),
            "source": source,
            "meaning": meanings.get(name, SPARK_MEANING),
        }
        for name, (value, source) in resolve(file=config).items()
    )
    output.show_all(rows, ("setting", "value", "source", "meaning"), as_json=json)


def load_storage(data_dir: str | None, config: Path | None, object_store: str | None = None) -> StorageConfig:
    """The storage settings of a command."""
    from headrace.config import load

    flags = {"storage.data_dir": data_dir, "storage.object_store": object_store}
    return load(file=config, flags={name: value for name, value in flags.items() if value is not None}).storage
