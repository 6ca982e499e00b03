"""Whether an executor has what kernels import, and reaches the object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Kernel = Callable[[Iterator[Any]], Iterator[Any]]

_ABSENT = "segments/absent"


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


def store_failure(store: str) -> Kernel:
    """A kernel that yields why the object store cannot be used where it runs, and nothing where it can."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from headrace.errors import HeadraceError
        from headrace.pipeline.kernels.units import opened
        from headrace.storage.objects import ObjectMissing

        for _ in batches:
            try:
                opened(store).head(_ABSENT)
            except ObjectMissing:
                continue
            except HeadraceError as reason:
                yield pa.RecordBatch.from_pydict({"reason": pa.array([reason.message], pa.string())})

    return run
