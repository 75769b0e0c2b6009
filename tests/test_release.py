"""What a release has: manual, completion, and the wheelhouse for machines without a network."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.docs_commands import command_lines
from support.paths import REPOSITORY

from laggard import __version__
from laggard.commands import COMMANDS, PARTS

PLACES = {
    "pyproject.toml": r'^version = "(.*)"$',
    "CHANGELOG.md": r"\A# .*?^## ([\d.]+): ",
    "deploy/helm/laggard/Chart.yaml": r"^(?:version|appVersion): (.*)$",
    "deploy/kubernetes/agent.yaml": r'image: "registry.example.org/laggard:(.*)"$',
    "deploy/kubernetes/examples/gated-job.yaml": r"image: laggard:(.*)$",
    "docs/openapi/agent.json": r'^  "version": "(.*)",$',
}
"""Where the version stands beside src/laggard/__init__.py: in the changelog as that of the newest entry."""


@pytest.mark.parametrize("path", PLACES)
def test_the_version_is_the_same_everywhere(path: str) -> None:
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    flags = re.MULTILINE | (re.DOTALL if path == "CHANGELOG.md" else 0)
    found = re.findall(PLACES[path], text, flags)
    assert found and set(found) == {__version__}, f"{path} has {found}, laggard is {__version__}"


def test_the_changelog_has_no_entry_that_no_version_has() -> None:
    heads = re.findall(r"^## (.*)$", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads and all(re.match(r"\d+\.\d+\.\d+: ", head) for head in heads), heads


@pytest.mark.slow
def test_manual_and_completion_have_every_command(tmp_path: Path) -> None:
    pytest.importorskip("shtab", reason="needs shtab and argparse-manpage (scripts/setup installs them)")
    pytest.importorskip("argparse_manpage", reason="needs argparse-manpage (scripts/setup installs it)")
    words = [sys.executable, REPOSITORY / "scripts" / "release.py", "--out", tmp_path, "manual", "completion"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "laggard.1").read_text().replace("\\-", "-")
    for command in (*COMMANDS, *PARTS):
        assert f"{command.name}" in page and command.help in page, command.name
    assert "--gate" in page, "flags of the commands are there, too"
    bash = tmp_path / "laggard.bash"
    asked = f"source {bash}; COMP_WORDS=(laggard inc); COMP_CWORD=1; _shtab_laggard; echo ${{COMPREPLY[@]}}"
    assert subprocess.run(["bash", "-c", asked], capture_output=True, text=True).stdout.split() == ["incidents"]


SCRIPT = REPOSITORY / "scripts" / "wheelhouse.py"
NO_INDEX = re.compile(r"No matching distribution|Could not find a version|[Cc]onnection|timed out")
SECONDS = 600

WITHOUT_SETTINGS = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHONPATH"))},
    "PIP_CONFIG_FILE": os.devnull,
}
"""An environment in which pip knows no other place than those that it is told of."""

WITHOUT_MAKE = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
"""An environment in which make is not one of another's."""


