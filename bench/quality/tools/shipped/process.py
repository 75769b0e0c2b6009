"""A tool that runs as it ships: its process, what it is given, and what it answers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quality.answer import Named, NotAsked
from quality.tools.shipped.environments import Environment

DRIVERS: Final = Path(__file__).parent / "drivers"
ANSWER_SECONDS: Final = 120.0
"""The longest time that a tool may take for one case, its start included; then it has failed in it, and is started
anew."""

Request = dict[str, Any]
_running: dict[str, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Shipped:
    """Asks a tool of an environment. `request` makes of a recording what the driver is given, None: there is nothing
    that the tool could read, and it is not asked. `driver` is the name of a file in drivers/, which runs in the tool's
    process and knows its interface. `dumps`: it reads torch's dumps, which a job leaves that has stopped."""

    environment: Environment
    driver: str
    request: Callable[[Path], Request | None]
    dumps: bool = False

    def __call__(self, trace: Path) -> list[Named]:
        request = self.request(trace)
        if request is None:
            raise NotAsked(f"nothing there that {self.environment.name} reads")
        answer = self.ask(request)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return [
            Named(one["kind"], tuple(one["ranks"]), (), one.get("phase"), one.get("recoverable"))
            for one in answer["named"]
        ]

    def ask(self, request: Request) -> dict[str, Any]:
        """Returns the driver's answer: `named`, or the `error` that the tool ended with."""
        process = self._process()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()
        limit = threading.Timer(ANSWER_SECONDS, _end, (process, late))
        limit.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = b""
        finally:
            limit.cancel()
        if not line:
            self.close()
            return {"error": f"no answer within {ANSWER_SECONDS:.0f} s" if late.is_set() else "its process ended"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the tool's process, if it runs."""
        process = _running.pop(self.driver, None)
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()
        process.communicate()

    def _process(self) -> subprocess.Popen[bytes]:
        process = _running.get(self.driver)
        if process is None or process.poll() is not None:
            words = [sys.executable, "-P", str(Path(__file__).with_name("worker.py")), str(DRIVERS / self.driver)]
            paths = os.pathsep.join(self.environment.paths)
            process = subprocess.Popen(
                words,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            _running[self.driver] = process
        return process


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    """Ends a process that takes too long: whoever writes to it or reads from it goes on."""
    late.set()
    with contextlib.suppress(OSError):
        process.kill()


def close_all() -> None:
    """Ends the processes of all tools that this process has asked."""
    for driver in list(_running):
        process = _running.pop(driver)
        with contextlib.suppress(OSError):
            process.kill()
        process.communicate()
