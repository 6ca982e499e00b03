"""Runs the test tiers one after another, the quick ones in parallel, and says where the time went."""

from __future__ import annotations

import os
import subprocess
import sys
import time

SLOW = ("conformance", "crash", "spark", "e2e")
TIERS = (
    ("unit and property", [f"-m not {' and not '.join(SLOW)}", "-n2"]),
    *((tier, [f"-m {tier}"]) for tier in SLOW),
)
NOTHING_COLLECTED = 5


def main(arguments: list[str]) -> int:
    """Run every tier; answers non-zero where one failed."""
    failed, times = [], []
    for name, options in TIERS:
        print(f"\n=== {name}", flush=True)
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", *options, *arguments]
        code = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}, check=False).returncode
        times.append(f"{name}: {time.monotonic() - started:.0f} s")
        if code not in (0, NOTHING_COLLECTED):
            failed.append(name)
    print("\n" + ", ".join(times))
    print(f"failed: {', '.join(failed)}" if failed else "every tier passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