def wheelhouse(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("air-gap") / "wheelhouse"
    done = wheelhouse("--out", out)
    if done.returncode and NO_INDEX.search(done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    assert f"pip install --no-index --find-links {out.name} --require-hashes -r {out.name}/all.txt" in done.stdout
    return out


def cut_off(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the words in a network namespace of their own, where this user may make one."""
    alone = ["unshare", "-n"] if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0 else []
    return subprocess.run(
        [*alone, *words], capture_output=True, text=True, timeout=SECONDS, cwd=folder, env=WITHOUT_SETTINGS
    )


def install(made: Path, environment: Path, requirements: str) -> subprocess.CompletedProcess[str]:
    """Makes an environment of the same Python, and installs there as the page says."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=SECONDS)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install")
    words = ("--no-index", "--find-links", made.name, "--require-hashes", "-r", f"{made.name}/{requirements}")
    return cut_off(*pip, *words, folder=made.parent)


@pytest.mark.slow
def test_it_suffices_without_a_network(made: Path, tmp_path: Path) -> None:
    done = install(made, tmp_path / "all", "all.txt")
    assert done.returncode == 0, done.stderr
    laggard = tmp_path / "all" / "bin" / "laggard"
    assert cut_off(laggard, "--version", folder=tmp_path).stdout == f"laggard {__version__}\n"
    judged = cut_off(laggard, "healthcheck", folder=tmp_path)
    assert judged.returncode in (0, 1, 2) and judged.stdout.startswith("laggard: "), judged
    assert cut_off(laggard, "collector", "--check-config", folder=tmp_path).returncode == 0, "the collector's packages"
    pinned = {name: (made / name).read_text().splitlines() for name in ("agent.txt", "all.txt")}
    assert all(re.fullmatch(r"[\w.-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in pinned["all.txt"])
    assert set(pinned["agent.txt"]) < set(pinned["all.txt"]), "one version of each, in both"
    assert len(list(made.glob("*.whl"))) == len(pinned["all.txt"])


def another_python() -> str:
    """A Python of the page's version that runs here, else this one."""
    inside = sorted((Path.home() / ".pyenv" / "versions").glob("3.12.*/bin/python3.12"))
    for program in (shutil.which("python3.12"), *map(str, inside)):
        if program and subprocess.run([program, "-c", "import venv"], capture_output=True).returncode == 0:
            return program
    return sys.executable


@pytest.mark.slow
def test_make_makes_it_for_another_python(tmp_path: Path) -> None:
    """By the command of docs/operate.md, in a copy of this repository, whose environment is this one."""
    (line,) = (it for it in command_lines(REPOSITORY / "docs" / "operate.md") if it.text.startswith("make wheelhouse"))
    source, python = tmp_path / "source", another_python()
    left_out = shutil.ignore_patterns(".*", "out", "build", "dist", "tests", "bench", "__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY, source, symlinks=True, ignore=left_out)
    (source / ".venv").symlink_to(Path(sys.prefix))
    (source / "scripts" / "setup").write_text("#!/bin/sh\n")  # which would make that environment
    words = [*shlex.split(line.text.replace("python3.12", python))]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=SECONDS, env=WITHOUT_MAKE)
    if done.returncode and NO_INDEX.search(done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    version = subprocess.run([python, "-c", "import sys; print('%d%d' % sys.version_info[:2])"], capture_output=True)
    wheels = [path.name for path in (source / "dist" / "wheelhouse").glob("*.whl")]
    compiled = [name for name in wheels if name.startswith("msgspec-")]
    assert len(compiled) == 1 and f"-cp{version.stdout.decode().strip()}-" in compiled[0], wheels


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3 9\n")
    old.chmod(0o755)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    cases = {
        ("--python", str(old)): f"wheelhouse: {old} is Python 3.9, and laggard needs 3.10 to 3.13: --python PROGRAM\n",
        ("--python", "/nowhere/python3"): "wheelhouse: /nowhere/python3 is no Python that runs here: ",
        ("--out", str(tmp_path / "full")): f"wheelhouse: {tmp_path / 'full'} is not empty: remove it, or name another",
    }
    for words, said in cases.items():
        done = wheelhouse(*words)
        assert done.returncode == 1 and done.stderr.startswith(said) and done.stderr.count("\n") == 1, done


def test_a_link_is_switched_without_a_moment_in_which_laggard_is_gone(tmp_path: Path) -> None:
    """By the command of docs/operate.md, again and again, while prologs would start it."""
    (command,) = (
        line.text
        for line in command_lines(REPOSITORY / "docs" / "operate.md")
        if line.text.startswith("ln -s laggard-NEW")
    )
    for name in ("laggard-NEW", "laggard-OLD"):
        (tmp_path / name / "bin").mkdir(parents=True)
        program = tmp_path / name / "bin" / "laggard"
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
    new = command.replace("/opt", str(tmp_path))
    old = new.replace("laggard-NEW", "laggard-OLD")
    subprocess.run(["sh", "-c", new], check=True, timeout=SECONDS)
    switching = subprocess.Popen(["sh", "-c", f"while [ ! -e stop ]; do {old}; {new}; done"], cwd=tmp_path)
    try:
        for _ in range(200):
            subprocess.run([tmp_path / "laggard" / "bin" / "laggard"], check=True, timeout=SECONDS)
    finally:
        (tmp_path / "stop").touch()
        switching.wait(SECONDS)
    assert (tmp_path / "laggard").is_symlink() and not (tmp_path / "laggard" / "laggard.next").exists()
