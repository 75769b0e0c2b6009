"""Wheel and sdist in clean environments, with each extra that is small. torch and deepspeed are the training's own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

LAGGARD = ("-m", "laggard")
USES = {
    "": (*LAGGARD, "findings", "explain", "DISK_FULL"),
    "collector": (*LAGGARD, "collector", "--check-config"),
    "grafana": ("-c", "import grafana_api.grafana_face, laggard.dashboards.push"),
    "otlp": ("-c", "from laggard.otlp.message import load; load()"),
    "terminal": ("-c", "import laggard.collector.top.screen"),
    "tune": ("-c", "import optuna, laggard.tune.study.store"),
}
"""What needs the extra, as arguments of Python. It fails without."""


def check_extras(repository: Path) -> None:
    wheels = list((repository / "dist").glob("laggard-*.whl"))
    sources = list((repository / "dist").glob("laggard-*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        sys.exit("install-check: needs one wheel and one sdist in dist: make release")
    for package, extras in ((wheels[0], USES), (sources[0], {"": USES[""], "collector": USES["collector"]})):
        for extra, use in extras.items():
            _check(package, extra, use)


def _check(package: Path, extra: str, use: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="laggard-extra-") as folder:
        _run(sys.executable, "-m", "venv", folder)
        python = f"{folder}/bin/python"
        if extra and subprocess.run([python, *use], capture_output=True, cwd=folder).returncode == 0:
            sys.exit(f"install-check: {use} works without {extra}")
        _run(python, "-m", "pip", "install", "-q", f"{package}[{extra}]" if extra else str(package))
        _run(python, "-m", "pip", "check")
        _run(python, *use, folder=folder)
        print(f"  {package.name}[{extra}]: {' '.join(use)}", flush=True)


def _run(*words: str, folder: str = "/") -> None:
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        sys.exit(f"install-check: {' '.join(words)}: {(done.stdout + done.stderr)[-2000:]}")
