"""Wheel and sdist with every Python that laggard supports and this machine has: installed into a clean environment, the
gate, the collector's configuration, and an agent that starts and answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
Done = subprocess.CompletedProcess[str]


def run(*words: str | Path, folder: str = "/", most: int = 0) -> Done:
    """A status above `most` ends the program."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=folder)
    if done.returncode > most:
        sys.exit(f"install-check: {' '.join(map(str, words))}: {(done.stdout + done.stderr)[-2000:]}")
    return done


def pythons() -> dict[str, str]:
    """The supported versions that are here, with their programs: pyenv's first, then those in PATH."""
    found = {version: program for version in SUPPORTED if (program := _program(version))}
    missing = [version for version in SUPPORTED if version not in found]
    print(f"  Pythons here: {', '.join(found)}{'; not tried: ' if missing else ''}{', '.join(missing)}", flush=True)
    return found


def _program(version: str) -> str | None:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    inside = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    for program in (*map(str, reversed(inside)), shutil.which(f"python{version}")):
        if program and subprocess.run([program, "-c", "import venv"], capture_output=True).returncode == 0:
            return program
    return None


def check_pythons(wheel: Path, source: Path) -> None:
    for version, program in pythons().items():
        with tempfile.TemporaryDirectory(prefix=f"laggard-python{version}-") as folder:
            laggard = _installed(program, f"{source}", f"{folder}/source")
            run(laggard, "--version")
            _locates(laggard, Path(folder))
            laggard = _installed(program, f"{wheel}[collector]", f"{folder}/wheel")
            judged = json.loads(run(laggard, "healthcheck", "--format", "json", most=2).stdout)
            run(laggard, "collector", "--check-config")
            answered = _agent_answers(laggard, Path(folder))
        print(f"  Python {version}: {len(judged['probes'])} probes: {judged['verdict']}; agent: {answered}", flush=True)


def _installed(program: str, what: str, folder: str) -> str:
    run(program, "-m", "venv", folder)
    run(f"{folder}/bin/python", "-m", "pip", "install", "-q", what)
    run(f"{folder}/bin/python", "-m", "pip", "check")
    return f"{folder}/bin/laggard"


def _locates(laggard: str, folder: Path) -> None:
    """Without an extra a recording is judged and becomes a page, and what asks a collector says that none answers."""
    step = '{"kind": "step", "rank": %d, "step": %d, "start": %d, "end": %d}'
    lines = [step % (rank, number, number, number + 1) for rank in (0, 1) for number in range(9)]
    (folder / "recording.jsonl").write_text("\n".join(['{"laggard_recording": 1}', *lines]) + "\n")
    run(laggard, "locate", "--trace", folder / "recording.jsonl", "--html", folder / "answer.html", most=2)
    asked = subprocess.run([laggard, "locate"], capture_output=True, text=True, cwd="/")
    if "127.0.0.1:19401" not in asked.stderr or "pip install" in asked.stderr:
        sys.exit(f"install-check: laggard locate, without a collector: {asked.stderr}")


def _agent_answers(laggard: str, folder: Path) -> str:
    """Starts an agent, asks it, and stops it."""
    (folder / "ranks").mkdir()
    words = [laggard, "agent", "--web.listen-address", "127.0.0.1:0", "--rank-dir", str(folder / "ranks")]
    agent = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert agent.stderr
    try:
        line = agent.stderr.readline()
        found = re.search(r"listening on (http\S+)", line)
        if not found:
            sys.exit(f"install-check: {' '.join(words)}: {line}{agent.stderr.read()[-2000:]}")
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=60) as answer:
            build = re.search(r"laggard_build_info\{.*", answer.read().decode())
        with urllib.request.urlopen(f"{found[1]}/api/v1/ranks?since=0", timeout=60) as answer:
            json.load(answer)
    finally:
        agent.terminate()
        rest = agent.communicate(timeout=60)[1]
    if agent.returncode or "Traceback" in rest or not build:
        sys.exit(f"install-check: the agent of {laggard} ended with {agent.returncode}: {rest[-2000:]}")
    return build[0]
