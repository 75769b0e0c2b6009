"""Real engines that keep Prometheus' series for long, as processes on the loopback, and real Prometheus that scrape
and write into them."""

from __future__ import annotations

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

from support.alerting import wait_for
from support.ports import free_port, free_ports

PROGRAMS = {
    "Prometheus": ("prometheus",),
    "VictoriaMetrics": ("victoria-metrics",),
    "VictoriaMetrics' cluster": ("vminsert", "vmselect", "vmstorage"),
    "Cortex": ("cortex", "vmagent"),
    "Thanos": ("thanos",),
}
"""What has to be found for each, under its usual name. Debian has the first two."""

TENANT = "research"


class Engine(NamedTuple):
    """`query`: what laggard is given; `write`: the URL of remote_write; `headers`: sent with both. `processes`: by what
    they are, to be stopped or ended by a test."""

    query: str
    write: str
    headers: Mapping[str, str]
    processes: Mapping[str, subprocess.Popen[bytes]]


def need(engine: str) -> None:
    """Skips a test whose engine is not on this machine."""
    missing = [name for name in PROGRAMS[engine] if not shutil.which(name)]
    if missing:
        pytest.skip(f"needs {missing[0]}: the verdict from {engine} is NOT tested against a real one")


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


def answers(url: str, headers: Mapping[str, str] | None = None, seconds: float = 5.0) -> Callable[[], bool]:
    """Whether a GET of `url` is answered with 200 in so many seconds."""
    request = urllib.request.Request(url, headers=dict(headers or {}))

    def asked() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    return asked


@contextlib.contextmanager
def prometheus_receiver(folder: Path) -> Iterator[Engine]:
    """A Prometheus that others write into."""
    address = f"127.0.0.1:{free_port()}"
    (folder / "receiver.yml").write_text("global: {}\n")
    command = ["prometheus", "--config.file=receiver.yml", f"--storage.tsdb.path={folder}/received"]
    command += ["--web.enable-remote-write-receiver", f"--web.listen-address={address}"]
    with running(folder, {"receiver": command}) as processes:
        wait_for(answers(f"http://{address}/-/ready"))
        yield Engine(f"http://{address}", f"http://{address}/api/v1/write", {}, processes)


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[Engine]:
    address = f"127.0.0.1:{free_port()}"
    command = ["victoria-metrics", f"-storageDataPath={folder}/vm", f"-httpListenAddr={address}"]
    # Before 1.85.2 no query could ask for the newest samples, which are hidden for 30 s by default.
    command += ["-search.latencyOffset=1ms", "-retentionPeriod=12"]
    with running(folder, {"vm": command}) as processes:
        wait_for(answers(f"http://{address}/health"))
        yield Engine(f"http://{address}", f"http://{address}/api/v1/write", {}, processes)


@contextlib.contextmanager
def victoria_metrics_cluster(folder: Path, copies: int = 1) -> Iterator[Engine]:
    """Two vmstorage, each with half of the series; with 2 `copies`, each with all."""
    http, insert, select = ([f"127.0.0.1:{port}" for port in free_ports(2)] for _ in range(3))
    vminsert, vmselect = (f"127.0.0.1:{port}" for port in free_ports(2))
    commands = {
        f"vmstorage{n}": [
            *("vmstorage", f"-storageDataPath={folder}/vm{n}", f"-httpListenAddr={http[n]}"),
            *(f"-vminsertAddr={insert[n]}", f"-vmselectAddr={select[n]}", "-retentionPeriod=12"),
        ]
        for n in range(2)
    }
    more = [f"-replicationFactor={copies}"] if copies > 1 else []
    commands["vminsert"] = ["vminsert", f"-httpListenAddr={vminsert}", *(f"-storageNode={it}" for it in insert), *more]
    more += ["-dedup.minScrapeInterval=1ms"] if copies > 1 else []
    commands["vmselect"] = ["vmselect", f"-httpListenAddr={vmselect}", *(f"-storageNode={it}" for it in select), *more]
    with running(folder, commands) as processes:
        for address in (*http, vminsert, vmselect):
            wait_for(answers(f"http://{address}/health"))
        yield Engine(
            f"http://{vmselect}/select/0/prometheus",
            f"http://{vminsert}/insert/0/prometheus/api/v1/write",
            {},
            processes,
        )


