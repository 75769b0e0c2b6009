"""A job's rank that exchanges bytes, and what the agent's watch on the network makes of it: for tests inside network
namespaces and the virtual machine.

    traffic_seen.py < PLAN

PLAN is JSON: `{sys, nodes, steps: [{exchange: [[HOST, PORT, SOURCE, SEND, RECEIVE], ...], command: [...], rdma_bytes:
N}]}`. Each step exchanges what it says, runs the command, if any, adds to the stand-in for an RDMA device's counter in
`sys`, if it says so, and looks. Prints `SEEN:` and one JSON list with the findings and the traffic after each step.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from msgspec import structs

from laggard.agent.traffic.watch import TrafficWatch
from laggard.wire import encode
from laggard.wire.ranks import CollectiveTotal, RankRow

RANK = Path(__file__).with_name("exchanging_rank.py")


def row(pid: int, size_bytes: int) -> RankRow:
    total = CollectiveTotal("all_reduce", "dp", 1, 1.0, size_bytes)
    return RankRow(
        "17", 0, 0, 8, "n0", "0", 0, os.getuid(), pid, "", "running", 1, 1.0, 1.0, (), 0.0, (total,), None, None, 0
    )


class Job:
    def __init__(self, plan: dict[str, Any]) -> None:
        environ = {**os.environ, "SLURM_STEP_NODELIST": plan["nodes"]}
        command = [sys.executable, str(RANK), "rank"]
        pipe = subprocess.PIPE
        self.rank = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ)
        self.row = row(self.rank.pid, 0)
        self.sys = Path(plan["sys"])
        self.watch = TrafficWatch(lambda: (self.row,), plan["sys"])

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        assert self.rank.stdin and self.rank.stdout
        for words in step.get("exchange", ()):
            print(*words, file=self.rank.stdin, flush=True)
            assert self.rank.stdout.readline() == "done\n"
        if "command" in step:
            subprocess.run(
                step["command"], shell=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        if "rdma_bytes" in step:
            counter = self.sys / "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
            counter.write_text(f"{int(counter.read_text()) + step['rdma_bytes'] // 4}\n")
        total = self.row.collectives[0]
        total = structs.replace(total, bytes=total.bytes + (1 << 30))
        self.row = structs.replace(self.row, collectives=(total,))
        self.watch.look()
        findings = [[found.code, found.device, found.evidence] for found in self.watch.findings]
        return {"findings": findings, "traffic": [json.loads(encode(each)) for each in self.watch.traffic]}


def main() -> None:
    plan = json.load(sys.stdin)
    job = Job(plan)
    try:
        seen = [job.step(step) for step in ({}, *plan["steps"])][1:]
    finally:
        job.rank.kill()
        job.rank.wait()
    print("SEEN:" + json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
