"""docs/privileges.md is current, and the daemons open and call no more than it and their units say: they are traced."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from support.chart import NO_HELM
from support.made_pages import expect_current, script
from support.paths import REPOSITORY
from support.ports import free_port
from support.waiting import wait_for

UNITS = REPOSITORY / "deploy" / "systemd" / "system"
PATIENCE_SECONDS = 300.0
OF_PYTHON = ("/etc/ld.so", "/etc/localtime", "/usr/share/locale", "/usr/lib/locale", "/usr/share/zoneinfo")
REFUSED = {
    "clock_adjtime": "the agent tries to read the clock's state itself; the reader has it",
    "fchown": "SQLite keeps its files their owner's where it is root",
    "mbind": "an allocator prefers memory of its own NUMA node",
    "set_mempolicy": "an allocator prefers memory of its own NUMA node",
}
"""Calls that a unit's filter refuses with EPERM, and what then does without them."""
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
CHANGING = re.compile(r"(?:mkdir|unlink|rename|rmdir|symlink|link|chmod|fchmodat|truncate|chown|mknod)\w*$")


def test_the_page_is_current() -> None:
    pytest.importorskip("helm_python", reason=NO_HELM)
    written = expect_current("privileges_docs", "privileges.md")
    for unit in UNITS.glob("*.service"):
        assert f"`{unit.name}`" in written


class Traced(NamedTuple):
    """What a daemon did: the system calls that it made, and the paths that it read, wrote, and connected to."""

    calls: frozenset[str]
    families: frozenset[str]
    programs: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]
    connects: frozenset[str]


def traced(text: str) -> Traced:
    """strace's lines, each with a process id. A call during which another process ran stands in two lines."""
    begun: dict[tuple[str, str], str] = {}
    calls, reads, writes, programs, families, connects = set(), set(), set(), set(), set(), set()
    for line in text.splitlines():
        pid, _, rest = line.partition(" ")
        rest = rest.strip()
        if resumed := re.match(r"<\.\.\. (\w+) resumed>(.*)", rest):
            rest = begun.pop((pid, resumed[1]), f"{resumed[1]}(") + resumed[2]
        if not (call := re.match(r"(\w+)\(", rest)):
            continue
        name = call[1]
        calls.add(name)
        if rest.endswith("<unfinished ...>"):
            begun[pid, name] = rest.removesuffix("<unfinished ...>")
            continue
        paths = re.findall(r'"(/[^"]*)"', rest)
        if re.search(r"\) += -1 ", rest):
            continue
        if name in ("open", "openat") and paths:
            (writes if WRITES.search(rest) else reads).add(paths[0])
        elif CHANGING.match(name):
            writes.update(paths)
        elif name == "execve":
            programs.update(paths[:1])
        elif name == "connect":
            connects.update(paths or ["the network"])
        elif name == "socket":
            families.update(re.findall(r"\((AF_\w+)", rest))
    return Traced(*map(frozenset, (calls, families, programs, reads, writes, connects)))


