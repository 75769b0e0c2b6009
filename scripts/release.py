"""Builds what a release has into dist/: docs/development/release.md. `make release` runs it in an environment of its
own.

release.py [--out FOLDER] [PART...]
    parts: packages, manual, completion, sbom; all where none is named
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from laggard import __version__
from laggard.cli import whole_parser

ROOT = Path(__file__).resolve().parents[1]
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
    "packages": packages,
    "manual": manual,
    "completion": completion,
    "sbom": sbom,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
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
