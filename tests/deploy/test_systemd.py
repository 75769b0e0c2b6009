"""deploy/systemd: systemd takes the units, they are as closed as they can be, and the daemons talk to systemd."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import REPOSITORY

from laggard.cli import whole_parser
from laggard.kit.errors import EXIT_USAGE
from laggard.kit.http_message import url_of
from laggard.kit.service_manager import supervised, watchdog_seconds
from laggard.probes.gpu.model.services import RUNNING_PATH
from laggard.probes.host.reader import SOCKET
from laggard.probes.nccl.last_ring import LAST_RING_PATH
from laggard.probes.profiles import PROFILES
from laggard.probes.system.site_checks import SOCKET as CHECKS

UNITS = REPOSITORY / "deploy" / "systemd" / "system"
MAX_EXPOSURE = {
    "laggard-agent.service": 1.7,
    "laggard-collector.service": 1.5,
    "laggard-idle-rings.service": 1.8,
    "laggard-reader.service": 2.0,
}
"""By `systemd-analyze security`, from 0 to 10. The reader has capabilities, and no network."""
DAEMONS = ("laggard-agent.service", "laggard-collector.service")
IDLE_RINGS = "laggard-idle-rings.service"
PATIENCE_SECONDS = 300.0

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")


def with_a_program(unit: Path, folder: Path) -> Path:
    """A copy of the unit whose program exists on this machine."""
    copy = folder / unit.name
    copy.write_text(re.sub(r"^ExecStart=/opt/laggard/bin/laggard", "ExecStart=/bin/true", unit.read_text(), flags=re.M))
    return copy


@needs_systemd
@pytest.mark.parametrize("name", MAX_EXPOSURE)
def test_systemd_takes_the_unit_and_finds_it_closed(name: str, tmp_path: Path) -> None:
    unit = with_a_program(UNITS / name, tmp_path)
    units = [str(unit), shutil.copy(UNITS / "laggard-reader.socket", tmp_path)]
    with_a_program(UNITS / "laggard-reader.service", tmp_path)  # which systemd looks for beside its socket
    verified = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=300)
    assert unit.name not in verified.stderr, verified.stderr
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", str(unit)], capture_output=True, text=True, timeout=300
    )
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", judged.stdout)
    assert score is not None, judged.stdout + judged.stderr
    assert float(score[1]) <= MAX_EXPOSURE[name]


def directives(unit: str) -> dict[str, str]:
    """The last value of each key."""
    return dict(line.split("=", 1) for line in (UNITS / unit).read_text().splitlines() if re.match(r"\w+=", line))


def test_privileges_are_apart_from_the_network() -> None:
    agent, reader = directives("laggard-agent.service"), directives("laggard-reader.service")
    assert agent["CapabilityBoundingSet"] == agent["AmbientCapabilities"] == ""
    assert reader["CapabilityBoundingSet"] == "CAP_DAC_READ_SEARCH CAP_SYS_ADMIN CAP_SYS_PTRACE CAP_SYSLOG"
    assert reader["PrivateNetwork"] == "yes" and reader["RestrictAddressFamilies"] == "AF_UNIX"
    assert reader["User"] != agent["User"], "else the agent could trace the reader"
    assert f"--allow-user {agent['User']}" in reader["ExecStart"]
    listens = directives("laggard-reader.socket")
    assert listens["ListenStream"] == SOCKET and listens["SocketGroup"] == agent["User"]
    users = re.findall(r"^u ([\w-]+)", (UNITS.parent / "sysusers.d" / "laggard.conf").read_text(), re.M)
    assert users == [agent["User"], reader["User"]]


def test_roots_checks_read_nothing_of_who_asks_and_serve_the_agent_alone() -> None:
    socket_unit, service = directives("laggard-checks.socket"), directives("laggard-checks@.service")
    assert (socket_unit["ListenStream"], socket_unit["SocketMode"], socket_unit["Accept"]) == (CHECKS, "0660", "yes")
    assert socket_unit["SocketGroup"] == directives("laggard-agent.service")["User"]
    assert (service["StandardInput"], service["StandardOutput"]) == ("null", "socket")
    path, *words = service["ExecStart"].split()
    arguments = whole_parser().parse_args(words)
    assert path == "/opt/laggard/bin/laggard" and arguments.only == ["site_checks"] and arguments.format == "json"
    assert service["SuccessExitStatus"] == "1 2", "a check that fails is no unit that failed"
    assert arguments.deadline < PROFILES["periodic"].deadline_seconds < float(service["RuntimeMaxSec"])


@needs_systemd
def test_systemd_takes_the_units_of_the_checks(tmp_path: Path) -> None:
    unit = with_a_program(UNITS / "laggard-checks@.service", tmp_path)
    instance = shutil.copy(unit, tmp_path / "laggard-checks@1.service")
    units = [str(instance), shutil.copy(UNITS / "laggard-checks.socket", tmp_path)]
    verified = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=300)
    assert "laggard-checks" not in verified.stderr, verified.stderr


def test_the_ring_writes_where_the_agent_reads_and_a_missing_token_starts_nothing_again() -> None:
    ring = directives(IDLE_RINGS)
    command = "/opt/laggard/bin/laggard agent --idle-rings --config /etc/laggard/idle-rings.yaml"
    assert (ring["ExecStart"], ring["User"]) == (command, directives("laggard-agent.service")["User"])
    assert ring["ReadWritePaths"] == os.path.dirname(LAST_RING_PATH) == os.path.dirname(RUNNING_PATH)
    assert ring["CapabilityBoundingSet"] == "" and ring["RestartPreventExitStatus"] == str(EXIT_USAGE)
    folders = (UNITS.parent / "tmpfiles.d" / "laggard.conf").read_text()
    assert f"d {ring['ReadWritePaths']} 0755 {ring['User']} " in folders


def test_each_unit_names_a_command_and_a_user_that_exist() -> None:
    user = re.search(r"^u (\w+)", (UNITS.parent / "sysusers.d" / "laggard.conf").read_text(), re.M)
    assert user is not None
    for name in DAEMONS:
        text = (UNITS / name).read_text()
        command = re.search(r"^ExecStart=/opt/laggard/bin/laggard (\w+) --config /etc/laggard/(\w+)\.yaml$", text, re.M)
        assert command is not None and command[1] == command[2] == name.removeprefix("laggard-").partition(".")[0]
        assert f"\nUser={user[1]}\n" in text and "\nType=notify\n" in text and "\nWatchdogSec=" in text


class ServiceManager:
    """The socket on which systemd listens to a service."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE_SECONDS)

    def close(self) -> None:
        self._socket.close()

    def hears(self) -> str:
        return self._socket.recv(4096).decode().partition("\n")[0]

    def hears_nothing(self, seconds: float) -> bool:
        self._socket.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            return not self._socket.recv(4096)
        return True


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[ServiceManager]:
    manager = ServiceManager(tmp_path / "notify")
    yield manager
    manager.close()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("agent",), ("collector", "--target", "127.0.0.1:9")])
