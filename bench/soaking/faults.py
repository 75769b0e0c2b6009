"""The faults. Each is done, lasts some seconds, and is over when its function returns; what it needs, a site has."""

import contextlib
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from soaking.daemons import Daemon
from soaking.site import Site


class Fault(NamedTuple):
    name: str
    do: Callable[[Site], None]


def kill_agent(site: Site) -> None:
    site.agents[0].kill()
    time.sleep(3)
    site.agents[0].restart()


def corrupt_rank_files(site: Site) -> None:
    """Damaged copies and nonsense beside the live files; and a live one's first bytes, which come back."""
    live = [path for path in site.ranks_folder.rglob("*") if path.is_file() and path.stat().st_size > 4096]
    made = []
    for number, path in enumerate(live[:3]):
        copy = path.with_name(f"{path.name}.{number}")
        data = bytearray(path.read_bytes())
        for _ in range(200):
            data[random.randrange(len(data))] = random.randrange(256)
        copy.write_bytes(bytes(data[: random.randrange(len(data))]))
        made.append(copy)
    nonsense = site.ranks_folder / "nonsense"
    nonsense.write_bytes(random.randbytes(100_000))
    if live:
        _spoil_for_a_moment(live[-1])
    time.sleep(2)
    for path in (*made, nonsense):
        path.unlink(missing_ok=True)


def _spoil_for_a_moment(path: Path) -> None:
    with path.open("r+b") as file:
        head = file.read(8)
        file.seek(0)
        file.write(b"\xff" * 8)
        file.flush()
        time.sleep(2)
        file.seek(0)
        file.write(head)


def slow_scrapes(site: Site) -> None:
    """The agents stand still for longer than the collector waits, and clients ask half a question and wait."""
    with contextlib.ExitStack() as open_ones:
        for daemon in site.daemons:
            for _ in range(20):
                open_ones.enter_context(_connected(daemon)).sendall(b"GET /metrics HTTP/1.1\r\nHos")
        for agent in site.agents:
            agent.pause(4)


def garbage_requests(site: Site) -> None:
    paths = (
        b"/%00",
        b"/api/v1/ranks?since=nan",
        b"/api/v1/location?job=%ff",
        b"/" + b"a" * 70_000,
        b"//..//etc/passwd",
    )
    bodies = [b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths]
    bodies += [
        random.randbytes(5000),
        b"\r\n" * 5000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ]
    for daemon in site.daemons:
        for body in bodies * 5:
            with contextlib.suppress(OSError), _connected(daemon) as connection:
                connection.sendall(body)
                if random.random() < 0.5:
                    connection.settimeout(5)
                    connection.recv(65536)


def _connected(daemon: Daemon) -> socket.socket:
    parts = urlsplit(daemon.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30)


def fill_disk(site: Site) -> None:
    """The disk of the incidents is full for some seconds."""
    ballast = site.disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    time.sleep(6)
    ballast.unlink()


def stop_prometheus(site: Site) -> None:
    site.prometheus.kill()
    time.sleep(8)
    site.prometheus.restart()


def stop_api_server(site: Site) -> None:
    """It answers nobody for longer than the controller waits."""
    assert site.plane is not None
    with site.plane.silent():
        time.sleep(8)


def kill_collector(site: Site) -> None:
    site.collector.kill()
    time.sleep(2)
    site.collector.restart()


def kill_rank(site: Site) -> None:
    site.ranks[2].send_signal(signal.SIGKILL)
    site.ranks[2].wait(60)


def fill_rank_folder(site: Site) -> None:
    """A user makes thousands of files where rank files lie, links to elsewhere, and folders in folders."""
    folder = site.ranks_folder / "many"
    folder.mkdir()
    for number in range(3000):
        (folder / str(number)).write_bytes(b"x")
    with contextlib.suppress(OSError):
        os.symlink("/dev/zero", folder / "zero")
        os.mkfifo(folder / "pipe")
        os.symlink(folder, folder / "self")
    time.sleep(3)
    shutil.rmtree(folder)


def set_clocks(site: Site) -> None:
    """By turns the clock of the node that trains and that of all others: an hour ahead, an hour behind, or right. It
    stays so until its next turn."""
    clock = site.clocks[next(site.turns) % len(site.clocks)]
    clock.set_by(random.choice([ahead for ahead in (3600, -3600, 0) if ahead != clock.ahead]))
    time.sleep(3)


ONCE = (Fault("collector killed", kill_collector),)
"""Done once, in the first third, so that what leaks has the rest of the time to show."""

AGAIN = (
    Fault("agent killed", kill_agent),
    Fault("rank files corrupted", corrupt_rank_files),
    Fault("slow scrapes", slow_scrapes),
    Fault("garbage requests", garbage_requests),
    Fault("disk full", fill_disk),
    Fault("Prometheus gone", stop_prometheus),
    Fault("rank directory crowded", fill_rank_folder),
    Fault("clock set", set_clocks),
)
WITH_KUBERNETES = (Fault("API server silent", stop_api_server),)
