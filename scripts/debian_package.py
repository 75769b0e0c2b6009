"""The Debian package of a release: what package_tree.py makes, for the Python that builds it. dpkg-deb makes it; its
scripts are in scripts/debian."""

from __future__ import annotations

import gzip
import os
import sys
import textwrap
import time
from pathlib import Path

from package_tree import ROOT, write

SCRIPTS = ("postinst", "prerm", "postrm")


def maintainer() -> str:
    """As Debian's own tools take it: who builds the package maintains it."""
    name, address = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    return f"{name or 'laggard'} <{address or 'laggard@example.org'}>"


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


def _write_packed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
