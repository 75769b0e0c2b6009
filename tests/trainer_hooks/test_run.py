"""`laggard run` runs the script as `python SCRIPT` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(*words: str | Path, hooks: bool = True) -> subprocess.CompletedProcess[str]:
    laggard = ("-m", "laggard", "run") if hooks else ()
    return subprocess.run([sys.executable, *laggard, *map(str, words)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("print('done')", 0),
        ("raise SystemExit(7)", 7),
        ("raise RuntimeError('the model is wrong')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("raise KeyboardInterrupt", -2),
    ],
)
def test_exit_status_and_output_are_the_scripts_own(tmp_path: Path, body: str, status: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(body)
    with_hooks, without = run(script), run(script, hooks=False)
    assert with_hooks.returncode == without.returncode == status
    assert with_hooks.stdout == without.stdout
    assert with_hooks.stderr.splitlines()[-1:] == without.stderr.splitlines()[-1:]


def test_the_script_has_its_own_arguments_name_and_path(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'found'")
    script = tmp_path / "script.py"
    script.write_text("import sys, neighbour\nprint(__name__, sys.argv, sys.path[0], neighbour.WORD)")
    words = ["--record", "x", "--format", "json", "--help"]
    with_hooks = run(script, *words)
    assert with_hooks.stdout == run(script, *words, hooks=False).stdout
    assert with_hooks.returncode == 0, with_hooks.stderr


def test_deepspeed_and_torch_are_imported_only_by_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sorted({'torch', 'deepspeed', 'msgspec', 'numpy'} & set(sys.modules)))")
    assert run(script).stdout == "[]\n"


def test_a_missing_script(tmp_path: Path) -> None:
    result = run(tmp_path / "missing.py")
    assert result.returncode == 64
    assert result.stderr == f"laggard: no script at {tmp_path / 'missing.py'}\n"
