"""The collector finds agents by a real SLURM: nodes come by their addresses."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SECONDS = 120.0
SINFO = shutil.which("sinfo", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "/usr/bin/sinfo"


@pytest.fixture
def addressed(cluster: Any) -> Iterator[Any]:
    """The SLURM, each of whose nodes is at 127.0.0.1 before and after."""
    yield cluster
    cluster.update("n2", "NodeAddr=127.0.0.1")


def test_agents_are_the_nodes_of_a_partition_at_their_addresses(
    addressed: Any,
    start_agent: Callable[..., Any],
    start_collector: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setenv("SLURM_CONF", str(addressed.folder / "slurm.conf"))
    addressed.update("n2", "NodeAddr=127.0.0.2")
    start_agent("--web.listen-address", f"127.0.0.2:{port}", node="n2")
    config = tmp_path / "collector.yaml"
    config.write_text(
        f"target_slurm: ['debug:{port}']\nsinfo: {SINFO}\ndiscovery_interval_seconds: 0.5\nincidents_database: ''\n"
    )
    collector = start_collector("--interval", "0.5", "--config", str(config))

    def states() -> dict[str, str]:
        return {row["url"]: row["state"] for row in collector.get("/api/v1/nodes").json()["nodes"]}

    found = f"http://127.0.0.2:{port}"
    local = f"http://127.0.0.1:{port}"  # of all the other nodes, where no agent is
    collector.wait_until(lambda: states().get(found) == "up" and set(states()) == {local, found})
    assert not [it for it in collector.get("/api/v1/findings").json()["notes"] if it["kind"] == "discovery"]
