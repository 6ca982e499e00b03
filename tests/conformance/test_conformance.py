"""The public protocol suite, whole, against a real server process with default settings."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SUITE_SIZE = 338


@pytest.mark.conformance
@pytest.mark.timeout(300)
def test_every_test_of_the_public_suite_passes(
    server_url: str, vitest: Path, node_env: dict[str, str], tmp_path: Path
) -> None:
    chosen = os.environ.get("HEADRACE_CONFORMANCE_FILTER")
    report = _run_suite(server_url, vitest, node_env, tmp_path / "report.json", chosen)
    failures = _failures(report)
    if failures:
        pytest.fail(f"{len(failures)} tests failed:\n\n" + "\n\n".join(failures), pytrace=False)
    counts = {key: report[f"num{key}Tests"] for key in ("Total", "Passed", "Failed")}
    if chosen:
        assert counts["Passed"] > 0, f"no test matches {chosen!r}"
    else:
        assert counts == {"Total": SUITE_SIZE, "Passed": SUITE_SIZE, "Failed": 0}


def _run_suite(url: str, vitest: Path, env: dict[str, str], report: Path, chosen: str | None) -> dict[str, Any]:
    command = ["node", str(vitest), "run", *(("-t", chosen) if chosen else ())]
    suite_env = {**env, "HEADRACE_URL": url, "HEADRACE_CONFORMANCE_REPORT": str(report)}
    done = subprocess.run(command, cwd=HERE, env=suite_env, capture_output=True, text=True, timeout=240, check=False)
    assert report.exists(), f"vitest wrote no report:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    loaded: dict[str, Any] = json.loads(report.read_text())
    return loaded


def _failures(report: dict[str, Any]) -> list[str]:
    found = [file["message"] for file in report["testResults"] if file.get("message")]
    for file in report["testResults"]:
        for test in file["assertionResults"]:
            if test["status"] == "failed":
                messages = "\n".join(test["failureMessages"])
                found.append(f"{test['fullName'].strip()}\n{messages[:1500]}")
    return found
