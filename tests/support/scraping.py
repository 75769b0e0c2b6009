"""A real Prometheus that scrapes what a test says, and what it knows."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from support.ports import free_port

SECONDS = 120.0

Asked = Callable[[str], Any]
"""Returns the data of an answer of Prometheus' API; to be called with a path after /api/v1/."""


@contextlib.contextmanager
def prometheus(folder: Path, jobs: list[Any]) -> Iterator[Asked]:
    """A real one that scrapes `jobs`; what it gives asks its API."""
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": jobs}, sort_keys=False))
    address, process = started(folder)
    try:
        yield api_of(address, process, folder / "prometheus.log")
    finally:
        process.terminate()
        process.wait()


def started(folder: Path) -> tuple[str, subprocess.Popen[Any]]:
    """Starts one with the prometheus.yml of the folder. Returns its address and its process, once it listens; with
    another port where something else took the first."""
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/series"]
    log = folder / "prometheus.log"
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        address = f"127.0.0.1:{free_port()}"
        with log.open("w") as output:
            process = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=output)
        while process.poll() is None and "Server is ready" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        if process.poll() is None:
            return address, process
        assert "address already in use" in log.read_text(), log.read_text()
    raise AssertionError("no port for Prometheus was free in time")


def api_of(address: str, process: subprocess.Popen[Any], log: Path) -> Asked:
    """Asks the API of a Prometheus that is there, or comes soon."""

    def asked(path: str) -> Any:
        assert process.poll() is None, log.read_text()
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=SECONDS) as answer:
            return json.load(answer)["data"]

    return asked


def value_of(asked: Asked, query: str) -> float:
    """The first sample's value, once there is one."""
    deadline = time.monotonic() + SECONDS
    while not (result := asked(f"query?query={quote(query)}")["result"]):
        assert time.monotonic() < deadline, query
        time.sleep(0.2)
    return float(result[0]["value"][1])
