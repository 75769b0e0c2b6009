"""A benchmark, run as a user runs it, for its test: bounded in time, and with nothing left behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import psutil

BENCH = Path(__file__).resolve().parents[1]
_TOKEN = "LAGGARD_BENCH_RUN"
_INTERRUPTED_SECONDS = 60.0
"""The time that a benchmark has for its end once it was interrupted."""


class Ended(NamedTuple):
    """What a benchmark printed. `out` and `errors`: standard output and standard error."""

    status: int
    out: str
    errors: str

    @property
    def rows(self) -> dict[str, list[str]]:
        """The tables' rows: by the first cell the others. Of rows with the same name it is the first."""
        lines = [line.strip().strip("|").split("|") for line in self.out.splitlines() if line.startswith("| ")]
        return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in reversed(lines)}

    def row(self, beginning: str) -> list[str]:
        """The cells of the row of this name, or of the one row whose name begins so."""
        if beginning in self.rows:
            return self.rows[beginning]
        found = [cells for name, cells in self.rows.items() if name.startswith(beginning)]
        assert len(found) == 1, f"{len(found)} rows begin with {beginning!r}: {self}"
        return found[0]

    def value(self, beginning: str, unit: str, place: int = 0) -> float:
        """The number in a cell of that row, which has this unit."""
        cell = self.row(beginning)[place]
        found = re.fullmatch(rf"([\d.,e+-]+) ?{re.escape(unit)}", cell)
        assert found, f"{cell!r} is no number of {unit or 'no unit'}: {self}"
        return float(found[1].replace(",", ""))


class Run:
    """A benchmark's process, in a folder of its own: `folder/scratch` is where its temporary files go."""

    def __init__(self, folder: Path, script: str, words: tuple[Any, ...], environ: dict[str, str]) -> None:
        self.script, self._folder, self._token = script, folder, uuid.uuid4().hex
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        command = [sys.executable, BENCH / f"{script}.py", *words]
        own = {"TMPDIR": str(self.scratch), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"), _TOKEN: self._token}
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in command], cwd=folder, env={**os.environ, **own, **environ},
                stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True,
            )  # fmt: skip
        self._pids = {self.process.pid}

    def printed(self) -> Ended:
        out, errors = ((self._folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return Ended(self.process.poll() or 0, out, errors)

    def wait(self, seconds: float) -> Ended:
        """What it printed, once it has ended. One that takes longer is interrupted, and fails the test."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self.children()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_INTERRUPTED_SECONDS)
            raise AssertionError(f"{self.script} takes longer than {seconds:.0f} s: {self.printed()}")
        return self.printed()

    def children(self) -> list[psutil.Process]:
        """All that it has started, whoever their parent is by now."""
        found = [process for process in psutil.process_iter() if self._is_own(process)]
        self._pids.update(process.pid for process in found)
        return found

    def running(self, words: str) -> int:
        """How many of these have the words in their command."""
        count = 0
        for process in self.children():
            with contextlib.suppress(psutil.Error):
                count += words in " ".join(process.cmdline())
        return count

    def _is_own(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            return process.pid != self.process.pid and process.environ().get(_TOKEN) == self._token
        return False

    def left_behind(self, seconds: float = 30.0) -> list[str]:
        """What is there after so many seconds, since it ended: processes, network namespaces, files, mounts."""
        deadline = time.monotonic() + seconds
        while (found := [*self._processes(), *self._namespaces(), *self._files()]) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _processes(self) -> list[str]:
        found = []
        for process in self.children():
            with contextlib.suppress(psutil.Error):
                found.append(f"process {process.pid}: {' '.join(process.cmdline())[:200]}")
        return found

    def _namespaces(self) -> list[str]:
        """Those whose names have the number of a process of it: support/namespaces.py and the demo make such."""
        found = (re.match(r"(?:lg|laggard)(\d+)[x-]", path.name) for path in Path("/run/netns").glob("l*g*"))
        numbers = {pid % 100_000 for pid in self._pids} | self._pids
        return [f"namespace {each.string}" for each in found if each and int(each[1]) in numbers]

    def _files(self) -> list[str]:
        return [f"file {path}" for path in self.scratch.iterdir()]

    def end(self) -> None:
        """Kills what is there yet."""
        for process in (*self.children(), self.process):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process.kill()
        self.process.wait()
        for line in self._namespaces():
            subprocess.run(["ip", "netns", "delete", line.partition(" ")[2]], capture_output=True)
