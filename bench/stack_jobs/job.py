"""A training's processes, from their start to the end that is made of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from stack_jobs.cases import HEALTHY, HUNG, SLOW, USER, Case

STACKS_SECONDS = 6
"""After so long a standstill a rank takes its stacks."""
STANDS_SECONDS = 60.0
"""A job is killed so long after its rank began to hang."""
LIMIT_SECONDS = 240.0
"""Of a job."""
STEPS = {SLOW: 100, HUNG: 400, HEALTHY: 140}


class Job:
    """A job's processes: the launcher, and all that have this job's folder in their environment."""

    def __init__(self, case: Case, folder: Path, address: str) -> None:
        self.case, self.folder, self.mark = case, folder, folder / "mark"
        environment = {
            **os.environ,
            "REVIEWS_FAULT": case.fault,
            "REVIEWS_VICTIM": str(case.victim),
            "REVIEWS_STEPS": str(STEPS[case.kind]),
            "REVIEWS_WORKERS": str(case.workers),
            "REVIEWS_MARK": str(self.mark),
            "REVIEWS_FOLDER": str(folder),
            "REVIEWS_SERVER": address,
            "LAGGARD_RANK_DIR": str(folder / "ranks"),
            "LAGGARD_STACKS": str(STACKS_SECONDS),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCH_EXTENSIONS_DIR": str(folder / "torch_extensions"),
            "TMPDIR": str(folder),
        }
        torchrun = Path(sys.executable).with_name("torchrun")
        words = [sys.executable, "-P", "-m", "laggard", "run", "--record", str(folder / "recording"), str(torchrun)]
        words += ["--standalone", "--nproc-per-node", str(case.ranks), str(USER / "train.py"), case.engine]
        with (folder / "output").open("w") as output:
            self.launcher = subprocess.Popen(
                words, env=environment, stdout=output, stderr=output, cwd=folder, start_new_session=True
            )

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("REVIEWS_FOLDER") == str(self.folder):
                    found.append(process)
        return found

    def watch(self, before_the_end: Callable[[], None]) -> str:
        """Waits until the job has ended, or has to be killed, which `before_the_end` is told, and says which."""
        began, befell = time.monotonic(), 0.0
        while self.launcher.poll() is None:
            now = time.monotonic()
            befell = befell or (now if self.mark.exists() else 0.0)
            if befell and now - befell > STANDS_SECONDS:
                before_the_end()
                return self.kill()
            if now - began > LIMIT_SECONDS:
                return "too long"
            time.sleep(0.25)
        return f"ended with {self.launcher.returncode}"

    def kill(self) -> str:
        """Kills a job that hangs as the case has it."""
        if self.case.kill == signal.SIGKILL:
            self.end()
            return "killed by SIGKILL"
        self.launcher.terminate()
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.launcher.wait(45)
        return f"killed by SIGTERM, {time.monotonic() - began:.0f} s"

    def end(self) -> None:
        """Kills all that is left."""
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.launcher.wait(30)
        psutil.wait_procs(left, timeout=10)
