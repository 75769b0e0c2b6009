"""Wheel and sdist in clean environments: with every Python that is here, and with each extra that is small (torch and
deepspeed are the training's own). What comes with them is right."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from install_check_parts.papers import check_bill
from install_check_parts.pythons import check_pythons, run

LAGGARD = ("-m", "laggard")
USES = {
    "": (*LAGGARD, "findings", "explain", "DISK_FULL"),
    "collector": (*LAGGARD, "collector", "--check-config"),
    "mcp": ("-c", "import laggard.assistant; from mcp.server import MCPServer"),
    "postgres": ("-c", "import psycopg, laggard.collector.incidents.store"),
    "tune": ("-c", "import optuna, laggard.tune.study"),
}
"""What needs the extra, as arguments of Python. It fails without."""


def check_extras(repository: Path) -> None:
    wheels = list((repository / "dist").glob("laggard-*.whl"))
    sources = list((repository / "dist").glob("laggard-*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        sys.exit("install-check: needs one wheel and one sdist in dist: make release")
    check_pythons(wheels[0], sources[0])
    for package, extras in ((wheels[0], USES), (sources[0], {"": USES[""], "collector": USES["collector"]})):
        for extra, use in extras.items():
            _check(package, extra, use)


def _check(package: Path, extra: str, use: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="laggard-extra-") as folder:
        run(sys.executable, "-m", "venv", folder)
        python = f"{folder}/bin/python"
        if extra and subprocess.run([python, *use], capture_output=True, cwd=folder).returncode == 0:
            sys.exit(f"install-check: {use} works without {extra}")
        run(python, "-m", "pip", "install", "-q", f"{package}[{extra}]" if extra else str(package))
        run(python, "-m", "pip", "check")
        run(python, *use, folder=folder)
        if extra == "collector" and package.suffix == ".whl":
            check_bill(package.with_name("laggard.cdx.json"), python)
        print(f"  {package.name}[{extra}]: {' '.join(use)}", flush=True)
