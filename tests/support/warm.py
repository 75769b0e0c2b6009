"""Python processes that have torch from the start.

Torch takes some seconds of a core to import, DeepSpeed twice that, and the suite starts some hundred trainings. A
server process imports them once, and forks what is asked for: the fork is the training, with its own environment,
arguments, output and end; only the import is not its own. laggard is imported, and hooks, after the fork. What is about
the start itself (the first import of torch under `laggard run`, flags of the interpreter, variables that torch reads
when it is imported) needs a real start.
"""

from __future__ import annotations

import array
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import pytest

from support.paths import REPOSITORY
from support.warm_server import LARGEST

_PROGRAM = Path(__file__).with_name("warm_server.py")
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
_BY_AN_OPTIMIZER = "torch._dynamo"  # its first step imports this, which takes as long as torch
_LOOK_SECONDS = 0.2
_READ_AT_IMPORT = ("TORCH_LOGS", "PYTHONWARNINGS", "PYTHONHASHSEED", "LD_PRELOAD", "MKL_NUM_THREADS")


class WarmProcess:
    """A job of a server, with the methods of a subprocess.Popen whose output is text, and is kept in memory."""

    def __init__(self, server: Warm, words: Sequence[str]) -> None:
        self.args = list(words)
        self.pid = 0
        self.returncode: int | None = None
        self._server = server
        self.output = os.memfd_create("stdout"), os.memfd_create("stderr")
        for descriptor in self.output:
            weakref.finalize(self, os.close, descriptor)

    @property
    def stderr(self) -> IO[str]:
        """What it has printed to standard error until now."""
        return io.StringIO(self._printed(1))

    def printed(self) -> str:
        """What it has printed until now: to standard output, then to standard error."""
        return self._printed(0) + self._printed(1)

    def poll(self) -> int | None:
        self._server.receive(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, as Popen's. Raises TimeoutExpired after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            # Not for long: another thread may have taken this answer, and waits for the server meanwhile.
            self._server.receive(_LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it printed, once it has ended."""
        self.wait(timeout)
        return self._printed(0), self._printed(1)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _printed(self, stream: int) -> str:
        descriptor = self.output[stream]  # read in place: the job writes at the same file position
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


class Warm:
    """A server with `modules` imported. It is started when the first job is. Processes that give the same name in
    `shared` import them once."""

    def __init__(self, *modules: str, shared: str = "") -> None:
        self._modules = modules
        self._shared = shared
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs: dict[int, WarmProcess] = {}
        self._asked: list[WarmProcess] = []
        self._lock = threading.Lock()

    def start(self, words: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> WarmProcess:
        """The process that `python WORDS` would be: of this process's environment with that of `environment` over it.
        Its standard input is empty."""
        values = {**os.environ, **_ENVIRONMENT, **(environment or {})}
        changed = [name for name in _READ_AT_IMPORT if values.get(name) != os.environ.get(name)]
        assert not changed, f"{', '.join(changed)}: read when Python starts; start a process of its own"
        channel = self._open()
        job = WarmProcess(self, [str(word) for word in words])
        request = {"words": job.args, "environment": values, "folder": os.getcwd()}
        text = json.dumps(request).encode()
        assert len(text) < LARGEST
        with open(os.devnull) as nothing:
            streams = array.array("i", [nothing.fileno(), *job.output])
            with self._lock:
                self._asked.append(job)
            channel.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        while not job.pid:
            self.receive(60.0)
        return job

    def run(
        self, words: Sequence[str | Path], environment: Mapping[str, str] | None = None, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """What `python WORDS` printed, and its exit status."""
        job = self.start(words, environment)
        try:
            out, errors = job.communicate(timeout)
        finally:
            job.kill()
        return subprocess.CompletedProcess(job.args, job.returncode or 0, out, errors)

    def receive(self, seconds: float | None) -> None:
        """Takes the server's answers that have come; where there is none, waits for one for `seconds`."""
        assert self._channel is not None
        with self._lock:
            self._channel.settimeout(seconds)
            try:
                while text := self._channel.recv(4096):
                    self._take(json.loads(text))
                    self._channel.settimeout(0.0)
            except (TimeoutError, BlockingIOError):
                return
        status = "" if self._process is None else f" with {self._process.wait(300)}"
        raise RuntimeError(f"the server with {', '.join(self._modules)} ended{status}")

    def _take(self, answer: dict[str, int]) -> None:
        if "status" in answer:
            self._jobs.pop(answer["pid"]).returncode = answer["status"]
        else:
            job = self._asked.pop(0)
            job.pid = answer["pid"]
            self._jobs[job.pid] = job

    def _open(self) -> socket.socket:
        if self._channel is None and self._shared:
            self._channel = self._connect()
        if self._channel is None:
            self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                self._process = self._start_server("own", other)
        return self._channel

    def _connect(self) -> socket.socket:
        """Connects to the shared server, which the first of its users starts."""
        name = f"\0laggard-tests-{self._shared}-{'-'.join(self._modules)}"  # no file: it is gone with the server
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.suppress(OSError):
            listener.bind(name)  # fails where another process was first
            listener.listen(64)
            assert self._start_server("shared", listener).wait(300) == 0
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        until = time.monotonic() + 120
        while channel.connect_ex(name):  # it does not listen yet
            assert time.monotonic() < until
            time.sleep(0.01)
        return channel

    def _start_server(self, kind: str, own: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(_PROGRAM), kind, str(own.fileno()), *self._modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[own.fileno()],
            cwd=REPOSITORY,
            env={**os.environ, **_ENVIRONMENT},
        )

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.wait(300)


@pytest.fixture(scope="session")
def warm_torch() -> Iterator[Warm]:
    """Python processes that have imported torch."""
    yield from _closed(Warm("torch", "torch.distributed", _BY_AN_OPTIMIZER, shared=_of_this_run()))


@pytest.fixture(scope="module")
def warm_torch_alone() -> Iterator[Warm]:
    """The same without torch's compiler: where it is imported, a forked child that ends its groups hangs."""
    yield from _closed(Warm("torch", "torch.distributed"))


@pytest.fixture(scope="session")
def warm_deepspeed() -> Iterator[Warm]:
    """Python processes that have imported DeepSpeed, and so torch, and compile nothing."""
    yield from _closed(Warm("deepspeed_uncompiled", _BY_AN_OPTIMIZER, shared=_of_this_run()))


def _of_this_run() -> str:
    """The name of what the processes of one run of the tests share; none in a run of one process."""
    return os.environ.get("PYTEST_XDIST_TESTRUNUID", "")


def _closed(warm: Warm) -> Iterator[Warm]:
    yield warm
    warm.close()
