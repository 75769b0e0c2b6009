"""What the parts share: the fresh system, this repository in it, the packages for pip, the documents' commands, and a
training whose second rank is slow."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import TracebackType

from install_check_parts.fresh_root import FreshRoot

SLOW_RANK = 1
LAGGARD = "/opt/laggard/bin/laggard"


def wheels(repository: Path, cache: Path) -> Path:
    """A folder with all that `pip install '.[collector]'` takes, so that it works without a network."""
    folder = cache / "wheels"
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder]
    subprocess.run(
        [*words, f"{repository}[collector]", "setuptools>=77", "wheel"], check=True, stderr=subprocess.DEVNULL
    )
    for path in folder.glob("laggard-*.whl"):
        path.unlink()
    return folder


def commands(page: Path, heading: str) -> list[str]:
    """The code blocks under a heading of a page, in their order."""
    section = re.split(rf"^#+ {re.escape(heading)}$", page.read_text(), flags=re.MULTILINE)
    if len(section) != 2:
        sys.exit(f"install-check: {page} has no heading {heading!r}")
    text = re.split(r"^#+ ", section[1], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, flags=re.MULTILINE)
    return [textwrap.dedent(block).strip() for block in blocks]


class Site:
    """`/source` is a copy of this repository, as somebody who cloned it has it."""

    def __init__(self, repository: Path, folder: Path, archive: Path, fetched: Path) -> None:
        self.repository, self.page = repository, repository / "docs" / "install.md"
        self._folder, self._fetched = folder, fetched
        root = folder / "root"
        root.mkdir()
        # The environment that trains: this repository's own, as it lies here.
        self._trains = repository / ".venv"
        self._binds = (repository, fetched, Path(sys.base_prefix))
        self.root = FreshRoot(root, archive, self._binds)
        self._put_source()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.root.close()

    def _put_source(self) -> None:
        source = self.root.folder / "source"
        source.mkdir()
        files = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=self.repository, capture_output=True, check=True
        ).stdout
        pack = ["tar", "--null", "--files-from=-", "-cf", "-"]
        packed = subprocess.run(pack, cwd=self.repository, input=files, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-C", source, "--no-same-owner", "-xf", "-"], input=packed, check=True)
        pip = f"[global]\nno-index = true\nfind-links = {self._fetched}\ndisable-pip-version-check = true\n"
        (self.root.folder / "etc" / "pip.conf").write_text(pip)
        hosts = self.root.folder / "etc" / "hosts"
        hosts.write_text(hosts.read_text() + "127.0.0.1 node1\n" if hosts.exists() else "127.0.0.1 localhost node1\n")

    def follow(self, heading: str, number: int = 0, page: Path | None = None) -> None:
        """Runs a code block of a page in the fresh system, as it stands there."""
        block = commands(page or self.page, heading)[number]
        print(textwrap.indent(block, "  $ "), flush=True)
        self.root.run(block, folder="/source")

    def show(self, command: str, words: str) -> str:
        """Asks until `words` are in the answer. Prints the answer's first line."""
        said = self.root.wait_for(command, words)
        print(f"  $ {command}\n    {said.strip().splitlines()[0][:160]}", flush=True)
        return said

    def train(self) -> None:
        """Starts a training of a user who is not root, as docs/install.md starts one."""
        script = self.repository / "bench" / "trainings" / "ddp.py"
        self.root.run("useradd --create-home trainer; chmod o+x /root")  # below which this machine's Python may lie
        (self.root.folder / "home" / "trainer" / "train.sh").write_text(
            textwrap.dedent(f"""\
                export PATH={self._trains}/bin:$PATH HOME=/home/trainer GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
                export PYTHONDONTWRITEBYTECODE=1
                torchrun --no-python --nproc-per-node 3 bash -c '
                    exec laggard run {script} $([ $RANK = {SLOW_RANK} ] && echo 0.2 || echo 0.05)'
                """)
        )
        self.root.run("nohup bash ~trainer/train.sh >~trainer/log 2>&1 </dev/null &", user="trainer")

    def wait_for_culprit(self) -> None:
        """Waits until the collector names the slow rank of the training."""
        command = f"{LAGGARD} locate || true; tail -n 5 ~trainer/log >&2"
        self.show(command, f"Rank {SLOW_RANK} on ")

    def expect_calm_logs(self) -> None:
        """No daemon started twice or wrote a traceback."""
        logs = self.root.run("journalctl -u 'laggard-*' --no-pager -o cat").stdout
        restarts = self.root.run("systemctl show -p NRestarts laggard-agent laggard-collector laggard-reader").stdout
        if "Traceback" in logs or set(restarts.split()) != {"NRestarts=0"}:
            sys.exit(f"install-check: {restarts}\n{logs[-4000:]}")

    def traces(self) -> list[str]:
        """The paths that have laggard's name, but for this repository and logs."""
        left_out = ("/source", "/proc", "/sys", "/home", "/var/log", *map(str, self._binds))
        pruned = " -o ".join(f"-path {path}" for path in left_out)
        found = self.root.run(f"find / \\( {pruned} \\) -prune -o -name '*laggard*' -print", check=False).stdout
        return sorted(found.split())
