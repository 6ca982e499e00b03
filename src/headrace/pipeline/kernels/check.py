"""Whether an executor has what kernels import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Kernel = Callable[[Iterator[Any]], Iterator[Any]]


def missing(modules: Sequence[str]) -> Kernel:
    """A kernel that yields the modules which cannot be imported where it runs."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from importlib.util import find_spec

        for _ in batches:
            absent = [name for name in modules if find_spec(name) is None]
            if "pyarrow" not in absent:
                import pyarrow as pa

                yield pa.RecordBatch.from_pydict({"module": pa.array(absent, pa.string())})

    return run
