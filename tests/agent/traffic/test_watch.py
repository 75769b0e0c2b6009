"""The agent's watch on what the network carries for a running job: real connections between network namespaces. The
RDMA device is a stand-in: files with a counter (tests/vm has a real one)."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.namespaces import Namespaces, can_make
from support.paths import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_make(), reason="needs root and network namespaces")]
SUPPORT = REPOSITORY / "tests/support"
MB = 1 << 20
WORKS, READS, TALKS = 24 * MB, 32 * MB, 1024
Seen = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def spaces() -> Iterator[Namespaces]:
    """Node 0 is the agent's, node 1 another of the job, node 2 a file server."""
    with Namespaces(3, "8gbit") as made:
        servers = [
            made.start(
                node,
                [sys.executable, str(SUPPORT / "exchanging_rank.py"), "serve", made.address(node), "5000"],
                {},
                stdout=subprocess.PIPE,
            )
            for node in (1, 2)
        ]
        for server in servers:
            assert server.stdout is not None and server.stdout.readline() == "done\n"
        yield made
        for server in servers:
            server.kill()
            server.communicate()


@pytest.fixture
def seen(spaces: Namespaces, tmp_path: Path) -> Seen:
    def run(*steps: dict[str, Any]) -> list[dict[str, Any]]:
        counters = tmp_path / "class/infiniband/mlx5_0/ports/1/counters"
        counters.mkdir(parents=True)
        (counters.parent / "state").write_text("4: ACTIVE\n")
        (counters / "port_xmit_data").write_text("0\n")
        plan = json.dumps({"sys": str(tmp_path), "nodes": "10.77.0.2,10.77.1.2", "steps": steps})
        command = [*spaces.enter(0), sys.executable, "-c", PATIENT, str(SUPPORT / "traffic_seen.py")]
        done = subprocess.run(command, input=plan, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout.partition("SEEN:")[2])
        return found

    return run


PATIENT = """
import runpy, sys, laggard.agent.traffic.watch as judge
judge._MIN_BYTES_PER_SECOND = 1.0  # a loaded machine may take long
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def peer(size: int) -> list[object]:
    return ["10.77.1.2", 5000, "-", size, size]


def storage(size: int) -> list[object]:
    return ["10.77.2.2", 5000, "-", TALKS, size]


def codes(step: dict[str, Any]) -> list[str]:
    return [code for code, _, _ in step["findings"]]


def test_a_job_that_exchanges_over_tcp_falls_back_once_it_lasts(seen: Seen) -> None:
    both = {"exchange": [peer(WORKS), storage(READS)]}
    first, second, quiet = seen(both, both, {"exchange": [peer(TALKS)], "rdma_bytes": WORKS})
    assert (codes(first), codes(second), codes(quiet)) == ([], ["TCP_FALLBACK"], [])
    (_, device, evidence) = second["findings"][0]
    assert device == "job 17" and evidence["nodes"] == ["10.77.1.2"]
    assert evidence["tcp_bytes_with_the_jobs_nodes"] == pytest.approx(2 * WORKS, rel=0.1)
    assert evidence["tcp_bytes_with_others"] == pytest.approx(READS, rel=0.1)
