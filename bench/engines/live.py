"""An agent and a collector beside the jobs, as they are deployed: what is said of a job while it runs."""

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

LAGGARD = (sys.executable, "-m", "laggard")


class Live:
    """One pair for all jobs, whose ranks write into `ranks`."""

    def __init__(self, folder: Path) -> None:
        self.ranks = folder / "ranks"
        self.ranks.mkdir()
        self._daemons: list[subprocess.Popen[str]] = []
        self._folder = folder
        try:
            agent = self._start("agent", "--node", "n0", "--rank-dir", str(self.ranks))
            self._collector = self._start("collector", "--target", agent.removeprefix("http://"))
        except BaseException:
            self.close()
            raise

    def _start(self, *words: str) -> str:
        command = [*LAGGARD, *words, "--web.listen-address", "127.0.0.1:0"]
        environment = {**os.environ, "LAGGARD_STATE_DIR": str(self._folder / "state")}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._daemons.append(process)
        assert process.stderr is not None
        found = re.search(r"listening on (http\S+)", process.stderr.readline())
        assert found, f"{words[0]} did not start"
        return found[1]

    def location(self, job: str) -> dict[str, Any]:
        """The verdict on the job; `{"error"}` where the collector knows of none."""
        try:
            with urllib.request.urlopen(f"{self._collector}/api/v1/location?fresh=1&job={job}", timeout=30) as answer:
                document: dict[str, Any] = json.load(answer)
                return document
        except (OSError, ValueError) as error:
            return {"error": str(error)}

    def close(self) -> None:
        for process in self._daemons:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()
