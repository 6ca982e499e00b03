"""The public protocol suite, whole, and public clients, against a real server process with default settings."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SUITE, CLIENTS = "conformance.test.mjs", "clients.test.mjs"
SUITE_SIZE = 338
CLIENT_TESTS = 3


@pytest.mark.conformance
@pytest.mark.timeout(300)
def test_every_test_of_the_public_suite_passes(
    server_url: str, vitest: Path, node_env: dict[str, str], tmp_path: Path
) -> None:
    chosen = os.environ.get("HEADRACE_CONFORMANCE_FILTER")
    counts = _counts(_run(SUITE, server_url, vitest, node_env, tmp_path / "report.json", chosen))
    if chosen:
        assert counts["Passed"] > 0, f"no test matches {chosen!r}"
    else:
        assert counts == {"Total": SUITE_SIZE, "Passed": SUITE_SIZE, "Failed": 0}


@pytest.mark.conformance
@pytest.mark.timeout(300)
def test_the_public_client_and_the_yjs_binding_find_what_they_expect(
    server_url: str, vitest: Path, node_env: dict[str, str], tmp_path: Path
) -> None:
    counts = _counts(_run(CLIENTS, server_url, vitest, node_env, tmp_path / "report.json"))
    assert counts == {"Total": CLIENT_TESTS, "Passed": CLIENT_TESTS, "Failed": 0}


def _run(
    file: str, url: str, vitest: Path, env: dict[str, str], report: Path, chosen: str | None = None
) -> dict[str, Any]:
    command = ["node", str(vitest), "run", file, *(("-t", chosen) if chosen else ())]
    suite_env = {**env, "HEADRACE_URL": url, "HEADRACE_CONFORMANCE_REPORT": str(report)}
    done = subprocess.run(command, cwd=HERE, env=suite_env, capture_output=True, text=True, timeout=240, check=False)
    assert report.exists(), f"vitest wrote no report:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    loaded: dict[str, Any] = json.loads(report.read_text())
    return loaded


def _counts(report: dict[str, Any]) -> dict[str, int]:
    """How many tests there were, after a failure of those that failed."""
    failures = _failures(report)
    if failures:
        pytest.fail(f"{len(failures)} tests failed:\n\n" + "\n\n".join(failures), pytrace=False)
    return {key: report[f"num{key}Tests"] for key in ("Total", "Passed", "Failed")}


def _failures(report: dict[str, Any]) -> list[str]:
    found = [file["message"] for file in report["testResults"] if file.get("message")]
    for file in report["testResults"]:
        for test in file["assertionResults"]:
            if test["status"] == "failed":
                messages = "\n".join(test["failureMessages"])
                found.append(f"{test['fullName'].strip()}\n{messages[:1500]}")
    return found
