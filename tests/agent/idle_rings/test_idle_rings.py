"""`laggard agent --idle-rings` on four nodes, each with processes and a /run/laggard of its own: rings that the
plans, and what ends them."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.ports import free_port

from laggard.agent.idle_rings.command import IdleRingsSettings, find_tokens
from laggard.kit.errors import UsageError
from laggard.rings.place import read_tokens

LONG = 480.0
RINGS_ON_AND_ON = {"ring_period_seconds": 1.0}
"""One ring after the other: a test on a busy machine that looked too late sees the next."""
UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL")
RUN_ALONE = """
mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/laggard /run/python || exit 1
if [ -n "$CLOSED" ]; then # the interpreter is in a folder of root's, where the ring's user may not go
    mount --bind "$PYTHON" /run/python && mount -t tmpfs -o mode=755 tmpfs "$CLOSED" &&
        mkdir -p "$PYTHON" && mount --bind /run/python "$PYTHON" || exit 1
fi
exec "$@"
"""


def interpreter() -> dict[str, str]:
    """The folder on the way to the interpreter that others may not enter, and the interpreter's own."""
    real = Path(sys.base_prefix).resolve()
    closed = [str(parent) for parent in real.parents if not parent.stat().st_mode & 0o001]
    return {"CLOSED": closed[0] if closed else "", "PYTHON": str(real)}


def can_unshare() -> bool:
    words = (*UNSHARE, "sh", "-c", RUN_ALONE, "sh", "true")
    environ = {**os.environ, **interpreter()}
    return os.geteuid() == 0 and subprocess.run(words, capture_output=True, env=environ).returncode == 0


pytestmark = pytest.mark.timeout(1200)
needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="needs root, and namespaces of mounts and processes")


def is_connected(process: psutil.Process) -> bool:
    """Whether the process is a rank that listens for another one, or has a connection to it; it has no others."""
    return "laggard.rings.worker.main" in process.cmdline() and bool(process.net_connections("tcp"))


class Node:
    """A node: its agent, and `laggard agent --idle-rings` beside it, which is process 1's only child."""

    def __init__(self, number: int, folder: Path, start_agent: Any) -> None:
        self.name, self.ranks, self.log = f"n{number}", folder / f"ranks{number}", folder / f"n{number}.log"
        self.ranks.mkdir(mode=0o1777)
        self.agent = start_agent("--rank-dir", str(self.ranks), node=self.name)
        self._settings = folder / f"n{number}.json"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, collector: str, token: Path) -> None:
        settings = {
            "collector": collector, "token_file": str(token), "node": self.name, "rank_dir": str(self.ranks),
            "device": "cpu", "user": "nobody",
        }  # fmt: skip
        self._settings.write_text(json.dumps(settings))
        command = (
            sys.executable,
            "-m",
            "laggard",
            "agent",
            "--idle-rings",
            "--config",
            str(self._settings),
            "--log.level",
            "debug",
        )
        with self.log.open("w") as log:
            words = (*UNSHARE, "sh", "-c", RUN_ALONE, "sh", *command)
            environ = {name: value for name, value in os.environ.items() if name != "LAGGARD_STATE_DIR"}
            self.process = subprocess.Popen(words, stderr=log, env={**environ, **interpreter()})

    @property
    def daemon(self) -> psutil.Process:
        assert self.process is not None
        return psutil.Process(self.process.pid).children()[0]

    def ring(self) -> list[psutil.Process]:
        """The ring's processes: its own one, and its ranks."""
        with contextlib.suppress(psutil.Error, IndexError):
            return self.daemon.children(recursive=True)
        return []

    def is_up(self) -> bool:
        return self.process is None or self.process.poll() is None

    def exchanges_data(self) -> bool:
        with contextlib.suppress(psutil.Error):
            return any(map(is_connected, self.ring()))
        return False

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    def outcomes(self) -> list[str]:
        """How its rings ended, those that a job ended left out."""
        return re.findall(r"the ring ended, (\w+)", self.log.read_text())

    def told(self) -> str:
        """The end of its log, without all questions that were answered in the same way but the last one's."""
        *lines, last = self.log.read_text().splitlines() or [""]
        return "\n".join([*[line for line in lines if "no ring is due" not in line][-30:], last])

    def takes_part(self) -> bool:
        return self.said("a ring of ")

    def read(self, path: str) -> Any:
        """A JSON file of the node's own /run."""
        return json.loads(Path(f"/proc/{self.daemon.pid}/root{path}").read_text())

    def noted(self) -> dict[str, int]:
        """How often its rings ended how."""
        with contextlib.suppress(FileNotFoundError):
            return dict(self.read("/run/laggard/rings/idle_rings.json")["rings"])
        return {}

    def last_findings(self) -> list[Any]:
        """What the last ring accuses this node of; a ring that could not judge leaves nothing."""
        with contextlib.suppress(FileNotFoundError):
            return list(self.read("/run/laggard/rings/last_ring.json")["findings"])
        return []

    def start_here(self, *command: str) -> subprocess.Popen[bytes]:
        """Starts a process that the node's own processes see."""
        return subprocess.Popen(["nsenter", "-t", str(self.daemon.pid), "--mount", "--pid", *command])

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


Cluster = Callable[..., list[Node]]


