"""Builds what a release has into dist/: docs/release.md. `make release` runs it in an environment of its own.

    release.py [--out FOLDER] [PART...]      parts: packages, manual, completion, deb, sbom; all where none is named

The Debian package holds laggard with its dependencies below /opt/laggard, where docs/install.md has it, for the Python
that builds it; dpkg-deb makes it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

from laggard import __version__
from laggard.cli import whole_parser

ROOT = Path(__file__).resolve().parents[1]
SHELLS = {"bash": "laggard.bash", "zsh": "_laggard"}
MAINTAINER = "laggard's authors <laggard@localhost>"
LAUNCHER = """\
#!/usr/bin/python3 -sE
import sys
sys.path.insert(0, "/opt/laggard/lib")
from laggard.cli import main
sys.exit(main())
"""
"""Without the user's own packages and PYTHON* variables: what runs before jobs must not depend on who calls it."""
AFTER_INSTALL = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers laggard.conf
        systemd-tmpfiles --create laggard.conf || true
    else
        id laggard >/dev/null 2>&1 || useradd --system --home /var/lib/laggard laggard
        id laggard-reader >/dev/null 2>&1 || useradd --system laggard-reader
    fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        systemctl try-restart laggard-agent laggard-collector laggard-reader laggard-idle-rings || true
    fi
fi
"""
BEFORE_REMOVAL = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now laggard-agent laggard-collector laggard-idle-rings \\
        laggard-reader.socket laggard-reader || true
fi
"""
AFTER_REMOVAL = """\
#!/bin/sh
set -e
find /opt/laggard -name __pycache__ -exec rm -rf {} + 2>/dev/null || true
if [ "$1" = purge ]; then rm -rf /var/lib/laggard /etc/laggard; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""


def run(*command: str | Path, folder: Path | None = None) -> str:
    """What it printed. Where it fails, its last lines end the program."""
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"release: {' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def packages(out: Path) -> None:
    """sdist and wheel. The wheel is built from the sdist, so that what is in the one suffices for the other."""
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)


def manual(out: Path) -> None:
    from argparse_manpage.manpage import Manpage

    parser = whole_parser()
    parser.man_short_description = "finds the slow rank of a training job, and the node that is not fit"
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    (out / "laggard.1").write_text(str(Manpage(parser)))


def completion(out: Path) -> None:
    import shtab

    for shell, name in SHELLS.items():
        (out / name).write_text(shtab.complete(whole_parser(), shell))


def deb(out: Path) -> None:
    wheel = next(iter(out.glob(f"laggard-{__version__}-*.whl")), None)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        what = f"{wheel or ROOT}[collector]"
        run(sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", root / "opt/laggard/lib", what)
        shutil.rmtree(root / "opt/laggard/lib/bin", ignore_errors=True)  # they start with this environment's Python
        _put_files(root, out)
        _control(root)
        for path in (root, *root.rglob("*")):  # a build under a strict umask is the same package
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        run("dpkg-deb", "--root-owner-group", "--build", root, out)


def _put_files(root: Path, out: Path) -> None:
    deploy = ROOT / "deploy"
    for source, folder in ((deploy / "systemd" / "system", "usr/lib/systemd/system"),
                           (deploy / "systemd" / "sysusers.d", "usr/lib/sysusers.d"),
                           (deploy / "systemd" / "tmpfiles.d", "usr/lib/tmpfiles.d")):  # fmt: skip
        shutil.copytree(source, root / folder)
    _write(root / "opt/laggard/bin/laggard", LAUNCHER, 0o755)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/laggard").symlink_to("/opt/laggard/bin/laggard")
    _write(root / "etc/laggard/agent.yaml", "{} # docs/configuration.md\n")
    _write(root / "etc/laggard/collector.yaml", "targets: [localhost] # docs/configuration.md\n")
    for part, name, place in ((manual, "laggard.1", "usr/share/man/man1/laggard.1"),
                              (completion, "laggard.bash", "usr/share/bash-completion/completions/laggard"),
                              (completion, "_laggard", "usr/share/zsh/vendor-completions/_laggard")):  # fmt: skip
        if not (out / name).exists():
            part(out)
        _write(root / place, (out / name).read_text())
    shutil.copy(ROOT / "LICENSE", _folder(root / "usr/share/doc/laggard") / "copyright")


def _control(root: Path) -> None:
    """One Python's compiled parts are in it, so it asks for that Python."""
    major, minor = sys.version_info[:2]
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    control = f"""\
        Package: laggard
        Version: {__version__}
        Architecture: {run("dpkg", "--print-architecture").strip()}
        Maintainer: {MAINTAINER}
        Installed-Size: {size}
        Depends: python3 (>= {major}.{minor}), python3 (<< {major}.{minor + 1}), passwd
        Recommends: systemd, pciutils
        Section: admin
        Priority: optional
        Description: finds the slow rank of a training job, and the node that is not fit
         The agent, its reader, the collector and the command line of laggard, with the
         Python packages that they need. No service starts by itself:
         systemctl enable --now laggard-reader.socket laggard-agent
        """
    folder = root / "DEBIAN"
    _write(folder / "control", textwrap.dedent(control))
    _write(folder / "conffiles", "/etc/laggard/agent.yaml\n/etc/laggard/collector.yaml\n")
    for name, text in (("postinst", AFTER_INSTALL), ("prerm", BEFORE_REMOVAL), ("postrm", AFTER_REMOVAL)):
        _write(folder / name, text, 0o755)


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    (_folder(path.parent) / path.name).write_text(text)
    path.chmod(mode)


def sbom(out: Path) -> None:
    """CycloneDX, of the wheel installed with the collector's packages and nothing else."""
    wheel = next(out.glob(f"laggard-{__version__}-*.whl"))
    with tempfile.TemporaryDirectory() as temporary:
        run(sys.executable, "-m", "venv", "--without-pip", temporary)
        python = Path(temporary) / "bin" / "python"
        run(sys.executable, "-m", "pip", "--python", python, "install", "-q", f"{wheel}[collector]")
        run(
            sys.executable,
            "-m",
            "cyclonedx_py",
            "environment",
            "--output-reproducible",
            "-o",
            out / "laggard.cdx.json",
            python,
        )


PARTS: dict[str, Callable[[Path], None]] = {
    "packages": packages, "manual": manual, "completion": completion, "deb": deb, "sbom": sbom
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    out = _folder(options.out.resolve())
    # The manual has a date: that of the last commit, so that the same commit makes the same page.
    os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct", folder=ROOT).strip())
    for name in options.parts or PARTS:
        print(f"release: {name}", file=sys.stderr, flush=True)
        PARTS[name](out)
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:10}  {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
