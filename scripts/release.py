"""Builds what a release has into dist/: docs/release.md. `make release` runs it in an environment of its own.

    release.py [--out FOLDER] [--rpm-python 3.N] [PART...]
        parts: packages, manual, completion, deb, rpm, sbom; all where none is named, but rpm where no rpmbuild is here

DEBFULLNAME and DEBEMAIL, as Debian's own tools take them, are the Debian package's maintainer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import rpm_package
from debian_package import put_control, put_documents
from package_tree import install_packages, library, put_environment, set_modes, write

from laggard import __version__
from laggard.cli import whole_parser

ROOT = Path(__file__).resolve().parents[1]
OWN_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
RPM_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SHELLS = {"bash": "laggard.bash", "zsh": "_laggard"}


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
        install_packages(library(root, OWN_PYTHON), f"{wheel or ROOT}[collector]", run)
        _put_files(root, out, "/usr/bin/python3", "usr/share/zsh/vendor-completions")
        put_documents(root, __version__, (out / "laggard.1").read_text())
        put_control(root, __version__, run("dpkg", "--print-architecture").strip())
        set_modes(root)
        run("dpkg-deb", "--root-owner-group", "--build", root, out)


def rpm(out: Path, python: str) -> None:
    """For a Python such as 3.12, which need not be this one. It is built of the wheel, since what is not Python's own
    has to be compiled already."""
    wheel = next(iter(out.glob(f"laggard-{__version__}-*.whl")), None)
    if wheel is None:
        packages(out)
        wheel = next(out.glob(f"laggard-{__version__}-*.whl"))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        install_packages(library(root, python), f"{wheel}[collector]", run, *rpm_package.for_python(python))
        if left := rpm_package.missing(library(root, python), python):
            sys.exit(
                f"release: packages that Python {python} needs are missing: {', '.join(left)}: build with that Python"
            )
        _put_files(root, out, f"/usr/bin/python{python}", "usr/share/zsh/site-functions")
        write(root / "usr/share/man/man1/laggard.1", (out / "laggard.1").read_text())
        for name in ("LICENSE", "CHANGELOG.md"):
            write(root / "usr/share/doc/laggard" / name, (ROOT / name).read_text())
        set_modes(root)
        rpm_package.build(root, out, __version__, python, run)


def _put_files(root: Path, out: Path, interpreter: str, zsh: str) -> None:
    """What stands at the same place in both packages, but for the completion of zsh."""
    deploy = ROOT / "deploy"
    for source, folder in ((deploy / "systemd" / "system", "usr/lib/systemd/system"),
                           (deploy / "systemd" / "sysusers.d", "usr/lib/sysusers.d"),
                           (deploy / "systemd" / "tmpfiles.d", "usr/lib/tmpfiles.d")):  # fmt: skip
        shutil.copytree(source, root / folder)
    put_environment(root, interpreter)
    source = deploy / "slurm" / "laggard-ask.c"
    run("cc", "-O2", "-Wall", "-Werror", "-o", root / "opt/laggard/bin/laggard-ask", source)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/laggard").symlink_to("/opt/laggard/bin/laggard")
    write(root / "etc/laggard/agent.yaml", "{} # docs/configuration.md\n")
    write(root / "etc/laggard/collector.yaml", "targets: [localhost] # docs/configuration.md\n")
    for part, names in ((manual, ["laggard.1"]), (completion, SHELLS.values())):
        if not all((out / name).exists() for name in names):
            part(out)
    write(root / "usr/share/bash-completion/completions/laggard", (out / SHELLS["bash"]).read_text())
    write(root / zsh / "_laggard", (out / SHELLS["zsh"]).read_text())


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


PARTS: dict[str, Callable[[Path, str], None]] = {
    "packages": lambda out, _: packages(out),
    "manual": lambda out, _: manual(out),
    "completion": lambda out, _: completion(out),
    "deb": lambda out, _: deb(out),
    "rpm": rpm,
    "sbom": lambda out, _: sbom(out),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--rpm-python", default=OWN_PYTHON, metavar="3.N", choices=RPM_PYTHONS)
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # The manual has a date: that of the last commit, so that the same commit makes the same page.
    os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct", folder=ROOT).strip())
    for name in options.parts or PARTS:
        print(f"release: {name}", file=sys.stderr, flush=True)
        if name == "rpm" and shutil.which("rpmbuild") is None:
            text = "release: no RPM without rpmbuild: Debian's package rpm, or rpm-build of RHEL and its kin"
            if options.parts:
                sys.exit(text)
            print(text, file=sys.stderr, flush=True)
            continue
        PARTS[name](out, options.rpm_python)
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:10}  {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
