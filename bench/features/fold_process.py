"""A process that performs units of the job ``features`` as a task of Spark does, and prints the CPU seconds it took.

``python -m bench.features.fold_process STORE UNITS``: ``UNITS`` is a file with a JSON array of units over the segments
in the directory ``STORE``. Headrace is imported from ``PYTHONPATH``, so that an earlier commit is measured alike.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa


def main() -> int:
    """Perform a few events of every table, then all units, and print what the latter took."""
    store, documents = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    _perform(store, documents["first"])
    began = time.process_time()
    _perform(store, documents["all"])
    print(time.process_time() - began)
    return 0


def _perform(store: Path, documents: list[dict[str, Any]]) -> None:
    packs = [[json.dumps(document).encode() for document in documents]]
    features = importlib.import_module("headrace.pipeline.kernels.features")
    if hasattr(features, "kernel"):
        kernel = features.kernel(packs, store.as_uri())
    else:  # a commit that folds one table at a time
        units = importlib.import_module("headrace.pipeline.kernels.units")
        kernel = units.over(features.perform, packs, store.as_uri())
    batches = kernel(iter([pa.RecordBatch.from_pydict({"pack": [0]})]))
    results = [json.loads(text) for batch in batches for text in batch.column(0).to_pylist()]
    troubles = [result for result in results if "state" not in result]
    if troubles or len(results) != len(documents):
        raise SystemExit(f"units failed: {troubles}")


if __name__ == "__main__":
    sys.exit(main())