@pytest.fixture
def nodes(start_agent: Any, start_collector: Any, tmp_path: Path) -> Iterator[Cluster]:
    made: list[Node] = []
    token = tmp_path / "token"
    token.write_text("a secret of all nodes\n")
    token.chmod(0o600)
    tmp_path.chmod(0o755)

    def make(count: int, **settings: Any) -> list[Node]:
        made.extend(Node(number, tmp_path, start_agent) for number in range(count))
        own = {
            "ring_token_file": str(token),
            "ring_ask_seconds": 1.0,
            "ring_port": free_port(),
            "interval_seconds": 1.0,
        }
        config = tmp_path / "collector.json"
        config.write_text(json.dumps({**own, "incidents_database": "", **settings}))
        flags = [word for node in made for word in ("--target", node.agent.url)]
        collector = start_collector("--config", str(config), *flags)
        collector.wait_ready()
        for node in made:
            node.start(collector.url, token)
        return made

    yield make
    for node in made:
        node.stop()


def wait_until(condition: Callable[[], bool], what: str, nodes: list[Node]) -> None:
    until = time.monotonic() + LONG
    while not condition():
        logs = "".join(f"\n{node.name}: {node.told()}" for node in nodes)
        assert time.monotonic() < until and all(node.is_up() for node in nodes), what + logs
        time.sleep(0.02)


def wait_for_data(nodes: list[Node]) -> tuple[Node, list[Node]]:
    """Waits until a node exchanges data in a ring that another one leads, the first, and returns it, and the others
    that take part. Nodes measure two by two, so that there may be no moment at which all do; and a node that did not
    ask in time is done without."""
    found: list[Node] = []

    def exchanges() -> bool:
        found.extend(node for node in nodes[1:] if node.exchanges_data())
        return bool(found)

    wait_until(exchanges, "no ring began", nodes)
    here = found[0]
    others = [node for node in nodes if node is not here and node.takes_part()]
    assert others, here.told()
    return here, others


@pytest.mark.wall_clock("2026-11-25, at load 8 to 18: the ring was over before the job was seen")
@needs_namespaces
@pytest.mark.slow
@pytest.mark.parametrize("sign", ["rank file", "SLURM"])
def test_a_job_ends_the_ring_here_and_the_others_go_on(
    nodes: Cluster, start_rank: Any, tmp_path: Path, sign: str
) -> None:
    program = tmp_path / "slurmstepd"
    shutil.copy("/bin/sleep", program)
    made = nodes(4, ring_nodes=4, **RINGS_ON_AND_ON)

    def start_job(here: Node) -> Callable[[], None]:
        """Returns what ends it."""
        if sign == "rank file":
            kill: Callable[[], None] = start_rank(directory=here.ranks, job_id="train").kill
            return kill
        step = here.start_here(str(program), "1000")
        return lambda: (step.kill(), step.wait())[0]

    here, others, end_job = start_in_a_ring(made, start_job)
    try:
        assert here.ring() == []
        assert here.said("a job of SLURM" if sign == "SLURM" else "rank 0 of job train"), here.log.read_text()
        wait_until(lambda: all(len(node.outcomes()) > ended for node, ended in others), "the others did not end", made)
        wait_until(lambda: here.noted() == {**Counter(here.outcomes()), "job_came": 1}, "it was not noted", made)
        assert here.read("/run/laggard/rings/idle_rings.json")["abort_seconds"] > 0
    finally:
        end_job()
    for node, _ in others:
        failed = [it for it in node.last_findings() if it["code"] == "RING_FAILED"]
        accused = [it for it in failed if f"({here.name})" in it["device"]]
        assert not accused, "who made room for a job is not accused"


def start_in_a_ring(
    nodes: list[Node], start_job: Callable[[Node], Callable[[], None]]
) -> tuple[Node, list[tuple[Node, int]], Callable[[], None]]:
    """Starts a job on a node that measures, again with the next ring where one was over before the job was seen.
    Returns the node, the others that take part, each with how many rings it had ended before, and what ends the job."""
    while True:
        here, found = wait_for_data(nodes)
        others, before = [(node, len(node.outcomes())) for node in found], len(here.outcomes())
        end_job = start_job(here)
        wait_until(lambda: here.said("ended the ring in ") or len(here.outcomes()) > before, "the ring went on", nodes)  # noqa: B023
        if here.said("ended the ring in "):
            return here, others, end_job
        end_job()


@pytest.mark.wall_clock("2026-11-25, at load 8 to 18: the ring had ended before the test looked")
@needs_namespaces
@pytest.mark.slow
def test_nothing_stays_of_a_ring_whose_daemon_is_killed(nodes: Cluster) -> None:
    """Of the ring's processes those that were the daemon's end, and the others' rings come to their end."""
    made = nodes(3, **RINGS_ON_AND_ON)
    here, others = wait_for_data(made)
    ring: list[psutil.Process] = []

    def takes_part() -> bool:
        ring[:] = here.ring()
        return len(ring) >= 2

    wait_until(takes_part, "no ring began again", made)
    here.daemon.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, ring)), "a process outlived the daemon", others)
    wait_until(lambda: all(node.said("the ring ended") for node in others), "the others did not end", others)
    wait_until(lambda: all(node.ring() == [] for node in others), "the others measure on", others)
    assert not any(node.said("Traceback") for node in others), "a node that is gone is no defect"


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_the_file_that_the_environment_names_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("first\n")
    monkeypatch.setenv("LAGGARD_RING_TOKEN", "of the environment")
    monkeypatch.setenv("LAGGARD_RING_TOKEN_FILE", str(path))
    tokens = find_tokens(IdleRingsSettings())
    assert tokens() == read_tokens(None) == ("first",)
    path.write_text("second\nfirst\n")
    assert tokens() == read_tokens(None) == ("second", "first")
    path.unlink()
    assert tokens() == ("second", "first"), "what it said last"
    with pytest.raises(UsageError, match="LAGGARD_RING_TOKEN_FILE .* cannot be read"):
        find_tokens(IdleRingsSettings())
    monkeypatch.delenv("LAGGARD_RING_TOKEN_FILE")
    assert find_tokens(IdleRingsSettings())() == read_tokens(None) == ("of the environment",)
