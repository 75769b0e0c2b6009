"""A training that goes on while it is scraped: agents of some nodes, as HTTP servers with the metrics of the catalogue,
whose counters grow by the clock."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from prometheus_client import Metric

from laggard.catalogue.exposition import exposition, metric_family
from laggard.catalogue.rank_metrics import CollectiveSum, RankStats, families
from laggard.kit.constants import PHASES

STEP = 0.1
MEANS = {"input": 0.004, "forward": 0.03, "backward": 0.04, "optimizer": 0.004}
RANKS_OF_NODE = 4
UNEVEN = 0.003
"""The share by which the ranks' times differ, as those of equal machines do."""


class Training(NamedTuple):
    """`slow`: the rank that takes `excess` more seconds a step in `phase`; -1: none. `findings`: by node, each a code
    with its severity and device. `clock_ahead`: by how many seconds the nodes' clocks are ahead."""

    job_id: str = "train"
    user: int = 1000
    nodes: int = 2
    slow: int = -1
    phase: str = "forward"
    excess: float = 0.012
    findings: Mapping[str, Sequence[tuple[str, str, str]]] = {}
    clock_ahead: float = 0.0


def _rank(training: Training, number: int, seconds: float) -> RankStats:
    steps = int(seconds / STEP)
    means = {
        name: mean * (1 + UNEVEN * math.sin(7 * number + place)) for place, (name, mean) in enumerate(MEANS.items())
    }
    if number == training.slow:
        means[training.phase] += training.excess
    busy, now = sum(means.values()), time.time() + training.clock_ahead
    waited = CollectiveSum("all_reduce", "dp", steps, steps * max(0.0, STEP - busy), steps << 20)
    return RankStats(
        job_id=training.job_id,
        owner=training.user,
        rank=number,
        node=f"n{number // RANKS_OF_NODE}",
        local_rank=number % RANKS_OF_NODE,
        gpu=None,
        world_size=training.nodes * RANKS_OF_NODE,
        attempt=0,
        up=True,
        steps=steps,
        step_seconds=steps * STEP,
        own_seconds=steps * (busy - means["input"]),
        phase_seconds=tuple(steps * means.get(name, 0.0) for name in PHASES),
        last_progress=now,
        last_beat=now,
        in_flight_seconds=0.0,
        collectives=(waited,),
        lost=0,
    )


def _metrics(training: Training, node: int, seconds: float) -> Iterator[Metric]:
    ranks = [_rank(training, node * RANKS_OF_NODE + local, seconds) for local in range(RANKS_OF_NODE)]
    for described, samples in families(ranks):
        yield metric_family(described.name, samples)
    found = training.findings.get(f"n{node}", ())
    yield metric_family("laggard_finding", [((code, severity, device), 1.0) for code, severity, device in found])
    yield metric_family("laggard_agent_probe_round_seconds", [((), 1.0)])


class LiveNodes:
    """The agents of a training, each at an address of its own, from __enter__ to __exit__."""

    def __init__(self, training: Training) -> None:
        began = time.monotonic() - 600.0  # it has trained for ten minutes
        self._servers = [_server(training, node, began) for node in range(training.nodes)]

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT by node."""
        return {f"n{node}": f"127.0.0.1:{each.server_address[1]}" for node, each in enumerate(self._servers)}

    def __enter__(self) -> LiveNodes:
        self._threads = [threading.Thread(target=it.serve_forever, args=(0.05,), daemon=True) for it in self._servers]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def _server(training: Training, node: int, began: float) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = _metrics(training, node, time.monotonic() - began)
            body, content_type = exposition(found, self.headers.get("Accept", ""))
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)
