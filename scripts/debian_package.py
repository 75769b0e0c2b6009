"""The Debian package of a release: laggard with its dependencies in a virtual environment at /opt/laggard, where
docs/install.md has it, for the Python that builds it. dpkg-deb makes it; its scripts are in scripts/debian."""

from __future__ import annotations

import csv
import gzip
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = Path(f"opt/laggard/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
SCRIPTS = ("postinst", "prerm", "postrm")
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


def maintainer() -> str:
    """As Debian's own tools take it: who builds the package maintains it."""
    name, address = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    return f"{name or 'laggard'} <{address or 'laggard@example.org'}>"


def install_packages(root: Path, what: str, run: Run) -> None:
    """laggard and its dependencies into `root`, without what only their authors need: tests and examples."""
    library = root / LIBRARY
    run(sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", library, what)
    shutil.rmtree(library / "bin", ignore_errors=True)  # its programs start with this environment's Python
    left_out = [path for package, path in STRAY if list(library.glob(f"{package}-*.dist-info"))]
    for path in left_out:
        (library / path).unlink(missing_ok=True)
    for folder in sorted(library.rglob("tests")):
        if folder.is_dir() and "laggard" not in folder.relative_to(library).parts:
            shutil.rmtree(folder, ignore_errors=True)
    for record in library.glob("*.dist-info/RECORD"):
        _forget_what_is_gone(record, library)


def _forget_what_is_gone(record: Path, library: Path) -> None:
    with record.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row and (library / row[0]).exists()]
    with record.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def put_environment(root: Path) -> None:
    """What makes /opt/laggard a virtual environment of Debian's Python: the daemons start children by sys.executable,
    which find laggard there."""
    program = root / "opt/laggard/bin/python3"
    program.parent.mkdir(parents=True)
    program.symlink_to("/usr/bin/python3")
    write(root / "opt/laggard/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    write(root / "opt/laggard/bin/laggard", LAUNCHER, 0o755)


def put_documents(root: Path, version: str, page: str) -> None:
    """What Debian's policy asks for: copyright, changelog and the manual page, the two latter compressed."""
    folder = root / "usr/share/doc/laggard"
    write(folder / "copyright", (ROOT / "scripts" / "debian" / "copyright").read_text())
    at = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    change = f"laggard ({version}) stable; urgency=medium\n\n  * /usr/share/doc/laggard/CHANGELOG.md.gz has it.\n"
    _write_packed(folder / "changelog.gz", f"{change}\n -- {maintainer()}  {at}\n")
    _write_packed(folder / "CHANGELOG.md.gz", (ROOT / "CHANGELOG.md").read_text())
    _write_packed(root / "usr/share/man/man1/laggard.1.gz", page)


def put_control(root: Path, version: str, architecture: str) -> None:
    """One Python's compiled parts are in it, so it asks for that Python."""
    major, minor = sys.version_info[:2]
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    control = f"""\
        Package: laggard
        Version: {version}
        Architecture: {architecture}
        Maintainer: {maintainer()}
        Installed-Size: {size}
        Depends: python3 (>= {major}.{minor}), python3 (<< {major}.{minor + 1}), libc6, passwd
        Recommends: systemd, pciutils
        Section: admin
        Priority: optional
        Description: finds the slow rank of a training job, and the node that is not fit
         The agent, its reader, the collector and the command line of laggard, with the
         Python packages that they need. No service starts by itself:
         systemctl enable --now laggard-reader.socket laggard-agent
        """
    folder = root / "DEBIAN"
    write(folder / "control", textwrap.dedent(control))
    write(folder / "conffiles", "/etc/laggard/agent.yaml\n/etc/laggard/collector.yaml\n")
    for name in SCRIPTS:
        write(folder / name, (ROOT / "scripts" / "debian" / name).read_text(), 0o755)


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


def _write_packed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
