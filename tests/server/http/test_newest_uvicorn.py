"""Whether the newest release of uvicorn can be used, so that nobody learns otherwise on the day of a security fix."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "deep", reason="make test-deep asks the package index")
def test_the_newest_release_keeps_the_contract(tmp_path: Path) -> None:
    """In an environment of its own, where everything but uvicorn is as it is here."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "uvicorn"], check=True)
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    others = [path for path in sys.path if path and Path(path).is_dir() and path != sysconfig.get_path("stdlib")]
    (Path(purelib) / "others.pth").write_text("\n".join(others))
    files = [str(Path(__file__).with_name(name)) for name in ("test_uvicorn_adapter.py", "test_connection.py")]
    environ = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_PROFILE"}
    root = Path(__file__).parents[3]
    found = subprocess.run(
        [python, "-c", "import uvicorn; print(uvicorn.__file__)"], check=True, capture_output=True, text=True, cwd=root
    ).stdout
    assert purelib in found
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=root, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-10_000:]
