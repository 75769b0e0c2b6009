"""A slow node of a real SLURM: named, confirmed against peers with swapped places over links with a rate, left out of
the next job, and back by itself after its time.

SLURM, the ring, the links and the collector are real. The agents stand in for those of four nodes, and tell of a job of
which one rank was slow."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.namespaces import Namespaces, can_make
from support.paths import REPOSITORY
from support.transcript import commands_of, run
from support.waiting import wait_for

from laggard.suspects.scheduler import hostlist

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_make(), reason="needs root and network namespaces"),
]
NODES = ("n1", "n2", "n3", "n4")
LONG = 400.0
SECONDS = 60
"""The time for which a node is left out here."""

ON_A_NODE = """#!/bin/bash
export MASTER_ADDR=10.77.0.2 OMP_NUM_THREADS=1 PYTHONPATH={source} LAGGARD_STATE_DIR={folder}
spaces=({spaces})
exec ip netns exec ${{spaces[${{SLURMD_NODENAME#n}} - 1]}} {python} -m laggard "$@"
"""
HERE = """#!/bin/bash
exec {laggard} "$@" --collector {url}
"""
PAGE = REPOSITORY / "docs" / "tasks" / "exclude.md"
JOB = "#!/bin/bash\nsrun sh -c 'echo $SLURMD_NODENAME'\n"


class Fleet:
    """`agents`: of the four nodes, by name. `laggard`: the command, as root runs it where SLURM is."""

    def __init__(self, cluster: Any, agents: dict[str, Any], collector: Any, token: Path, make: Any) -> None:
        self.cluster, self.agents, self.collector, self._token, self.make = cluster, agents, collector, token, make

    def laggard(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        script = str(self.cluster.folder / "laggard")
        where = ("--collector", self.collector.url)
        done: subprocess.CompletedProcess[str] = self.cluster.run(script, command, *where, *words, seconds=LONG)
        return done

    def exclude(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.laggard("exclude", *words)

    def confirm(self, node: str, *words: str) -> subprocess.CompletedProcess[str]:
        program = str(self.cluster.folder / "on-a-node.sh")
        kept = ("--token-file", str(self._token), "--laggard", program, "--deadline", "300", "--seconds", "240")
        return self.laggard("confirm", node, *kept, *words)

    def train(self, slow: str) -> None:
        """A job runs on all nodes, and its rank on `slow` makes the others wait: until it is named. Then it ends."""
        rank = NODES.index(slow)
        for number, node in enumerate(NODES):
            self.agents[node].ranks = self.make.training(node, [number], slow=rank)
        self.collector.wait_until(lambda: self._incidents(slow))
        for number, node in enumerate(NODES):
            self.agents[node].ranks = self.make.node(node, [number], slow=rank, state="finished", pid=0)

    def _incidents(self, node: str) -> list[dict[str, Any]]:
        incidents: list[dict[str, Any]] = self.collector.get("/api/v1/incidents", node=node).json()["incidents"]
        return incidents

    def confirmation(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self._incidents(node)[0]["confirmation"]
        return found

    def submit(self, nodes: int) -> list[str]:
        """Runs a job on so many nodes, submitted as the page says. Returns the nodes on which it ran."""
        folder = self.cluster.folder
        (folder / "job.sh").write_text(JOB)
        exclude = shlex.join((str(folder / "laggard"), "exclude", "--collector", self.collector.url))
        line = f'sbatch --wait -N{nodes} --output={folder}/out --exclude="$({exclude})" {folder}/job.sh'
        done = self.cluster.run("bash", "-c", line, seconds=LONG)
        assert done.returncode == 0, done.stderr
        return sorted((folder / "out").read_text().split())

    def wait_until_nobody_is_out(self) -> None:
        wait_for(lambda: not self.exclude().stdout, lambda: "its time does not end", 2 * SECONDS + 60)
        assert self.exclude().returncode == 0


@pytest.fixture
def spaces(cluster: Any) -> Iterator[Namespaces]:
    with Namespaces(4, "200mbit") as made:
        names = shlex.join(made.enter(node)[-1] for node in range(4))
        script = cluster.folder / "on-a-node.sh"
        source = REPOSITORY / "src"
        script.write_text(ON_A_NODE.format(source=source, python=sys.executable, spaces=names, folder=cluster.folder))
        script.chmod(0o755)
        yield made


@pytest.fixture
def fleet(
    cluster: Any,
    spaces: Namespaces,
    make: Any,
    fake_agent: Callable[..., Any],
    start_collector: Callable[..., Any],
    tmp_path: Path,
) -> Fleet:
    agents = {node: fake_agent(make.ranks_document(node, []), make.report(node)) for node in NODES}
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    settings = {
        "targets": [agent.url for agent in agents.values()],
        "interval_seconds": 0.3,
        "report_interval_seconds": 0.3,
        "confirm_token_file": str(token),
        "incidents_database": str(tmp_path / "incidents.sqlite"),
        "exclude_seconds": SECONDS,
    }
    config = tmp_path / "collector.json"  # JSON is YAML
    config.write_text(json.dumps(settings))
    collector = start_collector("--config", str(config))
    ready = lambda: all(row["verdict"] == "ok" for row in collector.get("/api/v1/nodes").json()["nodes"])  # noqa: E731
    collector.wait_until(ready)
    return Fleet(cluster, agents, collector, token, make)


def test_a_slow_node_is_confirmed_left_out_and_back_after_its_time(fleet: Fleet, spaces: Namespaces) -> None:
    assert (fleet.exclude().returncode, fleet.exclude().stdout) == (0, "")
    spaces.shape(2, "10mbit")
    fleet.train(slow="n3")
    assert (fleet.exclude().returncode, fleet.exclude().stdout) == (0, ""), "one job's word about one rank"
    assert "not left out: laggard confirm n3 measures it" in fleet.exclude("--explain").stdout

    holder = fleet.cluster.run("sbatch", "-w", "n3", "--output=/dev/null", "--wrap", "sleep 300").stdout.split()[-1]
    fleet.cluster.wait_for_state("n3", "mix")
    held = fleet.confirm("n3")
    assert (held.returncode, f"n3 is held by job {holder} of root" in held.stdout) == (2, True), held
    fleet.cluster.run("scancel", holder)
    fleet.cluster.wait_settled("n3")

    done = fleet.confirm("n3")
    assert done.returncode == 1, done
    assert done.stdout.startswith("n3 is confirmed as slow: it was slower with each of 3 peers, in both places ("), done
    kept = fleet.confirmation("n3")
    assert (kept["outcome"], sorted(kept["peers"])) == ("confirmed", ["n1", "n2", "n4"])
    assert kept["rate_ratio"] < 0.5 and len(kept["swaps"]) == 12
    assert {(swap["first"], swap["second"]) for swap in kept["swaps"]} >= {("n3", "n1"), ("n1", "n3")}

    told = fleet.exclude("--explain")
    assert told.stdout.startswith("1 node to leave out.\nn3: measured against n1, n2, n4: it was slower"), told
    assert fleet.submit(nodes=3) == ["n1", "n2", "n4"]
    fleet.wait_until_nobody_is_out()
    assert fleet.submit(nodes=4) == ["n1", "n2", "n3", "n4"]  # sbatch takes --exclude= for nobody


def test_the_page_is_as_a_reader_goes_through_it(fleet: Fleet, tmp_path: Path) -> None:
    fleet.agents["n2"].report = fleet.make.report("n2", ["DISK_FULL"])
    fleet.collector.wait_until(lambda: bool(fleet.collector.get("/api/v1/exclusions").json()["exclusions"]))
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "laggard").write_text(HERE.format(laggard=fleet.cluster.folder / "laggard", url=fleet.collector.url))
    (folder / "laggard").chmod(0o755)
    environment = {**os.environ, "SLURM_CONF": str(fleet.cluster.folder / "slurm.conf")}
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    (command,) = commands_of(PAGE)
    run(command, environment, tmp_path)


def test_slurm_reads_the_list_as_it_is_written(cluster: Any) -> None:
    names = ["n08", "n09", "n10", "n1", "n2", "n01", "gpu-a3", "gpu-a4-ib0", "x"]
    done = cluster.run("scontrol", "show", "hostnames", hostlist(names))
    assert sorted(done.stdout.split()) == sorted(names), done


def test_names_that_slurm_does_not_know_are_left_away(fleet: Fleet, make: Any) -> None:
    """A node that was renamed or taken out: with its name in --exclude, sbatch refuses the job."""
    fleet.agents["n4"].ranks, fleet.agents["n4"].report = (
        make.ranks_document("n99", []),
        make.report("n99", ["DISK_FULL"]),
    )
    fleet.collector.wait_until(lambda: bool(fleet.collector.get("/api/v1/exclusions").json()["exclusions"]))
    refused = fleet.cluster.run("sbatch", "--exclude=n99", "--wrap", "true")
    assert refused.returncode != 0 and "Invalid node name" in refused.stderr, refused
    assert fleet.exclude("--scheduler", "none").stdout == "n99\n"
    assert (fleet.exclude().returncode, fleet.exclude().stdout) == (0, "")
    assert json.loads(fleet.exclude("--json").stdout)["not_known"] == ["n99"]