@pytest.fixture(scope="module")
def traces() -> Iterator[dict[str, Traced]]:
    """The agent, which asks the reader, and the collector, which asks the agent, from their starts to their ends."""
    if os.geteuid() or not shutil.which("strace") or subprocess.run(["strace", "-o", os.devnull, "true"]).returncode:
        pytest.skip("needs root, and strace that may trace")
    folder = Path(tempfile.mkdtemp(prefix="laggard-traced-", dir="/run"))  # all above it is root's, as it has to be
    processes = []

    def start(name: str, *words: str, **environment: str) -> None:
        """`name`: of its files."""
        command = ["strace", "-f", "-qq", "-s", "4096", "-o", str(folder / name), sys.executable, "-m", "laggard"]
        with (folder / f"{name}.log").open("w") as log:
            own = {**os.environ, "LAGGARD_STATE_DIR": str(folder / "state"), **environment}
            processes.append(subprocess.Popen([*command, *words], env=own, stdout=log, stderr=log))

    try:
        agent, collector = free_port(), free_port()
        (folder / "state").mkdir()
        (folder / "ranks").mkdir()
        socket = folder / "reader.sock"
        start("reader", "agent", "--reader", "--socket", str(socket), "--allow-user", "root")

        def logs() -> str:
            return "".join(path.read_text() for path in folder.glob("*.log"))

        wait_for(socket.exists, logs)
        start(
            "agent", "agent", "--web.listen-address", f"127.0.0.1:{agent}", "--rank-dir", str(folder / "ranks"),
            LAGGARD_READER=str(socket),
        )  # fmt: skip
        config = folder / "collector.yaml"
        config.write_text(f"incidents_database: {folder}/state/incidents.sqlite\ninterval_seconds: 1\n")
        start(
            "collector", "collector", "--config", str(config), "--web.listen-address", f"127.0.0.1:{collector}",
            "--target", f"127.0.0.1:{agent}",
        )  # fmt: skip
        wait_for(lambda: '"verdict":"' in got(f"http://127.0.0.1:{collector}/api/v1/nodes"), logs)
        wait_for(lambda: "laggard_probe_duration_seconds" in got(f"http://127.0.0.1:{agent}/metrics"), logs)
        reader = folder / "reader"  # the agent's first look may have come before the reader's answer
        wait_for(lambda: any(path.startswith("/proc/") for path in without(trace_of(reader), folder).reads), logs)
        for process in reversed(processes):
            os.kill(child_of(process.pid), signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)
        yield {name: without(trace_of(folder / name), folder) for name in ACCESS}
    finally:
        for process in processes:
            with contextlib.suppress(OSError):
                os.kill(child_of(process.pid), signal.SIGKILL)
            process.kill()
            process.wait()
        shutil.rmtree(folder)


def trace_of(path: Path) -> Traced:
    return traced(path.read_text(errors="replace"))


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def got(url: str) -> str:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=60, trust_env=False).text
    return ""


def without(found: Traced, folder: Path) -> Traced:
    """The trace without the test's own folder, which stands for the state directory and for /run/laggard, and without
    the program's own files."""
    own = (str(folder), str(REPOSITORY), sys.prefix, sys.base_prefix, "/lib/", "/usr/lib/x86_64", "/usr/lib/ssl")

    def kept(paths: frozenset[str]) -> frozenset[str]:
        return frozenset(path for path in paths if not path.startswith((*own, *OF_PYTHON)))

    return found._replace(reads=kept(found.reads), writes=kept(found.writes), connects=kept(found.connects))


ACCESS = script("privileges_docs").daemons()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reads", "writes", "connects"])
@pytest.mark.parametrize("daemon", ACCESS)
def test_a_daemon_opens_what_the_page_says(daemon: str, kind: str, traces: dict[str, Traced]) -> None:
    found = getattr(traces[daemon], kind)
    named = ACCESS[daemon][kind]
    more = sorted(path for path in found if not any(path == own or path.startswith(f"{own}/") for own in named))
    assert not more, f"deploy/access.yaml does not say why the {daemon} {kind} {more}"
    if kind == "reads":
        assert any(path.startswith("/proc/") for path in found), "the trace is empty"


@pytest.mark.slow
@pytest.mark.parametrize("daemon", ACCESS)
def test_a_daemon_calls_what_its_unit_lets_it(daemon: str, traces: dict[str, Traced]) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    unit = script("privileges_docs").unit(UNITS / f"laggard-{daemon}.service")
    found = traces[daemon]
    refused = found.calls - allowed_calls(unit.values["SystemCallFilter"]) - REFUSED.keys()
    assert not refused, f"the unit's filter refuses {sorted(refused)}"
    assert len(found.calls) > 20, "the trace is empty"
    families = set(unit.last("RestrictAddressFamilies").split())
    assert found.families <= families, found.families - families
    assert found.programs <= {sys.executable}, "it starts other programs"


def allowed_calls(filters: list[str]) -> set[str]:
    """The calls that systemd lets through, by its own word on what each of its groups holds."""
    allowed: set[str] = set()
    for line in filters:
        for word in line.removeprefix("~").split():
            calls = group(word) if word.startswith("@") else {word}
            allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


def group(name: str) -> set[str]:
    listed = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, timeout=300)
    assert listed.returncode == 0, listed.stderr
    found: set[str] = set()
    for line in listed.stdout.splitlines()[1:]:
        word = line.strip()
        if word and not word.startswith("#"):
            found |= group(word) if word.startswith("@") else {word}
    return found
