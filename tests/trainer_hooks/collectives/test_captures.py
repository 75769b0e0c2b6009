"""Collectives that C++ makes while a CUDA graph is captured: nothing is asked then, and none of them is recorded."""

import json
from pathlib import Path

import pytest
from support.torch_version import GLOO_IS_RECORDED
from support.warm import Warm

CAPTURING = """
import json, sys, time, torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

class Graph:  # stands in for a capture: gloo's collectives run in it, and NCCL's would not
    def capture_begin(self):
        Graph.began, Graph.under_way = time.time_ns(), True
    def capture_end(self):
        Graph.ended, Graph.under_way = time.time_ns(), False

Graph.began = Graph.ended = Graph.under_way = 0
torch.cuda.CUDAGraph = Graph
dump = c10d._dump_fr_trace_json
asked_while_capturing = []

def dump_as_nccl(collectives, active):
    asked_while_capturing.append(bool(Graph.under_way and collectives))
    found = json.loads(dump(collectives, active))
    kept = [it for it in found.get("entries", []) if not Graph.began <= it["time_created_ns"] <= Graph.ended]
    return json.dumps({**found, **({"entries": kept} if "entries" in found else {})}).encode()

c10d._dump_fr_trace_json = dump_as_nccl
import laggard.trainer_hooks
from laggard.trainer_hooks.attach import session

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters())
laggard.trainer_hooks.attach(model, optimizer)
for step in range(12):
    captured = step == int(sys.argv[1])
    if captured:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
    model(torch.ones(2, 4)).sum().backward()
    if captured:
        graph.capture_end()
    optimizer.step()
recorder = session().recorder
recorder.drain()
counts = dict(zip((lane.op for lane in recorder.lanes()), recorder.totals.lanes[::3]))
print(json.dumps({
    "asked": any(asked_while_capturing), "all_reduces": counts["all_reduce"],
    "lost": recorder.totals.lost, "errors": recorder.totals.errors, "captured": session().native.captured,
}))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not GLOO_IS_RECORDED, reason="this torch's Flight Recorder does not hold gloo's collectives")
@pytest.mark.parametrize("step", [4, 8])
def test_what_ddp_launches_into_a_graph_is_neither_asked_about_nor_recorded(
    step: int, tmp_path: Path, warm_torch: Warm
) -> None:
    """After 8 passes the Flight Recorder is asked again, after 4 it is known what a pass makes."""
    environment = {"LAGGARD_RANK_DIR": str(tmp_path), "RANK": "0", "WORLD_SIZE": "1"}
    done = warm_torch.run(["-c", CAPTURING, str(step)], environment)
    assert done.returncode == 0, done.stderr
    expected = {"asked": False, "all_reduces": 11, "lost": 0, "errors": 0, "captured": 1}
    assert json.loads(done.stdout) == expected
