"""A cluster of thousands of nodes and jobs as a snapshot, and the collector's real web part that serves it from a
thread: no agent is asked."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator

import uvicorn
from msgspec import structs

from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import make_app
from laggard.model import Finding, Fix, JobKey, Severity, Verdict
from laggard.wire.nodes import NodeFinding
from support.made_snapshot import Source, made_snapshot
from support.ports import free_port
from support.waiting import wait_for

OUTSIDE = "gpu-9999"


def with_jobs(snapshot: ClusterSnapshot, count: int) -> ClusterSnapshot:
    """The snapshot with `count` jobs in all, by a hundred users, each with the first one's ranks; the last has a
    culprit and the others none."""
    (first,) = snapshot.jobs
    fine = structs.replace(first.location, verdict=Verdict.OK, culprits=())
    others = [_job(first, number, fine) for number in range(1, count - 1)]
    return dataclasses.replace(snapshot, jobs=(first, *others, _job(first, count - 1, first.location)))


def _job(first: JobSnapshot, number: int, location: object) -> JobSnapshot:
    key = JobKey(2000 + number % 100, f"finetune-llama-{number:04d}")
    changed = structs.replace(location, job_id=key.job_id, owner=key.owner)
    return dataclasses.replace(first, key=key, location=changed, script="finetune.py", started_at=1.7e9 + number)


def with_findings(snapshot: ClusterSnapshot, every: int = 50) -> ClusterSnapshot:
    """The snapshot with a critical finding on each `every`th node, and on one on which no job runs."""
    failing = [row.node for row in snapshot.nodes[::every] if row.node]
    rows = tuple(
        structs.replace(row, verdict="fail", findings=("GPU_XID",)) if row.node in failing else row
        for row in snapshot.nodes
    )
    outside = structs.replace(
        rows[0], url="http://outside:19400", node=OUTSIDE, verdict="fail", findings=("GPU_XID",), ranks=()
    )
    found = tuple(NodeFinding(f"http://{node}:19400", node, _finding(node)) for node in (*failing, OUTSIDE))
    return dataclasses.replace(snapshot, nodes=(*rows, outside), findings=found)


def _finding(node: str) -> Finding:
    summary = f"GPU 3 of {node} reported XID 79: it has fallen off the bus"
    fix = Fix("Drain the node and reset the GPU.", ("nvidia-smi --gpu-reset -i 3",))
    return Finding("GPU_XID", Severity.CRITICAL, "gpu3", summary, {"xid": 79}, fix, "docs/findings/GPU_XID.md")


@contextlib.contextmanager
def served(snapshot: ClusterSnapshot, settings: CollectorSettings | None = None) -> Iterator[str]:
    """The URL under which the web part serves the snapshot meanwhile."""
    port = free_port()
    app = make_app(Source(dataclasses.replace(snapshot, scraped_at=time.monotonic())), settings or CollectorSettings())
    config = uvicorn.Config(app, port=port, log_config=None, access_log=False, lifespan="off", server_header=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started or not thread.is_alive())
    assert server.started, "the web part did not start"
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(300)


__all__ = ["OUTSIDE", "made_snapshot", "served", "with_findings", "with_jobs"]