def test_a_daemon_is_ready_when_it_answers_and_feeds_the_watchdog_until_it_stops(
    words: tuple[str, ...], systemd: ServiceManager, tmp_path: Path
) -> None:
    environ = os.environ | {
        "NOTIFY_SOCKET": str(systemd.path),
        "WATCHDOG_USEC": "400000",
        "LAGGARD_RANK_DIR": str(tmp_path),
    }
    environ.pop("WATCHDOG_PID", None)
    command = [sys.executable, "-m", "laggard", *words, "--web.listen-address", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            heard = [systemd.hears() for _ in range(3)]
            daemon.send_signal(signal.SIGTERM)
            while heard[-1] == "WATCHDOG=1" and len(heard) < 1000:
                heard.append(systemd.hears())
        finally:
            daemon.kill()
    assert heard[:2] == ["READY=1", "WATCHDOG=1"] and heard[-1] == "STOPPING=1"


@pytest.mark.slow
def test_a_daemon_that_answers_nobody_is_neither_ready_nor_alive(systemd: ServiceManager) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with supervised(url_of(mute), {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "100000"}):
            assert systemd.hears_nothing(0.5)
        assert systemd.hears() == "STOPPING=1"


def test_without_systemd_nothing_is_told() -> None:
    before = threading.active_count()
    with supervised("http://127.0.0.1:9", {}):
        assert threading.active_count() == before


def test_the_watchdog_is_fed_twice_as_often_as_it_asks() -> None:
    assert watchdog_seconds({"WATCHDOG_USEC": "60000000"}) == 30.0
    assert watchdog_seconds({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}) == 30.0
    assert watchdog_seconds({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}) is None
    for nothing in ({}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}):
        assert watchdog_seconds(nothing) is None
