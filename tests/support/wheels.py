"""Older versions of a package, for tests of what laggard makes of them: unpacked wheels, kept between runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def unpacked_wheel(package: str, version: str) -> Path:
    """A folder for PYTHONPATH with this version of a package that is pure Python and needs nothing. It is downloaded
    once; where the package index cannot be reached the test is skipped."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "laggard-tests"
    folder = cache / f"{package}-{version}"
    if folder.exists():
        return folder
    wheels = cache / f"wheels-{os.getpid()}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(wheels), f"{package}=={version}"], capture_output=True, text=True)
    found = list(wheels.glob(f"*-{version}-*.whl"))
    if not found:
        pytest.skip(f"cannot download {package} {version}: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(found[0]) as wheel:
        wheel.extractall(wheels / version)
    with contextlib.suppress(OSError):  # another test process was faster
        (wheels / version).rename(folder)
    return folder
