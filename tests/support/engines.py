"""Real engines that keep Prometheus' series for long, as processes on the loopback, and real Prometheus that scrape
and write into them."""

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from support.ports import free_port
from support.waiting import wait_for

PROGRAMS = {"Prometheus": "prometheus", "VictoriaMetrics": "victoria-metrics"}
"""What has to be found for each; Debian has both."""


class Engine(NamedTuple):
    """`query`: what laggard is given; `write`: the URL of remote_write."""

    query: str
    write: str


def need(engine: str) -> None:
    """Skips a test whose engine is not on this machine."""
    if not shutil.which(PROGRAMS[engine]):
        pytest.skip(f"needs {PROGRAMS[engine]}: the verdict from {engine} is NOT tested against a real one")


@contextlib.contextmanager
def running(folder: Path, commands: Mapping[str, list[str]]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The processes by their names; each has a log in `folder`."""
    with contextlib.ExitStack() as stack:
        started = {}
        for name, command in commands.items():
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            started[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
            stack.callback(_end, started[name])
        yield started


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def answers(url: str) -> Callable[[], bool]:
    """Whether a GET of `url` is answered with 200."""

    def asked() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    return asked


@contextlib.contextmanager
def prometheus_server(
    folder: Path, config: Mapping[str, object], data: Path | None = None, *flags: str
) -> Iterator[str]:
    """The URL of a Prometheus that is ready. `data`: the folder of its series."""
    address = f"127.0.0.1:{free_port()}"
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"global": {}, **config}, sort_keys=False))
    command = ["prometheus", "--config.file=prometheus.yml", f"--storage.tsdb.path={data or folder / 'series'}"]
    command += ["--storage.tsdb.retention.time=10y", f"--web.listen-address={address}", *flags]
    with running(folder, {"prometheus": command}):
        wait_for(answers(f"http://{address}/-/ready"), (folder / "prometheus.log").read_text)
        yield f"http://{address}"


@contextlib.contextmanager
def prometheus_receiver(folder: Path) -> Iterator[Engine]:
    """A Prometheus that others write into."""
    with prometheus_server(folder, {}, None, "--web.enable-remote-write-receiver") as url:
        yield Engine(url, f"{url}/api/v1/write")


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[Engine]:
    address = f"127.0.0.1:{free_port()}"
    command = ["victoria-metrics", f"-storageDataPath={folder}/vm", f"-httpListenAddr={address}"]
    # Before 1.85.2 no query could ask for the newest samples, which are hidden for 30 s by default.
    command += ["-search.latencyOffset=1ms", "-retentionPeriod=12"]
    with running(folder, {"vm": command}):
        wait_for(answers(f"http://{address}/health"))
        yield Engine(f"http://{address}", f"http://{address}/api/v1/write")


ENGINES = {"Prometheus": prometheus_receiver, "VictoriaMetrics": victoria_metrics}


def scraper(name: str, targets: Mapping[str, str], labels: Mapping[str, str], write: Engine, folder: Path) -> list[str]:
    """The command of a Prometheus that scrapes `targets` (HOST:PORT by node) once a second and writes into the engine.
    `labels`: its external labels. On the series the instance is NODE:19400, as on nodes of a site."""
    jobs = [{"targets": [address], "labels": {"instance": f"{node}:19400"}} for node, address in targets.items()]
    config = {
        "global": {"scrape_interval": "1s", "external_labels": dict(labels)},
        "scrape_configs": [{"job_name": "laggard-agent", "honor_labels": True, "static_configs": jobs}],
        "remote_write": [{"url": write.write, "queue_config": {"batch_send_deadline": "200ms"}}],
    }
    (folder / f"{name}.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={name}.yml", f"--storage.tsdb.path={folder}/{name}-data"]
    return [*command, f"--web.listen-address=127.0.0.1:{free_port()}"]


def count(engine: Engine, query: str) -> float:
    """The value of a query that has one; 0 where it has none."""
    asked = f"query={query}&nocache=1".encode()
    try:
        with urllib.request.urlopen(f"{engine.query}/api/v1/query", asked, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
    except (urllib.error.URLError, OSError):
        return 0.0
    return float(found[0]["value"][1]) if found else 0.0
