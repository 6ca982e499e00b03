"""``headrace serve`` and ``headrace up``: run the server in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.config import ConfigFile, SparkSettings

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.pipeline.runner import Runner


@Parameter(name="*")
@dataclass(frozen=True)
class ServerFlags:
    """Flags that override the environment and the file."""

    host: Annotated[str | None, Parameter(help="Address to bind.")] = None
    port: Annotated[int | None, Parameter(help="Port to bind; 0 takes a free one.")] = None
    data_dir: Annotated[str | None, Parameter(help="Directory of the log.")] = None
    object_store: Annotated[str | None, Parameter(help="URL of the object store.")] = None
    cors_origin: Annotated[
        list[str] | None, Parameter(negative=(), help="A web origin that may call; may be repeated.")
    ] = None
    auto_tune: Annotated[
        int | bool | None, Parameter(negative=(), help="Size caches and queues from the memory, or from so many MB.")
    ] = None
    tls_cert: Annotated[str | None, Parameter(help="Certificate file.")] = None
    tls_key: Annotated[str | None, Parameter(help="Private key file.")] = None
    accept_log_damage: Annotated[
        bool, Parameter(negative=(), help="Give up commits behind damage of the write-ahead log, this once.")
    ] = False

    def settings(self) -> dict[str, object]:
        """The settings of the flags, by their dotted names."""
        memory_mb = self.auto_tune if not isinstance(self.auto_tune, bool) else None
        values = {
            "server.host": self.host,
            "server.port": self.port,
            "server.cors_origins": None if self.cors_origin is None else tuple(self.cors_origin),
            "server.tls_cert": self.tls_cert,
            "server.tls_key": self.tls_key,
            "storage.data_dir": self.data_dir,
            "storage.object_store": self.object_store,
            "memory.auto_tune": None if self.auto_tune is None else self.auto_tune is not False,
            "memory.limit_mb": memory_mb,
        }
        return {name: value for name, value in values.items() if value is not None}


NO_FLAGS = ServerFlags()

FIRST_STEPS = """
Headrace listens on {address} and keeps its log in {data_dir}. Try:

  curl -X PUT  {address}/v1/stream/hello -H 'Content-Type: application/json'
  curl -X POST {address}/v1/stream/hello -H 'Content-Type: application/json' -d '{{"greeting": "hi"}}'
  curl         {address}/v1/stream/hello
"""


def serve(
    *,
    flags: ServerFlags = NO_FLAGS,
    config: ConfigFile = None,
    ready: Annotated[Callable[[str], None] | None, Parameter(parse=False)] = None,
) -> None:
    """Run the server until it is stopped; ``ready`` is called with its address."""
    from headrace.config import explicit_settings, load
    from headrace.engine.runtime.allocators import use_jemalloc_in_arrow

    chosen = load(file=config, flags=flags.settings())
    use_jemalloc_in_arrow()
    from headrace.server import main

    def announce(address: str) -> None:
        _announce(address, chosen.storage.data_dir)
        if ready is not None:
            ready(address)

    main.serve(
        chosen,
        announce,
        explicit=explicit_settings(file=config, flags=flags.settings()),
        accept_log_damage=flags.accept_log_damage,
    )


def up(*, flags: ServerFlags = NO_FLAGS, conf: SparkSettings = None, config: ConfigFile = None) -> None:
    """Run everything on this machine: the server, and the pipeline beside it."""
    from headrace.config import load, spark_settings

    beside = BackgroundPipeline(load(file=config, flags=flags.settings() | spark_settings(conf or ())))
    try:
        serve(flags=flags, config=config, ready=beside.start)
    finally:
        beside.stop()


class BackgroundPipeline:
    """The pipeline of a server in this process; it starts when the server listens, and Spark when work is due."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._runner: Runner | None = None
        self._thread: Thread | None = None

    def start(self, address: str) -> None:
        """Start working for the server at an address."""
        if find_spec("pyspark") is None:
            print(
                "pyspark is not installed, so nothing is indexed ahead: pip install 'headrace[pipeline]'",
                file=sys.stderr,
            )
            return
        from headrace.pipeline.runner import Runner

        key = os.environ.get("HEADRACE_KEY")
        cert_file = self._config.server.tls_cert or None
        self._runner = Runner(address, self._config.pipeline, key=key, ca_file=cert_file, is_pinned=True)
        self._thread = Thread(target=self._runner.run, name="headrace-pipeline", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop it and its Spark driver."""
        if self._runner is not None and self._thread is not None:
            self._runner.stop()
            self._thread.join()


def _announce(address: str, data_dir: str) -> None:
    print(FIRST_STEPS.format(address=address, data_dir=data_dir), file=sys.stderr, flush=True)
