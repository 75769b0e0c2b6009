"""A worker as its supervisor sees it: a process, a pipe for commands, a pipe for reports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Final

from laggard.kit.processes import own_process
from laggard.nccl.private_log import PrivateLog, prepare_log
from laggard.rings import messages
from laggard.rings.messages import Command, Report
from laggard.wire import WireError

_KEPT_OUTPUT: Final = 1 << 16
_MODULE: Final = "laggard.rings.worker.main"


class WorkerEnded(Exception):
    """The worker's process is gone, or what it says is no report. The text says how."""


class WorkerProcess:
    """A started worker. What it and its libraries print goes to a file without a name: standard output is the
    document's, and only the end of the file is of use, where the worker dies."""

    def __init__(
        self, process: subprocess.Popen[bytes], output: int, commands: int, reports: int, log: PrivateLog | None
    ) -> None:
        self._log = log
        self._process, self._output, self._commands, self._reports = process, output, commands, reports
        self._reader: asyncio.StreamReader | None = None
        self._transport: asyncio.ReadTransport | None = None

    @classmethod
    def start(cls, device: str, local_rank: int, environ: Mapping[str, str]) -> WorkerProcess:
        with tempfile.TemporaryFile() as file:
            output = os.dup(file.fileno())
        own, log = (dict(environ), None) if device == "cpu" else _with_nccl_log(environ)  # gloo logs nothing
        commands_in, commands_out = os.pipe()
        reports_in, reports_out = os.pipe()
        words = (str(commands_in), str(reports_out), str(os.getpid()), device, str(local_rank))
        process = subprocess.Popen(
            own_process(_MODULE, *words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=own,
            pass_fds=(commands_in, reports_out),
        )
        os.close(commands_in)
        os.close(reports_out)
        return cls(process, output, commands_out, reports_in, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def report(self) -> Report:
        """Waits for the next report. Raises WorkerEnded."""
        if self._reader is None:
            self._reader = asyncio.StreamReader(limit=messages.MAX_BYTES)
            file = os.fdopen(self._reports, "rb", buffering=0)
            protocol = asyncio.StreamReaderProtocol(self._reader)
            self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
        try:
            data = await self._reader.readline()
            if data:
                return messages.read_report(data)
        except (ValueError, WireError) as error:
            raise WorkerEnded(f"its report cannot be read: {error}") from None
        raise WorkerEnded(await self._how_it_ended())

    def command(self, command: Command) -> None:
        with contextlib.suppress(BrokenPipeError):  # its end is told by report()
            os.write(self._commands, messages.line(command))

    def signal_kill(self) -> None:
        """Has the kernel end the process, whatever it is in."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def kill(self) -> None:
        """Ends the process, whatever it is in, and waits for it."""
        self.signal_kill()
        self._process.wait()
        for descriptor in (self._commands, self._output):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self._transport is not None:
            self._transport.close()
        if self._log is not None:
            self._log.remove()
            shutil.rmtree(os.path.dirname(self._log.folder), ignore_errors=True)

    async def _how_it_ended(self) -> str:
        status = await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
        if status < 0:
            return f"its process was ended by {signal.Signals(-status).name}"
        last = self.last_line()
        return f"its process ended with status {status}" + (f": {last}" if last else "")

    def last_line(self) -> str:
        """The last line that the worker or a library printed."""
        size = os.fstat(self._output).st_size
        data = os.pread(self._output, _KEPT_OUTPUT, max(0, size - _KEPT_OUTPUT))
        lines = data.decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""


def _with_nccl_log(environ: Mapping[str, str]) -> tuple[dict[str, str], PrivateLog | None]:
    """Returns the environment with NCCL's log directed to a file for this ring alone; what NCCL logs changes nothing of
    what it does. None: the user's nccl.conf has a log of its own, or there is no room for one."""
    own = {name: value for name, value in environ.items() if name not in ("NCCL_DEBUG", "NCCL_DEBUG_FILE")}
    folder = tempfile.mkdtemp(prefix="laggard-ring-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    log = prepare_log(own, folder)
    if log is None:
        shutil.rmtree(folder, ignore_errors=True)
    return own, log
