"""Runs the test tiers one after another, on both cores where that is quicker, and says where the time went."""

from __future__ import annotations

import os
import shutil
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
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "no Chromium: the tests in a browser are skipped (apt-get install chromium)"
INSTALL_WITHIN_S = 600


def main(arguments: list[str]) -> int:
    """Run every tier; answers non-zero where one failed."""
    failed, times = [], []
    has_browser = install_browser()
    for name, options in TIERS:
        print(f"\n=== {name}", flush=True)
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-rs", *options, *arguments]
        code = subprocess.run(command, env=_environ(), check=False).returncode
        times.append(f"{name}: {time.monotonic() - started:.0f} s")
        if code not in (0, NOTHING_COLLECTED):
            failed.append(name)
    print("\n" + ", ".join(times))
    if not has_browser:
        print(NO_BROWSER)
    print(f"failed: {', '.join(failed)}" if failed else "every tier passed")
    return 1 if failed else 0


def install_browser() -> bool:
    """Install Chromium where it is missing and root may; answers whether there is one."""
    if not any(map(shutil.which, BROWSERS)) and shutil.which("apt-get") and os.geteuid() == 0:
        print("installing Chromium, for the tests in a browser", flush=True)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", "chromium"]):
            call = ["apt-get", *command]
            try:
                subprocess.run(call, env=quiet, timeout=INSTALL_WITHIN_S, check=False, stdout=sys.stderr)
            except subprocess.TimeoutExpired:
                break
    found = any(map(shutil.which, BROWSERS))
    if not found:
        print(NO_BROWSER, flush=True)
    return found


def _environ() -> dict[str, str]:
    """The same hashes every time; and what was compiled is kept, or each of hundreds of processes compiles it anew."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONHASHSEED": "0"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
