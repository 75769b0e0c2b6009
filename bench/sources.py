"""Measures how fast `laggard locate --trace` reads Flight Recorder dumps and profiler traces, and what memory it takes.

The dumps have 2,000 records with stacks of 20 frames, in the form in which torch writes them; one rank hangs. The
traces have the mix of events and the arguments of a GPU job's: for each kernel an operator of torch and a call of
CUDA's runtime. Each size is written and read by processes of their own, so that the peak of memory is the reader's.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common.figures import Figure, show

from laggard.locate.verdict import locate
from laggard.recording.reader import read_recording

DUMPS = (8, 64)
RECORDS = 2000
FRAMES = 20
TRACE_MIB = (20, 100)
KERNELS_A_STEP = 2000
OWN = (sys.executable, __file__, "--one")
MEMORY_MIB = {100: 100.0}
"""What reading a trace may take beside the interpreter with numpy and the 16 bytes for each kernel."""


def write_dumps(folder: Path, ranks: int) -> None:
    """Writes the dumps of a job in which rank 1 hangs."""
    frames = [{"name": f"function_{n}", "filename": "train.py", "line": n} for n in range(200)]
    for rank in range(ranks):
        entries = []
        for seq in range(1, RECORDS + (rank != 1)):
            done = seq < RECORDS
            entries.append(
                {
                    "frames": [frames[(seq + n) % len(frames)] for n in range(FRAMES)],
                    "record_id": seq,
                    "pg_id": 0,
                    "process_group": ("0", "default_pg"),
                    "thread_name": "python",
                    "thread_id": "140",
                    "collective_seq_id": seq,
                    "p2p_seq_id": 0,
                    "op_id": seq,
                    "profiling_name": "nccl:all_reduce",
                    "time_created_ns": 1_795_383_441_407_774_007 + seq,
                    "input_sizes": [[1024, 1024]],
                    "input_dtypes": ["Float"],
                    "output_sizes": [[1024, 1024]],
                    "output_dtypes": ["Float"],
                    "state": "completed" if done else "scheduled",
                    "time_discovered_started_ns": None,
                    "time_discovered_completed_ns": None,
                    "retired": done,
                    "timeout_ms": 600_000,
                    "is_p2p": False,
                }
            )
        members = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
        data = pickle.dumps({"version": "2.10", "pg_config": members, "pg_status": {}, "entries": entries}, 2)
        (folder / f"trace_{rank}").write_bytes(data)


def write_trace(path: Path, rank: int, mebibytes: int) -> int:
    """Writes a trace of so many MiB; returns how many events it has."""
    head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    count = 0
    with open(path, "w") as file:
        file.write(json.dumps(head, indent=1)[:-1] + ', "traceEvents": [\n')
        for text in _events():
            file.write(text + ",\n")
            count += 1
            if not count % 1000 and file.tell() > mebibytes << 20:
                break
        file.write("{}]}")
    return count


def _events() -> Iterator[str]:
    """Without end: kernels of 100 us and, after each KERNELS_A_STEP of them, a collective and the end of the step."""
    now = 1e9
    step = 0
    while True:
        length = KERNELS_A_STEP * 110.0 + 20_000.0
        yield _event("user_annotation", f"ProfilerStep#{step}", now, length, {"External id": step})
        for kernel in range(KERNELS_A_STEP):
            start = now + kernel * 110.0
            shapes = {
                "External id": kernel,
                "Input Dims": [[4096, 4096], [4096, 4096]],
                "Input type": ["float", "float"],
            }
            yield _event("cpu_op", "aten::mm", start, 20.0, shapes)
            yield _event("cuda_runtime", "cudaLaunchKernel", start + 2, 5.0, {"cbid": 211, "correlation": kernel})
            stream = {"stream": 7, "correlation": kernel, "grid": [32, 1, 1], "block": [256, 1, 1], "device": 0}
            yield _event("kernel", "ampere_sgemm_128x64_tn", start, 100.0, stream)
        metadata = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
                    "Group size": 2, "dtype": "Float", "Process Group Name": "0", "Seq": step,
                    "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"}  # fmt: skip
        yield _event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", now + length - 20_000, 20_000.0, metadata)
        now += length
        step += 1


def _event(category: str, name: str, start: float, length: float, args: dict[str, object]) -> str:
    event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length, "args": args}
    return json.dumps(event)


def measure(kind: str, size: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [*OWN, kind, str(size), str(folder)]
        written = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        amount = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
        what = f"{size if kind == 'dumps' else 2} {kind}, {written.strip()} records, {amount:.0f} MiB"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        began = time.process_time()
        recording = read_recording([folder])
        read = time.process_time() - began
        location = locate(recording.timings)
        judged = time.process_time() - began - read
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    expected = [(1,)] if kind == "dumps" else []
    assert [culprit.ranks for culprit in location.culprits] == expected, location
    budget = MEMORY_MIB.get(size) if kind == "traces" else None
    return [
        Figure(f"{what}: read, CPU time", read, "s", read, read),
        Figure(f"{what}: a second of CPU time reads", amount / read, "MiB", amount / read, amount / read),
        Figure(f"{what}: judged, CPU time", judged, "s", judged, judged),
        Figure(f"{what}: memory added at the peak", peak - before, "MiB", peak - before, peak - before, budget),
    ]


def write(kind: str, size: int, folder: Path) -> int:
    """Returns how many records it wrote."""
    if kind == "traces":
        return sum(write_trace(folder / f"rank-{rank}.json", rank, size) for rank in range(2))
    write_dumps(folder, size)
    return size * RECORDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dumps", type=int, nargs="*", default=DUMPS, help="how many dumps")
    parser.add_argument("--traces", type=int, nargs="*", default=TRACE_MIB, help="the MiB of each of two traces")
    parser.add_argument("--one", nargs="+", metavar="KIND SIZE [FOLDER]", help="reads one, or writes it to the folder")
    options = parser.parse_args()
    if options.one:
        kind, size, *folder = options.one
        if folder:
            print(f"{write(kind, int(size), Path(*folder)):,}")
            return 0
        return 0 if show("", measure(kind, int(size))) else 1
    sizes = [*(("dumps", size) for size in options.dumps), *(("traces", size) for size in options.traces)]
    return max(subprocess.run([*OWN, kind, str(size)], check=False).returncode for kind, size in sizes)


if __name__ == "__main__":
    raise SystemExit(main())
