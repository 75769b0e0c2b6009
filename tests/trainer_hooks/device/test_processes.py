"""Real processes whose collectives are gloo's, run behind the host by a lazy device: the whole path to the verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS

from laggard.cli import main

TRAIN = """
import os, random, sys, threading, time
import torch
import torch.distributed as dist
from support.lazy_device import LazyDevice, Network, as_torch
from support.lazy_cuda_device import LazyCudaDevice
from laggard.trainer_hooks.collectives.process_group import CollectiveMethod, hook_waits, instrument
from laggard.trainer_hooks.device.collectives import DeviceCollectives
from laggard.trainer_hooks.collectives.groups import ProcessGroups
from laggard.trainer_hooks.output.recording_folder import identify
from laggard.trainer_hooks.record.recorder import BACKWARD, FORWARD, OPTIMIZER, Recorder
from laggard.trainer_hooks.output.recording import RecordingSink

directory, cases = sys.argv[1], sys.argv[2:]
dist.init_process_group("gloo")
rank = dist.get_rank()
random.seed(rank)
device = LazyDevice(clock_offset=rank * 10**12)
second = device.new_stream()

class Training:
    def __init__(self, case):
        self.case, self.calls, self.result = case, None, torch.ones(1000)
        self.gpu = LazyCudaDevice(device, takes_all=True)
        sink = RecordingSink(os.path.join(directory, case), identify(os.environ))
        self.recorder = Recorder([sink], find_device=self.find)
        network = Network(device, lambda begin, tensor, group: dist.all_reduce(tensor, group=group))
        hook_waits(network.work_class, self.recorder)
        call, groups = CollectiveMethod("all_reduce", 0), ProcessGroups()
        groups.set_role_of_members("dp", range(dist.get_world_size()))
        self.reduce = as_torch(instrument(network.allreduce, call, self.recorder, groups, "allreduce"))

    def find(self, recorder):
        self.calls = self.calls or DeviceCollectives(self.gpu, recorder)
        return self.calls

    def phase(self, which, seconds, then=lambda: None):
        self.recorder.enter(which)
        device.work(seconds)
        then()
        self.recorder.leave()

    def communicate(self):
        if self.case == "overlapped":
            handle = self.reduce(self.result, async_op=True)
            device.work(0.03)
            handle.wait()
        elif self.case == "second_stream":
            with device.on(second):
                device.wait_for(device.main)
                self.reduce(self.result)
            device.work(0.01)
            self.calls.time_stream_wait(device.wait_for, second)
        else:
            self.reduce(self.result)

    def run(self):
        dist.barrier()
        time.sleep(0.0 if rank == 1 else 0.2)  # rank 1's host is the first to launch
        for step in range(24):
            time.sleep(random.random() * 0.01)
            self.phase(FORWARD, 0.01)
            self.phase(BACKWARD, 0.04 if rank == 1 and self.case != "healthy" else 0.015, self.communicate)
            self.phase(OPTIMIZER, 0.005)
            self.recorder.end_step(step + 1)
            if step % 4 == 3:
                device.synchronize()
        device.synchronize()
        self.recorder.close()
        assert self.recorder.totals.errors == self.recorder.totals.lost == 0, vars(self.recorder.totals)
        self.gpu.check()
        assert torch.allclose(self.result, torch.tensor(3.0**24)), "the collectives themselves went wrong"

for case in cases:
    Training(case).run()
dist.destroy_process_group()
"""


CASES = ("healthy", "sync", "overlapped", "second_stream")


@pytest.mark.wall_clock("2026-11-27, beside other tests: nobody was named")
@pytest.mark.slow
def test_the_rank_whose_device_is_late_is_named(
    launch: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    launch(script, [str(tmp_path), *CASES], ranks=3, hooks=False, extra={"PYTHONPATH": path})

    for case in CASES:
        status = main(["locate", "--trace", str(tmp_path / case), "--format", "json"])
        found = json.loads(capsys.readouterr().out)["culprits"]
        named = [(it["kind"], it["ranks"], it["phase"]) for it in found]
        if case == "healthy":  # where this machine hiccups, transfers truly take longer in some steps: no rank does
            assert not [it for it in named if it[0] != "slow_link"], named
        else:
            assert (status, named) == (1, [("slow_compute", [1], "backward")]), case

        files = [path.read_text().splitlines() for path in sorted((tmp_path / case).iterdir())]
        collectives = [it for it in map(json.loads, sum(files, [])) if it.get("kind") == "collective"]
        assert len(collectives) == 3 * 24 and {it["clock"] for it in collectives} == {"device"}
        first = min((it for it in collectives if it["step"] == 0), key=lambda it: it["issued"])
        assert first["rank"] == 1, "its host was to launch first"
