"""Installs the tools that are run as they ship, each in a folder of its own, which only its process sees.

    python bench/quality/tools/shipped/environments.py      all that lack, and where each lies

fr_trace is a part of the torch that the benchmark runs with. Versions are pinned here, and stand in
docs/compared.md, which a test compares."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[4]
FOLDER: Final = REPOSITORY / "out" / "tools"
INSTALL_SECONDS: Final = 900
"""The longest time that one installation may take."""


class Environment(NamedTuple):
    """`requirements` are pip's, of a package that is on PyPI; `packages`: whether what they depend on comes, too.
    `repository` and `commit`: where a part is taken from that no release on PyPI has; `file`: all that is taken of it,
    of a whole commit's name. `beside`: files that its process finds, below the folder."""

    name: str
    version: str
    requirements: tuple[str, ...] = ()
    packages: bool = True
    repository: str = ""
    commit: str = ""
    beside: str = ""
    file: str = ""

    @property
    def folder(self) -> Path:
        return FOLDER / f"{self.name}-{self.version}"

    @property
    def paths(self) -> tuple[str, ...]:
        """What its process finds modules in, before those of the benchmark."""
        return (str(self.folder / self.beside),) if self.is_made_here else ()

    @property
    def is_made_here(self) -> bool:
        return bool(self.requirements or self.repository)

    def is_there(self) -> bool:
        return not self.is_made_here or (self.folder / "installed").exists()


def torch_version() -> str:
    """The version of the torch that is installed, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return "none"


NVRX_REPOSITORY: Final = "https://github.com/NVIDIA/nvidia-resiliency-ext"
TORCH: Final = Environment("torch", torch_version(), ("tabulate==0.9.0",))
"""The benchmark's own torch, with what its tutorial of the Flight Recorder asks for besides."""
NVRX: Final = Environment("nvidia-resiliency-ext", "0.4.1", ("nvidia-resiliency-ext==0.4.1",), packages=False)
"""Without what it depends on: its scores need torch alone, which is the benchmark's."""
NVRX_NEWEST: Final = Environment(
    "nvidia-resiliency-ext-main", "d8686d9", repository=NVRX_REPOSITORY,
    commit="d8686d9", beside="src",
)  # fmt: skip
TRACEML: Final = Environment("traceml-ai", "0.5.0", ("traceml-ai==0.5.0",))
DLROVER: Final = Environment("dlrover", "0.6.1", ("dlrover[k8s]==0.6.1",))
"""With the extra of its master, without which its modules cannot be imported."""
MEGATRON: Final = Environment(
    "megatron-lm", "5e034bf", repository="https://github.com/NVIDIA/Megatron-LM",
    commit="5e034bf2c9dfc6254ec6a978161b74cc70cf9fbe", file="megatron/training/gpu_sniff_test.py",
)  # fmt: skip
"""One file of the repository: its package on PyPI, megatron-core, has no training loop."""
ENVIRONMENTS: Final = (TORCH, NVRX, NVRX_NEWEST, TRACEML, DLROVER, MEGATRON)


class CannotInstall(Exception):
    """An environment could not be made; the text says why."""


def install(environment: Environment) -> Path:
    """Makes the environment, if it is not there, and returns its folder. LAGGARD_BENCH_GIT names another place of the
    repositories, such as a folder of clones. Raises CannotInstall."""
    if environment.is_there():
        return environment.folder
    making = environment.folder.with_name(f"{environment.folder.name}.{os.getpid()}")
    making.parent.mkdir(parents=True, exist_ok=True)
    try:
        for words in _commands(environment, making):
            _run(words)
        (making / "installed").write_text(f"{environment.version}\n")
        shutil.rmtree(environment.folder, ignore_errors=True)
        making.rename(environment.folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return environment.folder


def _commands(environment: Environment, folder: Path) -> Iterable[list[str]]:
    if environment.requirements:
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        words += ["--target", str(folder)] + ([] if environment.packages else ["--no-deps"])
        yield [*words, *environment.requirements]
    if environment.repository:
        source = os.environ.get("LAGGARD_BENCH_GIT", "")
        repository = f"{source}/{environment.repository.rpartition('/')[2]}" if source else environment.repository
        if environment.file:
            git = ["git", "-C", str(folder)]
            yield ["git", "init", "--quiet", str(folder)]
            yield [*git, "fetch", "--quiet", "--depth", "1", repository, environment.commit]
            yield [*git, "checkout", "--quiet", environment.commit, "--", environment.file]
            return
        yield ["git", "clone", "--quiet", "--no-checkout", repository, str(folder)]
        yield ["git", "-C", str(folder), "checkout", "--quiet", environment.commit]


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"{words[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[-1]
        raise CannotInstall(f"{' '.join(words[:4])} ...: {last}")


def main() -> int:
    failed = 0
    for environment in ENVIRONMENTS:
        try:
            place = install(environment) if environment.is_made_here else "the benchmark's own"
        except CannotInstall as why:
            failed, place = 1, f"not installed: {why}"
        print(f"{environment.name} {environment.version}: {place}")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
