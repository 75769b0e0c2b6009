"""A job's processes, started as users start them, and ended with all that they have started."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil
from support.ports import free_port
from support.warm import Warm, WarmProcess

from engines.catalogue import Engine

HERE = Path(__file__).parent
JOBS = HERE / "jobs"
_STARTING = threading.Lock()


def of_job(folder: Path) -> dict[str, str]:
    """The environment of a job on gloo on this machine."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", "")))),
        "DS_ACCELERATOR": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
    }


def of_rank(rank: int, ranks: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
    }  # fmt: skip


class Servers:
    """Processes that have imported what an engine needs, one for each set of modules."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, ...], Warm] = {}

    def start(self, modules: tuple[str, ...], words: Sequence[str], environment: Mapping[str, str]) -> WarmProcess:
        with _STARTING:
            if modules not in self._servers:
                self._servers[modules] = Warm(*modules)
            return self._servers[modules].start(words, environment)

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


class _Program:
    """A program of its own, with what a WarmProcess has."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._files: list[IO[str]] = [open(folder / name, "w+") for name in ("stdout", "stderr")]  # noqa: SIM115
        out, errors = self._files
        self._process = subprocess.Popen(words, env={**os.environ, **environment}, stdout=out, stderr=errors)
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self._process.wait(timeout)
        texts = []
        for file in self._files:
            with file:
                file.seek(0)
                texts.append(file.read())
        return texts[0], texts[1]


class Job:
    """The processes of one run."""

    def __init__(self, engine: Engine, environment: Mapping[str, str], hooks: bool, folder: Path, servers: Servers):
        self._servers, self._folder = servers, folder
        self._seen: dict[int, psutil.Process] = {}
        self.processes: list[Any] = []
        hooked = ["-m", "laggard", "run"] if hooks else []
        script = [str(JOBS / engine.script), *engine.arguments]
        common = {**of_job(folder), "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0", **environment}
        if engine.start == "ranks":
            for rank in range(engine.ranks):
                self._fork(engine, [*hooked, *script], common | of_rank(rank, engine.ranks))
        elif engine.start == "script":
            self._fork(engine, [*hooked, *script], common)
        elif engine.start == "torchrun":
            words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(engine.ranks)]
            words += ["--max-restarts", "1", "--no-python", sys.executable, *hooked, *script]
            self._fork(engine, words, {name: value for name, value in common.items() if not name.startswith("MASTER_")})
        else:
            mpirun = shutil.which("mpirun", path=os.path.dirname(sys.executable)) or "mpirun"
            words = [mpirun, "-n", str(engine.ranks), sys.executable, *hooked, *script]
            self.processes.append(_Program(words, common, folder))

    def _fork(self, engine: Engine, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.processes.append(self._servers.start(engine.imports, words, environment))

    def has_ended(self) -> bool:
        """Whether all processes that were started here have ended. It notes what these have started."""
        living = [process for process in self.processes if process.poll() is None]
        for process in living:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    self._seen.setdefault(child.pid, child)
        return not living

    def end(self) -> tuple[list[int], list[str], list[str]]:
        """Ends what still runs, the ranks before their launcher, which is held meanwhile: else it would end or replace
        some of them. Returns the exit statuses, and what each process printed to its output and errors."""
        if not self.has_ended():
            for process in self.processes if self._seen else ():
                self._send(process, signal.SIGSTOP)
        for child in self._seen.values():
            with contextlib.suppress(psutil.Error):
                child.kill()  # not one that has the number of a process that ended: psutil knows its start
        for process in self.processes:
            self._send(process, signal.SIGKILL)
        printed = [process.communicate(timeout=60) for process in self.processes]
        statuses = [process.poll() for process in self.processes]
        return statuses, [out for out, _ in printed], [errors for _, errors in printed]

    @staticmethod
    def _send(process: Any, number: signal.Signals) -> None:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
