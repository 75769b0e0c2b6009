"""A collector, one agent, and the ranks of real jobs on this machine, each a process of its own."""

import json
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.daemons import Daemon, laggard
from support.paths import DEMO_TRAINING
from support.ports import free_port
from support.waiting import wait_for
from support.warm import Warm, WarmProcess


class Cluster:
    """A collector, one agent, and the ranks of a job on this machine, which `warm` starts."""

    def __init__(
        self,
        folder: Path,
        warm: Warm,
        interval: str = "0.5",
        agent: Sequence[str] = (),
        collector: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.warm = warm
        self.processes: list[subprocess.Popen[bytes] | WarmProcess] = []
        (folder / "calm.yaml").write_text("skip: [cpu_speed]\n")  # other tests keep the processors busy
        own = ("--node", "n0", "--rank-dir", str(folder / "ranks"), "--profile", str(folder / "calm.yaml"))
        self.agent = self.daemon("agent", *own, *agent)
        target = self.agent.removeprefix("http://")
        self.collector = self.daemon("collector", "--interval", interval, "--target", target, *collector)

    def daemon(self, name: str, *words: str) -> str:
        environ = {"LAGGARD_STATE_DIR": str(self.folder / name)}
        started = Daemon(self.folder / f"{name}.log", (name, *words), environ)
        self.processes.append(started.process)
        return started.url

    def train(
        self, ranks: int, *words: str, script: Path = DEMO_TRAINING, extra: dict[str, str] | None = None
    ) -> list[WarmProcess]:
        common = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "LAGGARD_RANK_DIR": str(self.folder / "ranks"),
            "LAGGARD_JOB_ID": "job",
            **(extra or {}),
        }
        own = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        started = [self.warm.start(["-m", "laggard", "run", script, *words], environment) for environment in own]
        self.processes += started
        return started

    def location(self) -> dict[str, Any]:
        return self.get(f"{self.collector}/api/v1/location?fresh=1")

    def ranks(self) -> list[dict[str, Any]]:
        """The agent's rows about its ranks."""
        rows: list[dict[str, Any]] = self.get(f"{self.agent}/api/v1/ranks")["ranks"]
        return rows

    @staticmethod
    def get(url: str) -> dict[str, Any]:
        with urllib.request.urlopen(url, timeout=300) as answer:
            document: dict[str, Any] = json.load(answer)
            return document

    def locate(self, *words: str) -> subprocess.CompletedProcess[str]:
        return laggard("locate", "--collector", self.collector, *words)

    def locate_trace(self, path: Path) -> subprocess.CompletedProcess[str]:
        return laggard("locate", "--trace", path)

    def until(self, condition: Any, seconds: float = 300.0) -> dict[str, Any]:
        """The first location for which `condition` holds."""
        seen: list[dict[str, Any]] = []
        wait_for(lambda: seen.append(self.location()) or condition(seen[-1]), lambda: seen[-1], seconds)
        return seen[-1]

    def until_rows(self, condition: Any, seconds: float = 300.0) -> list[dict[str, Any]]:
        """The agent's first rows for which `condition` holds."""
        seen: list[list[dict[str, Any]]] = []
        wait_for(lambda: seen.append(self.ranks()) or condition(seen[-1]), lambda: (seen[-1], self.ended()), seconds)
        return seen[-1]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()

    def ended(self) -> list[str]:
        """The exit status and last output of the processes that have ended."""
        over = [process for process in self.processes if process.poll() is not None]
        return [f"{process.returncode}: {(process.stderr.read() if process.stderr else '')[-500:]}" for process in over]
