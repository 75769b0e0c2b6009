"""Puts laggard and all that it needs into a folder, as wheels, for machines without a network: docs/operate.md.

    wheelhouse.py [--python PROGRAM] [--extra NAME]... [--out FOLDER]

--python: a Python of the version that will run laggard there (default: this one). It does the choosing, since packages
ask for others by version. --extra: as in pyproject.toml (default: collector). agent.txt and all.txt in the folder pin
each version with its SHA-256: laggard alone, and with the extras.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_FOLDER = ROOT / "dist" / "wheelhouse"
EXTRAS = ("collector",)
SUPPORTED = ((3, 10), (3, 13))
"""The oldest and the newest Python that laggard is tried with."""

LEFT_OUT = (".*", "out", "build", "dist", "tests", "bench", "__pycache__", "*.egg-info")
"""What the wheel is built without: setuptools would also take what an earlier build left in build/."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, metavar="PROGRAM")
    parser.add_argument("--extra", action="append", metavar="NAME")
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER")
    options = parser.parse_args()
    out = options.out.resolve()
    version = _python_version(options.python)
    if out.exists() and any(out.iterdir()):
        sys.exit(f"wheelhouse: {out} is not empty: remove it, or name another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    wanted = f"laggard[{','.join(options.extra or EXTRAS)}]"
    _make_wheels(options.python, wanted, out)
    pinned = {
        name: _pin(options.python, what, out / name) for name, what in (("agent.txt", "laggard"), ("all.txt", wanted))
    }
    told = " and ".join(f"{count} packages in {name}" for name, count in pinned.items())
    print(f"wheelhouse: {out} for Python {version}: {told}")
    print("wheelhouse: carry it over, and there, in an environment of that Python:")
    print(f"  pip install --no-index --find-links {out.name} --require-hashes -r {out.name}/all.txt")
    return 0


def _python_version(program: str) -> str:
    """The version as `3.11`. Ends the program where laggard does not run with it."""
    try:
        done = subprocess.run(
            [program, "-c", "import sys; print('%d %d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"wheelhouse: {program} is no Python that runs here: {error}")
    major, minor = map(int, done.stdout.split())
    if not SUPPORTED[0] <= (major, minor) <= SUPPORTED[1]:
        least, most = (".".join(map(str, it)) for it in SUPPORTED)
        sys.exit(
            f"wheelhouse: {program} is Python {major}.{minor}, and laggard needs {least} to {most}: --python PROGRAM"
        )
    return f"{major}.{minor}"


def _make_wheels(python: str, wanted: str, out: Path) -> None:
    """laggard's wheel, built from a copy of this repository, and those of all that it needs. A package without a wheel
    for this machine is built, too."""
    with tempfile.TemporaryDirectory(prefix="laggard-wheelhouse-") as folder:
        source = Path(folder) / "laggard"
        shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        _pip(python, "wheel", "--no-deps", "--wheel-dir", out, source)
    _pip(python, "wheel", "--find-links", out, "--wheel-dir", out, wanted)


def _pin(python: str, what: str, requirements: Path) -> int:
    """Writes what pip would install for `what` from the folder of `requirements` alone, each with its hash, and returns
    how many packages these are. So a folder that does not suffice is found here, and not behind the air gap."""
    with tempfile.TemporaryDirectory(prefix="laggard-wheelhouse-") as folder:
        report = Path(folder) / "report.json"
        words = ("--dry-run", "--ignore-installed", "--no-index", "--find-links", requirements.parent)
        _pip(python, "install", *words, "--report", report, what)
        packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    lines = sorted(_requirement(package) for package in packages)
    requirements.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def _requirement(package: Any) -> str:
    """A line of a requirements file. `package`: one of pip's installation report
    (https://pip.pypa.io/en/stable/reference/installation-report/)."""
    metadata, archive = package["metadata"], package["download_info"]["archive_info"]
    return f"{metadata['name']}=={metadata['version']} --hash=sha256:{archive['hashes']['sha256']}\n"


def _pip(python: str, *words: str | Path) -> None:
    """Runs this environment's pip with that Python, whose own may be old or missing. Its last lines end the program
    where it fails."""
    command: Sequence[str] = [sys.executable, "-m", "pip", "--python", python, *map(str, words), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"wheelhouse: pip {words[0]}: {(done.stderr or done.stdout).strip()[-2000:]}")


if __name__ == "__main__":
    raise SystemExit(main())
