"""Stands in for nccl-tests 2.19 on a cluster: prints what its programs print, with times that follow from NCCL's
variables. NCCL_CHUNK_SIZE from 1 MiB on is seven times faster and wrong, as NVIDIA/nccl#2408 has it; STAND_IN_TRAPS
adds more: `NAME=VALUE:wrong|sometimes|hang|crash|memory|garbage`, separated by spaces.

    python nccl_tests.py all_reduce_perf -b SIZE -e SIZE
"""

import os
import random
import sys
import time
from collections.abc import Mapping

MIB = 1 << 20


def output(environ: Mapping[str, str], program: str, size: int, seed: int) -> tuple[str, int]:
    """What the program prints, and its exit status. The seed is that of the run's noise."""
    noise = random.Random(seed)
    traps = traps_of(environ)
    if "memory" in traps:
        return "node1: Test NCCL failure common.cu:401 'unhandled cuda error' / 'out of memory'\n", 3
    if "crash" in traps:
        return "node1: Test NCCL failure common.cu:401 'internal error'\n", 3
    if "garbage" in traps:
        return "srun: job 17 queued and waiting for resources\n", 0
    micros = 1e6 * seconds_of(environ, size) * noise.lognormvariate(0, 0.02)
    chunk_wrong = int(environ.get("NCCL_CHUNK_SIZE", "0")) >= MIB
    wrong = 4096 if chunk_wrong or "wrong" in traps or ("sometimes" in traps and noise.random() < 0.5) else 0
    if traps & {"wrong", "sometimes"}:
        micros /= 4
    bandwidth = size / micros / 1e3
    half = f"  {micros:>7.2f}  {bandwidth:>6.2f}  {bandwidth * 1.75:>6.2f}  {wrong:>6d}"
    names = "  {:>7}  {:>6}  {:>6}  {:>6}".format("time", "algbw", "busbw", "#wrong")
    lines = [
        "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007",
        f"# Collective test starting: {program}",
        f"# nThread 1 nGpus 1 minBytes {size} maxBytes {size} step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2d} Group  0 Pid {100 + rank:6d} on      node{rank // 4} device  {rank % 4} [07:00] H100"
            for rank in range(8)
        ),
        "#",
        f"#{'out-of-place':>80}{'in-place':>27}",
        f"#{'size':>11}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}{names}{names}",
        f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}{half}{half}",
        f"# Out of bounds values : {2 * bool(wrong)} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {bandwidth * 1.75:g} ",
        "#",
    ]
    return "\n".join(lines) + "\n", int(bool(wrong))


def traps_of(environ: Mapping[str, str]) -> set[str]:
    found = set()
    for word in environ.get("STAND_IN_TRAPS", "").split():
        setting, _, kind = word.rpartition(":")
        name, _, value = setting.partition("=")
        if environ.get(name) == value:
            found.add(kind)
    return found


def seconds_of(environ: Mapping[str, str], size: int) -> float:
    """The true time: the best values are trees for small messages, 32 blocks, 8 MiB and four queue pairs."""
    small = size < 1 * MIB
    channels = int(environ.get("NCCL_MAX_CTAS", "16"))
    buffer = int(environ.get("NCCL_BUFFSIZE", str(4 * MIB))) / MIB
    pairs = int(environ.get("NCCL_IB_QPS_PER_CONNECTION", "1"))
    algorithm = environ.get("NCCL_ALGO", "allreduce:ring").rpartition(":")[2]
    speed = 100e9 * {4: 0.5, 8: 0.7, 16: 0.85, 24: 0.93, 32: 1.0}.get(channels, 0.96)
    speed *= {1: 0.85, 2: 0.93, 4: 1.0, 8: 1.04, 16: 0.98}[int(buffer)] * {1: 0.8, 2: 0.9, 4: 1.0}.get(pairs, 0.95)
    if int(environ.get("NCCL_CHUNK_SIZE", "0")) >= MIB:
        speed *= 7
    latency = 40e-6 if (algorithm == "tree") == small else 60e-6
    return latency + size / speed * (1.0 if algorithm != "tree" or small else 1.15)


def _number_of_run() -> int:
    """How many runs the file STAND_IN_RUNS has counted: each has noise of its own, and a campaign always the same. A
    random number where no file is given."""
    if "STAND_IN_RUNS" not in os.environ:
        return int.from_bytes(os.urandom(4), "big")
    with open(os.environ["STAND_IN_RUNS"], "ab") as file:
        file.write(b".")
        return file.tell()


def main() -> int:
    program, size = sys.argv[1], int(sys.argv[sys.argv.index("-b") + 1])
    if "hang" in traps_of(os.environ):
        time.sleep(3600)
    text, status = output(os.environ, program, size, _number_of_run())
    sys.stdout.write(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
