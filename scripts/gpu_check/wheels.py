"""What laggard needs and an image may lack, as wheels in a folder that travels to a machine without a network.

`--carry DIR` downloads them where there is a network. `--wheels DIR` installs those that this Python lacks into a
folder of gpu-check's own, which is put on PYTHONPATH. No site-packages is changed. Standard library and pip only.
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

NEEDED = (
    "backports.zstd>=1.0; python_version < '3.14'",
    "msgspec>=0.19",
    "nvidia-ml-py>=11.525.84",
    "numpy>=1.26",
    "prometheus-client>=0.20",
    "PyYAML>=6.0",
)
"""As in pyproject.toml: laggard's own, and those of its extra `locate`."""
MANYLINUX = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
SECONDS = 600


def carry(folder: Path, version: str) -> str:
    """Downloads the wheels for CPython `version`, such as 3.12, on Linux and this machine's processor. Returns why that
    failed, empty where it did not."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["download", "--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", version]
    for name in MANYLINUX:
        words += ["--platform", f"{name}_{platform.machine()}"]
    wanted = [each.partition(";")[0].strip() for each in NEEDED if is_for(each, version)]
    return pip([*words, "--dest", str(folder), *wanted])


def is_for(requirement: str, version: str) -> bool:
    """Whether that Python wants it: pip judges markers by the Python that it runs on."""
    _, _, marker = requirement.partition(";")
    below = marker.partition("<")[2].strip(" '")
    return not below or numbers(version) < numbers(below)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split("."))


def install(folder: Path, target: Path) -> Iterator[str]:
    """Installs what this Python lacks of the wheels in `folder` into `target`, and says what was done, a line each."""
    names = sorted({path.name.partition("-")[0] for path in folder.glob("*.whl")})
    if not names:
        yield f"{folder} holds no wheels"
    for name in names:
        try:
            yield f"{name} {importlib.metadata.version(name)} is installed"
            continue
        except importlib.metadata.PackageNotFoundError:
            pass
        words = ["install", "--no-index", "--no-deps", "--no-cache-dir", "--root-user-action", "ignore"]
        problem = pip([*words, "--upgrade", "--find-links", str(folder), "--target", str(target), name])
        yield f"{name} does not install from {folder}: {problem}" if problem else f"{name} comes from {folder}"


def pip(words: Sequence[str]) -> str:
    """Runs pip. Returns why it failed, empty where it did not."""
    try:
        done = subprocess.run([*PIP, *words], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"pip did not end within {SECONDS} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["pip says nothing"])[0][:300] if done.returncode else ""
