"""A small site on this machine: two agents, a collector that keeps incidents on a small disk, a job, a Prometheus, and
where its programs are here a Kubernetes control plane with laggard's controller."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from support.chart import rendered
from support.control_plane import ControlPlane
from support.ports import free_port
from support.warm import Warm, WarmProcess

from soaking.clocks import Clock
from soaking.daemons import LAGGARD, Daemon

JOB = Path(__file__).resolve().parents[1] / "trainings" / "ddp.py"
RANKS, SLOW_RANK = 3, 1
PACE, SLOW_PACE = "0.08", "0.2"
DISK_BYTES = 8 << 20
FORGET_SECONDS = 120.0
"""A job that ended is forgotten after this, not after a quarter of an hour: then what the collector holds is level."""
_JOB_SECONDS = 300.0


class Site:
    """`agents[0]` has the job's ranks, and is killed now and then. `agents[1]` lives from the beginning to the end, as
    the collector does once it has been killed."""

    def __init__(self, folder: Path, kubernetes: bool) -> None:
        self.folder = folder
        self.ranks_folder, self.disk = folder / "ranks", folder / "disk"
        self.ranks_folder.mkdir()
        self.disk.mkdir()
        size = f"size={DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "laggard-soak", str(self.disk)], check=True)
        self.database = self.disk / "incidents.sqlite"
        self.warm = Warm("torch", "torch.distributed", "torch._dynamo")
        self.job, self.jobs = "", 0
        self.ranks: list[WarmProcess] = []
        self.clocks = Clock(folder / "clock-of-node"), Clock(folder / "clock-of-others")
        """The first is that of `agents[0]`, the other that of all other daemons."""
        self.turns = itertools.count()
        self.plane: ControlPlane | None = None
        self.others: list[Daemon] = []
        self.agents = [self._agent(0, self.ranks_folder), self._agent(1, folder / "other-ranks")]
        self.prometheus = self._prometheus()
        self.collector = self._collector()
        if kubernetes:
            self._controller()

    @property
    def daemons(self) -> list[Daemon]:
        """Laggard's own."""
        return [*self.agents, self.collector, *self.others]

    def _daemon(self, name: str, *words: str, path: str = "/-/ready") -> Daemon:
        port = free_port()
        command = [*LAGGARD, *words, "--web.listen-address", f"127.0.0.1:{port}"]
        state = self.folder / f"{name}-state"
        state.mkdir(exist_ok=True)
        clock = self.clocks[0 if name == "agent-0" else 1]
        environment = {"LAGGARD_STATE_DIR": str(state), **clock.environment}
        return Daemon(name, command, f"http://127.0.0.1:{port}", path, self.folder, environment)

    def _agent(self, number: int, ranks: Path) -> Daemon:
        ranks.mkdir(exist_ok=True)
        return self._daemon(f"agent-{number}", "agent", "--node", f"n{number}", "--rank-dir", str(ranks))

    def _collector(self) -> Daemon:
        config = self.folder / "collector.yaml"
        settings = {
            "targets": [it.url for it in self.agents],
            "interval_seconds": 1.0,
            "forget_after_seconds": FORGET_SECONDS,
            "prometheus": self.prometheus.url,
            "prometheus_interval_seconds": 5.0,
            "incidents_database": str(self.database),
        }
        config.write_text(json.dumps(settings))
        return self._daemon("collector", "collector", "--config", str(config))

    def _prometheus(self) -> Daemon:
        port = free_port()
        config = self.folder / "prometheus.yml"
        targets = [it.url.removeprefix("http://") for it in self.agents]
        scrape = {"job_name": "laggard-agent", "scrape_interval": "5s", "static_configs": [{"targets": targets}]}
        config.write_text(json.dumps({"scrape_configs": [scrape]}))
        url = f"127.0.0.1:{port}"
        words = [
            shutil.which("prometheus") or "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'prometheus'}",
            f"--web.listen-address={url}",
        ]
        return Daemon("prometheus", words, f"http://{url}", "/-/ready", self.folder, {})

    def _controller(self) -> None:
        folder = self.folder / "control-plane"
        folder.mkdir()
        self.plane = ControlPlane(folder)
        for number in range(len(self.agents)):
            self.plane.add_node(f"n{number}")
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(self._own_token(self.plane))
        config = self.folder / "controller.yaml"
        settings = {
            "collector": self.collector.url,
            "interval_seconds": 2.0,
            "timeout_seconds": 3.0,
            "api_server": self.plane.url,
            "token_file": str(token),
            "ca_file": str(self.plane.ca_file),
        }
        config.write_text(json.dumps(settings))
        self.others.append(self._daemon("controller", "kubernetes", "controller", "--config", str(config)))

    def _own_token(self, plane: ControlPlane) -> str:
        """The controller's, with the rights that the chart gives it."""
        environment = {**os.environ, "KUBECONFIG": str(plane.write_kubeconfig(plane.folder))}
        plane.do("POST", "/api/v1/namespaces", {"metadata": {"name": "laggard"}})
        objects = yaml.safe_dump_all(rendered())
        words = ["kubectl", "apply", "-f", "-"]
        subprocess.run(words, env=environment, input=objects, text=True, stdout=subprocess.DEVNULL, check=True)
        return plane.service_account_token("laggard", "laggard-controller")

    def nodes_without_condition(self) -> list[str]:
        """The nodes on which the controller has written nothing; none where there is no control plane."""
        names = [f"n{number}" for number in range(len(self.agents))]
        return [name for name in names if self.plane is not None and self.plane.condition(name) is None]

    def start_job(self) -> None:
        """A DDP training on gloo, of which one rank is slow in its forward pass."""
        self.end_job()
        self.jobs += 1
        self.job = f"soak-{self.jobs}"
        port = free_port()
        for rank in range(RANKS):
            about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_PORT": port}
            settings = {"LAGGARD_RANK_DIR": self.ranks_folder, "LAGGARD_JOB_ID": self.job, "MASTER_ADDR": "127.0.0.1"}
            environment = {name: str(value) for name, value in {**about, **settings}.items()}
            pace = SLOW_PACE if rank == SLOW_RANK else PACE
            words = ["-m", "laggard", "run", str(JOB), pace]
            self.ranks.append(self.warm.start(words, {**environment, "GLOO_SOCKET_IFNAME": "lo"}))

    def end_job(self) -> None:
        for rank in self.ranks:
            rank.send_signal(signal.SIGCONT)
            rank.kill()
        for rank in self.ranks:
            rank.wait(60)
        self.ranks = []

    def location(self) -> dict[str, Any]:
        """The verdict on the job; empty where the collector does not answer."""
        return self.ask(f"/api/v1/location?fresh=1&job={self.job}")

    def incidents(self) -> dict[str, Any]:
        return self.ask("/api/v1/incidents?limit=500")

    def ask(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(self.collector.url + path, timeout=30) as answer:
                document: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return document

    def wait_for(self, condition: Any, seconds: float = _JOB_SECONDS) -> bool:
        """Whether `condition` holds of the verdict within so many seconds."""
        deadline = time.monotonic() + seconds
        while not condition(self.location()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def end(self) -> None:
        """Ends the job, then the others, each whatever comes of those before it."""
        with contextlib.ExitStack() as stack:
            stack.callback(subprocess.run, ["umount", str(self.disk)], check=False)
            if self.plane is not None:
                stack.callback(self.plane.close)
            for daemon in (*self.daemons, self.prometheus):
                stack.callback(daemon.end)
            stack.callback(self.warm.close)
            stack.callback(self.end_job)