@contextlib.contextmanager
def cortex(folder: Path) -> Iterator[Engine]:
    """All of Cortex in one process, with tenants."""
    http, grpc, gossip = free_ports(3)
    memory = {"kvstore": {"store": "inmemory"}, "instance_addr": "127.0.0.1"}
    ring = {"kvstore": {"store": "inmemory"}, "replication_factor": 1}
    config = {
        "target": "distributor,ingester,store-gateway,query-frontend,querier",
        "auth_enabled": True,
        "server": {
            "http_listen_address": "127.0.0.1",
            "http_listen_port": http,
            "grpc_listen_address": "127.0.0.1",
            "grpc_listen_port": grpc,
        },
        "ingester": {"lifecycler": {"ring": ring, "address": "127.0.0.1", "min_ready_duration": "0s"}},
        "distributor": {"ring": memory, "shard_by_all_labels": True, "pool": {"health_check_ingesters": True}},
        "memberlist": {"bind_addr": ["127.0.0.1"], "bind_port": gossip},
        "blocks_storage": {
            "backend": "filesystem",
            "filesystem": {"dir": f"{folder}/blocks"},
            "tsdb": {"dir": f"{folder}/tsdb"},
            "bucket_store": {"sync_dir": f"{folder}/sync"},
        },
        "store_gateway": {"sharding_ring": {**ring, **memory}},
        "frontend_worker": {"match_max_concurrent": True},
        "querier": {"store_gateway_addresses": f"127.0.0.1:{grpc}"},
    }
    (folder / "cortex.yml").write_text(yaml.safe_dump(config))
    address, headers = f"http://127.0.0.1:{http}", {"X-Scope-OrgID": TENANT}
    with running(folder, {"cortex": ["cortex", "-config.file=cortex.yml"]}) as processes:
        wait_for(answers(f"{address}/ready"), lambda: (folder / "cortex.log").read_text()[-3000:])
        yield Engine(f"{address}/prometheus", f"{address}/api/v1/push", headers, processes)


ENGINES = {
    "Prometheus": prometheus_receiver,
    "VictoriaMetrics": victoria_metrics,
    "VictoriaMetrics' cluster": victoria_metrics_cluster,
    "Cortex": cortex,
}


def scraper(name: str, targets: Mapping[str, str], labels: Mapping[str, str], write: Engine, folder: Path) -> list[str]:
    """The command of a Prometheus that scrapes `targets` (HOST:PORT by node) once a second and writes into the engine;
    of a vmagent where headers have to be sent, which Debian 12's Prometheus does not. `labels`: its external labels. On
    the series the instance is NODE:19400, as on nodes of a site."""
    jobs = [{"targets": [address], "labels": {"instance": f"{node}:19400"}} for node, address in targets.items()]
    config: dict[str, object] = {
        "global": {"scrape_interval": "1s", "external_labels": dict(labels)},
        "scrape_configs": [{"job_name": "laggard-agent", "honor_labels": True, "static_configs": jobs}],
    }
    address, data = f"127.0.0.1:{free_port()}", f"{folder}/{name}-data"
    if write.headers:
        headers = "^^".join(f"{header}:{value}" for header, value in write.headers.items())
        command = ["vmagent", f"-promscrape.config={name}.yml", f"-remoteWrite.tmpDataPath={data}"]
        command += [f"-remoteWrite.url={write.write}", f"-remoteWrite.headers={headers}", f"-httpListenAddr={address}"]
    else:
        config["remote_write"] = [{"url": write.write, "queue_config": {"batch_send_deadline": "200ms"}}]
        command = ["prometheus", f"--config.file={name}.yml", f"--storage.tsdb.path={data}"]
        command += [f"--web.listen-address={address}"]
    (folder / f"{name}.yml").write_text(yaml.safe_dump(config))
    return command


def count(engine: Engine, query: str) -> float:
    """The value of a query that has one; 0 where it has none."""
    asked = urllib.request.Request(
        f"{engine.query}/api/v1/query", data=f"query={query}&nocache=1".encode(), headers=dict(engine.headers)
    )
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
    except (urllib.error.URLError, OSError):
        return 0.0
    return float(found[0]["value"][1]) if found else 0.0
