"""`laggard run` runs the script as `python SCRIPT` does."""

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.rows import rows


def run(
    *words: str | Path, hooks: bool = True, flags: Sequence[str] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    laggard = ("-m", "laggard", "run") if hooks else ()
    command = [sys.executable, *flags, *laggard, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd)


@rows("hooks/script_status")
def test_exit_status_and_output_are_the_scripts_own(tmp_path: Path, body: str, status: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(body)
    with_hooks, without = run(script), run(script, hooks=False)
    assert with_hooks.returncode == without.returncode == status
    assert with_hooks.stdout == without.stdout
    assert with_hooks.stderr == without.stderr, "the whole traceback"


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.modules['torch'] = None\nimport torch\n")
    first, *rest = run(script).stderr.splitlines()
    assert first.startswith(f"laggard: this laggard's python has no torch: {sys.executable}; install laggard in the ")
    assert rest == run(script, hooks=False).stderr.splitlines()


# What a script sees of itself and of how it was started.
ABOUT_ITSELF = """
import inspect, os, sys
import neighbour
class State: pass
main = sys.modules["__main__"]
spec = __spec__ and (__spec__.name, __spec__.origin)
print(__name__, __file__, __package__, __cached__, type(__loader__).__name__, spec, __doc__, __builtins__)
print(sys.argv, sys.path[0], main.State is State, inspect.getsource(State), __annotations__, sorted(globals()))
os.chdir("/")
print(os.path.exists(__file__), neighbour.WORD)
if "fail" in sys.argv: raise ValueError("no")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of scripts, each a way to start one."""
    folder = tmp_path_factory.mktemp("scripts")
    for name in ("train.py", "package/__main__.py", "package/tool.py", "tree/__main__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(ABOUT_ITSELF)
    (folder / "package" / "__init__.py").write_text("import sys; print(sys.argv[0])")
    for place in (folder, folder / "tree"):
        (place / "neighbour.py").write_text("WORD = 'found'")
    (folder / "links").mkdir()
    (folder / "links" / "link.py").symlink_to("../train.py")
    with zipfile.ZipFile(folder / "whole.pyz", "w") as archive:
        archive.writestr("__main__.py", "import sys, neighbour; print(__file__, sys.argv, sys.path[0], neighbour.WORD)")
        archive.writestr("neighbour.py", "WORD = 'zipped'")
    (folder / "wrong.py").write_text("def broken(:\n")
    return folder


@rows("hooks/scripts")
def test_a_script_finds_itself_as_under_python(words: list[str], folder: Path) -> None:
    with_hooks, without = run(*words, cwd=folder), run(*words, hooks=False, cwd=folder)
    assert (with_hooks.stdout, with_hooks.returncode) == (without.stdout, without.returncode)
    # Before the script's first line there are runpy's, where Python uses that.
    assert with_hooks.stderr.partition(str(folder))[1:] == without.stderr.partition(str(folder))[1:]
    assert "laggard/" not in with_hooks.stderr


def test_python_is_told_to_leave_the_scripts_folder_out(folder: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("Python has -P since 3.11")
    script = folder / "path.py"
    script.write_text("import sys; print(sys.path)")
    assert run(script, flags=["-P"]).stdout == run(script, flags=["-P"], hooks=False).stdout


AFTER_ITS_LAST_LINE = """
import atexit, pickle, threading, time
class State: pass
def save(who):
    print(who, len(pickle.dumps(State())))
atexit.register(save, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), save("a thread"))).start()
"""


@pytest.mark.slow
def test_what_runs_after_the_scripts_last_line_finds_its_classes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(AFTER_ITS_LAST_LINE)
    with_hooks = run(script)
    assert with_hooks.stdout == run(script, hooks=False).stdout
    assert with_hooks.stdout.count("\n") == 2 and with_hooks.stderr == ""


def test_deepspeed_and_torch_are_imported_only_by_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sorted({'torch', 'deepspeed', 'msgspec', 'numpy'} & set(sys.modules)))")
    assert run(script).stdout == "[]\n"


def test_python_processes_of_the_script_are_as_under_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have their own sitecustomize, and nothing more in their path."""
    own = "import sys; print('its own', __file__ in sys.modules[__name__].__file__)"
    (tmp_path / "sitecustomize.py").write_text(own)
    script = tmp_path / "script.py"
    child = "import sys; print(sys.path, [name for name in sys.modules if 'laggard' in name])"
    script.write_text(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)")
    assert run(script).stdout == run(script, hooks=False).stdout
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with_hooks, without = run(script), run(script, hooks=False)
    assert with_hooks.stdout == without.stdout and with_hooks.stdout.count("its own True") == 2
    assert with_hooks.stderr == without.stderr == ""


def test_a_launcher_takes_the_place_of_this_process(tmp_path: Path) -> None:
    """One in PATH, one that is a file; a folder of that name does not matter."""
    (tmp_path / "env").mkdir()
    launcher = tmp_path / "launch.sh"
    launcher.write_text("#!/bin/sh\nexit 7\n")
    assert run(launcher).returncode == 64
    assert run(launcher).stderr == f"laggard: cannot run {launcher}: Permission denied\n"
    launcher.chmod(0o755)
    assert run(launcher).returncode == 7
    done = run("env", "sh", "-c", "echo $1; exit 5", "x", "--help", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "--help\n")


@pytest.mark.parametrize("word", ["--local_rank=1", "--local-rank=1"])
def test_a_launchers_word_before_the_command_is_the_scripts(word: str, folder: Path) -> None:
    """As `deepspeed --no_python laggard run train.py` and torch.distributed.launch start it."""
    script = folder / "words.py"
    script.write_text("import sys; print(sys.argv[1:])")
    command = [sys.executable, "-m", "laggard", word, "run", str(script), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == f"{[word, '--epochs', '2']}\n", done.stderr


def test_a_missing_script(tmp_path: Path) -> None:
    result = run(tmp_path / "missing.py")
    assert result.returncode == 64
    assert result.stderr == f"laggard: no script at {tmp_path / 'missing.py'}\n"
    result = run(tmp_path)
    assert result.returncode == 64
    assert result.stderr == f"laggard: {tmp_path} is a directory without a __main__.py\n"


@pytest.mark.parametrize("name", ["missing", "package.missing", "missing.part"])
def test_a_missing_module(name: str, folder: Path) -> None:
    result = run("-m", name, cwd=folder)
    assert (result.returncode, result.stderr) == (64, f"laggard: no module named {name}\n")


@pytest.mark.parametrize("words", [[], ["-m"], ["--record", "x"]])
def test_neither_a_script_nor_a_module(words: list[str]) -> None:
    result = run(*words)
    assert (result.returncode, result.stderr) == (64, "laggard: name a script, or -m and a module\n")
