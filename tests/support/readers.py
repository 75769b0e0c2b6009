"""laggard's reader: in a test's own process, as a process with its unit's capabilities, and asked by a user without
any."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laggard.agent.reader.server import ReaderServer
from laggard.kit.environment import ENV_READER
from support.agents import let_others_enter
from support.paths import REPOSITORY

NOBODY = 65534
OTHER = 65533

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


def environ(path: Path) -> dict[str, str]:
    return {ENV_READER: str(path)}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A reader in this process, whose answers may be the test's own."""
    with contextlib.ExitStack() as stack:

        def start(reply: Callable[[str], bytes], users: frozenset[int] = frozenset({os.geteuid()})) -> Path:
            path = tmp_path / "reader.sock"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(str(path))
            listener.listen(64)
            path.chmod(0o666)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=ReaderServer(listener, users, reply).serve, daemon=True).start()
            return path

        yield start


def with_the_units_capabilities() -> list[str]:
    """The words before a command that leave root those capabilities that the reader's unit has."""
    if os.geteuid() != 0:
        return []
    unit = (REPOSITORY / "deploy/systemd/system/laggard-reader.service").read_text()
    (listed,) = re.findall(r"^CapabilityBoundingSet=(.+)$", unit, re.M)
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in listed.split())
    return ["setpriv", "--inh-caps=-all", f"--bounding-set=-all,{kept}"]


class Reader:
    """`laggard agent --reader` as a process of its own, and no mightier than its unit has it."""

    def __init__(self, path: Path, *flags: str) -> None:
        own = [sys.executable, "-m", "laggard", "agent", "--reader", "--socket", str(path), *flags]
        words = [*with_the_units_capabilities(), *own]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline()
        assert "listening on" in self.first_line, self.first_line + self.process.stderr.read()

    def stop(self) -> int:
        self.process.terminate()
        self.process.communicate(timeout=300)
        return self.process.returncode


@pytest.fixture
def start_reader(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    let_others_enter(tmp_path)
    started: list[Reader] = []

    def start(*flags: str) -> Path:
        path = tmp_path / "live.sock"
        started.append(Reader(path, *flags))
        return path

    yield start
    for each in started:
        assert each.stop() == 0


def as_nobody(code: str, path: Path) -> str:
    """What `code` prints as a user without privileges. All is imported before: another user may not read our Python."""
    imports = (
        "import difflib, os, json\n"
        "import laggard.gate.command, laggard.probes.registry, laggard.probes.host.reader\n"
        "import ctypes, socket, laggard.catalogue.rules, laggard.probes.host.live, laggard.agent.ranks.end\n"
        "import laggard.agent.ranks.reader\n"
        "import laggard.agent.traffic.sockets, laggard.agent.traffic.sockets\nfrom laggard.cli import main\n"
        "from laggard.probes.host.kernel_log import read_kmsg\nimport contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['healthcheck', '--only', 'nccl_env', '--format', 'json'])\n"
    )
    switch = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    words = [sys.executable, "-c", imports + switch + code]
    done = subprocess.run(words, env={**os.environ, **environ(path)}, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr
