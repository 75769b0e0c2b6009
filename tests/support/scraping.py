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
    url = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/series"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={url}"], stderr=log)

    try:
        yield api_of(url, process, folder / "prometheus.log")
    finally:
        process.terminate()
        process.wait()


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
