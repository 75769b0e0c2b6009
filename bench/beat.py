"""What a heartbeat costs the training: the CPU time of its thread, which is the most that it can hold the GIL."""

import os
import socket
import tempfile
import time

import torch
from common.figures import Figure, quartiles, show
from common.scratch import scratch

from laggard.rankfile import Lane
from laggard.rankfile.writer import RankFileWriter
from laggard.trainer_hooks.output.rank_file import Heartbeat, RankFileSink
from laggard.trainer_hooks.output.recording_folder import header, identify
from laggard.trainer_hooks.record.ending import Facts
from laggard.trainer_hooks.record.recorder import Recorder

LANES = 12  # of a job with tensor, pipeline and data parallelism
GROUPS = 6


def job(directory: str) -> tuple[Recorder, RankFileWriter]:
    """Returns the recorder and rank file of a process that has used its lanes, and whose process groups are known to
    torch's Flight Recorder."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"tcp://127.0.0.1:{port}")
    for _ in range(GROUPS):
        torch.distributed.all_reduce(torch.ones(1), group=torch.distributed.new_group([0]))
    writer = RankFileWriter(directory, header(identify(os.environ)))
    recorder = Recorder([RankFileSink(writer)], writer.words)
    for number in range(LANES):
        log = recorder.lane(Lane("all_reduce", "dp", f"dp:0-7#{number}"), range(8))
        for _ in range(100):
            log.append((log.next_word(), 1, 2, 1, 4096))
    return recorder, writer


def time_beats(recorder: Recorder, writer: RankFileWriter) -> Figure:
    heartbeat = Heartbeat(recorder.live, recorder.progress, Facts(), 1.0, [writer.write_beat], writer.write_facts)
    spent = []
    for _ in range(2000):
        began = time.thread_time_ns()
        heartbeat.beat()
        spent.append((time.thread_time_ns() - began) / 1e3)
    return quartiles("a beat, CPU time", spent, "us", 100.0)


def main() -> int:
    with tempfile.TemporaryDirectory(dir=scratch()) as directory:
        recorder, writer = job(directory)
        beat = time_beats(recorder, writer)
        share = Figure("CPU at one beat a second", beat.value / 1e4, "%", beat.low / 1e4, beat.high / 1e4)
        good = show(f"The heartbeat's cost ({LANES} lanes, {GROUPS + 1} process groups)", [beat, share])
        recorder.close()
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
