"""What the packages of a release have in common: laggard with its dependencies in a virtual environment at
/opt/laggard, where docs/install.md has it, for one Python, and the units."""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STRAY = (("nvidia_ml_py", "example.py"),)
"""Files of a dependency that would be importable by a name that is not its own."""
LAUNCHER = """\
#!/opt/laggard/bin/python3 -sE
import sys
from laggard.cli import main
sys.exit(main())
"""
"""Without the user's own packages and PYTHON* variables: what runs before jobs must not depend on who calls it."""

Run = Callable[..., str]


def library(root: Path, python: str) -> Path:
    """The folder of the packages for a Python such as `3.11`."""
    return root / f"opt/laggard/lib/python{python}/site-packages"


def install_packages(there: Path, what: str, run: Run, *for_python: str) -> None:
    """laggard and its dependencies into the folder `there`, without what only their authors need: tests and examples.
    `for_python`: pip's words for another Python than this one."""
    run(sys.executable, "-m", "pip", "install", "-q", "--no-compile", *for_python, "--target", there, what)
    shutil.rmtree(there / "bin", ignore_errors=True)  # its programs start with this environment's Python
    left_out = [path for package, path in STRAY if list(there.glob(f"{package}-*.dist-info"))]
    for path in left_out:
        (there / path).unlink(missing_ok=True)
    for folder in sorted(there.rglob("tests")):
        if folder.is_dir() and "laggard" not in folder.relative_to(there).parts:
            shutil.rmtree(folder, ignore_errors=True)
    for record in there.glob("*.dist-info/RECORD"):
        _forget_what_is_gone(record, there)


def _forget_what_is_gone(record: Path, there: Path) -> None:
    with record.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row and (there / row[0]).exists()]
    with record.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def put_environment(root: Path, interpreter: str) -> None:
    """What makes /opt/laggard a virtual environment of the distribution's Python: the daemons start children by
    sys.executable, which find laggard there."""
    program = root / "opt/laggard/bin/python3"
    program.parent.mkdir(parents=True)
    program.symlink_to(interpreter)
    write(root / "opt/laggard/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    write(root / "opt/laggard/bin/laggard", LAUNCHER, 0o755)


def set_modes(root: Path) -> None:
    """A build under a strict umask is the same package; libraries are not programs."""
    for path in (root, *root.rglob("*")):
        if path.is_symlink():
            continue
        program = path.is_dir() or (path.stat().st_mode & 0o100 and ".so" not in path.suffixes)
        path.chmod(0o755 if program else 0o644)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
