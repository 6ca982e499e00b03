"""Runs the test tiers one after another, on both cores where that is quicker, and says where the time went."""

from __future__ import annotations

import os
import subprocess
import sys
import time

SLOW = ("conformance", "crash", "spark", "e2e")
#: More processes than cores: much of the time of a test that has a server is spent on waiting.
TOGETHER = ["-n3", "--dist=worksteal"]
TIERS = (
    ("unit and property", [f"-m not {' and not '.join(SLOW)}", *TOGETHER]),
    ("conformance", ["-m conformance"]),
    ("crash", ["-m crash", "-n2", "--dist=worksteal"]),
    ("spark", ["-m spark"]),
    ("e2e", ["-m e2e"]),
)
NOTHING_COLLECTED = 5


def main(arguments: list[str]) -> int:
    """Run every tier; answers non-zero where one failed."""
    failed, times = [], []
    for name, options in TIERS:
        print(f"\n=== {name}", flush=True)
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", *options, *arguments]
        code = subprocess.run(command, env=_environ(), check=False).returncode
        times.append(f"{name}: {time.monotonic() - started:.0f} s")
        if code not in (0, NOTHING_COLLECTED):
            failed.append(name)
    print("\n" + ", ".join(times))
    print(f"failed: {', '.join(failed)}" if failed else "every tier passed")
    return 1 if failed else 0


def _environ() -> dict[str, str]:
    """The same hashes every time; and what was compiled is kept, or each of hundreds of processes compiles it anew."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONHASHSEED": "0"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
