"""Write golden states of operators: what an earlier commit packed of events, and what it answered.

    python tests/golden/write_operators.py COMMIT PATH

States lie in state files as they were packed, and are read for as long as their feature is declared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TYPES = {"x": "f64", "i": "i64", "s": "str", "b": "bool", "lat": "f64", "lon": "f64"}
NOW_MS = 1_763_200_060_000
GEO = {"lat_field": "lat", "lon_field": "lon"}
WINDOW = {"window": 3_600_000}
#: Parameters that an operator cannot do without.
PARAMS: dict[str, dict[str, Any]] = {
    "n": {"n": 3}, "samples": {"samples": 3}, "k": {"k": 2}, "q": {"q": 0.5}, "max_categories": {"max_categories": 8},
    "expected_n": {"expected_n": 64}, "fpr": {"fpr": 0.001}, "sigma": {"sigma": 1.1}, "half_life": {"half_life": 5_000},
    "window": WINDOW, "baseline_window": {"baseline_window": 3_600_000}, "sub_window": {"sub_window": 2_000},
    "buckets": {"buckets": [0.0, 2.5, 10.0]}, "lat_field": GEO, "lon_field": GEO,
}  # fmt: skip
#: Each event: when it happened, and its row.
EVENTS: list[tuple[int, dict[str, Any]]] = [
    (NOW_MS - 60_000 + 1_700 * at + at % 3, {
        "x": [0.5, -2.25, 1e9, 3.75][at % 4], "i": at * at - 7, "s": f"größe {at % 5}", "b": at % 3 == 0,
        "lat": 10.0 + at, "lon": -20.0 + 2 * at,
    })
    for at in range(24)
]  # fmt: skip
PROGRAM = """
import base64, json, sys
try:
    from headrace.operators.catalogue import DECLARATIONS, make_operator
    from headrace.operators.state_bytes import pack
except ImportError:  # what there was in earlier commits
    from headrace.reduce.features.operators import operator
    try:
        from headrace.reduce.features.state_bytes import pack
    except ImportError:
        from headrace.reduce.features.packing import pack
    from headrace.schema.descriptor.nodes import Feature
    from headrace.schema.descriptor.operators import OPERATORS as DECLARATIONS

    def make_operator(name, params, types):
        return operator(Feature(name, params), types)

given = json.load(sys.stdin)
states = []
for name, described in DECLARATIONS.items():
    parameters = {}
    for parameter, about in described.params.items():
        if parameter == "field":
            parameters["field"] = next(field for field, kind in given["types"].items() if kind in about.types)
        else:
            parameters |= given["params"].get(parameter, {})
    for params in [parameters, {key: value for key, value in parameters.items() if key != "window"}]:
        try:
            reducer = make_operator(name, params, given["types"])
            state = None
            for seq, (at_ms, row) in enumerate(given["events"]):
                state = reducer.fold(state, at_ms, seq, row, True)
            packed, answer = pack(state), reducer.finish(state, given["now_ms"])
        except (KeyError, TypeError):
            continue  # it cannot do without a window
        entry = {"op": name, "params": params, "packed": base64.b64encode(packed).decode(), "answer": answer}
        if entry not in states:
            states.append(entry)
json.dump(states, sys.stdout, indent=1, ensure_ascii=False)
"""


def main(commit: str, path: str) -> None:
    """Write the states of one commit."""
    facts = {"types": TYPES, "params": PARAMS, "events": EVENTS, "now_ms": NOW_MS}
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        subprocess.run(["git", "worktree", "add", "--detach", str(source), commit], check=True)
        try:
            environ = {**os.environ, "PYTHONPATH": str(source / "src")}
            command = [sys.executable, "-c", PROGRAM]
            written = subprocess.run(
                command, env=environ, input=json.dumps(facts), check=True, stdout=subprocess.PIPE, text=True
            )
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(source)], check=True)
    Path(path).write_text(written.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
