"""`laggard diagnose` on a log of 1 GiB: time, CPU time and memory to the answer. The budget is of CPU time, to which
other work on the machine adds little. The log is a job's with eight ranks, one of which runs out of GPU memory at the
end; a quarter of it packed; one that is all errors; and a gzip file that unpacks to 2 GiB of nothing."""

import argparse
import gzip
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20
MEMORY_BUDGET_MIB = 100
SPEED_BUDGET = 100e6

_PEAK = (
    "import sys; from laggard.cli import main; main(['diagnose', sys.argv[1]]);"
    "sys.stderr.write(open('/proc/self/status').read())"
)
_LOST = (
    "torch.distributed.DistBackendError: NCCL error in: x.hpp:268, remote process exited or there was a network error"
)


class Run(NamedTuple):
    seconds: float
    cpu_seconds: float
    peak_mib: int
    answer: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024, help="of a log")
    size = parser.parse_args().mebibytes
    with tempfile.TemporaryDirectory() as folder:
        cases = make_logs(Path(folder), size)
        print("\n| file | size | time | CPU time | a second of CPU time | memory | budget | |")
        print("|---|---|---|---|---|---|---|---|")
        return int(not all([show(name, path, budget) for name, path, budget in cases]))


def show(name: str, path: Path, speed_budget: float | None) -> bool:
    """Prints the row of one file. Returns whether it is within its budgets."""
    run, size = diagnose(path), path.stat().st_size
    speed = size / run.cpu_seconds
    good = run.peak_mib <= MEMORY_BUDGET_MIB and (speed_budget is None or speed >= speed_budget)
    budget = f"{MEMORY_BUDGET_MIB} MiB" + (f", {speed_budget / 1e6:.0f} MB/s" if speed_budget else "")
    times = f"{run.seconds:.2f} s | {run.cpu_seconds:.2f} s | {speed / 1e6:.0f} MB/s"
    row = f"{size / (1 << 20):.1f} MiB | {times} | {run.peak_mib} MiB"
    print(f"| {name} | {row} | {budget} | {'ok' if good else 'OVER'} |", flush=True)
    return good


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def diagnose(path: Path) -> Run:
    start, before = time.monotonic(), _children_cpu()
    done = subprocess.run([sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True)
    seconds = time.monotonic() - start
    peak = re.search(r"VmHWM:\s+(\d+)", done.stderr)
    assert peak is not None, done.stderr
    return Run(seconds, _children_cpu() - before, int(peak[1]) >> 10, done.stdout)


def make_logs(folder: Path, mebibytes: int) -> list[tuple[str, Path, float | None]]:
    block = "".join(
        f"[rank{rank}]: 2026-05-21 15:43:03,100 INFO step {step} | loss: 2.{step:03d} | lr 1e-4 | 412 ms\n"
        for step in range(1000)
        for rank in range(8)
    ).encode()
    end = b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    end += b"".join(f"[rank{rank}]: {_LOST}\n".encode() for rank in range(8))
    noise = b"".join(f"gpu07:81:9 [4] NCCL WARN call {call} failed, error {call}\n".encode() for call in range(9999))
    with open(folder / "job.log", "wb") as log:
        for _ in range(mebibytes * MIB // len(block)):
            log.write(block)
        log.write(end)
    with gzip.open(folder / "job.gz", "wb", compresslevel=1) as packed:
        for _ in range(mebibytes * MIB // 4 // len(block)):
            packed.write(block)
        packed.write(end)
    with open(folder / "noise.log", "wb") as log:
        for _ in range(mebibytes * MIB // len(noise)):
            log.write(noise)
        log.write(end)
    with gzip.open(folder / "bomb.gz", "wb", compresslevel=9) as bomb:
        for _ in range(2 * mebibytes):
            bomb.write(bytes(MIB))
    return [
        ("a job's log", folder / "job.log", SPEED_BUDGET),
        ("a quarter of it, gzip", folder / "job.gz", None),
        ("a log that is all errors", folder / "noise.log", SPEED_BUDGET),
        ("zeros, twice as many, gzip", folder / "bomb.gz", None),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
