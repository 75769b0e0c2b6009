"""How many of NCCL's lines a second of CPU time reads: of a job's start with NCCL_DEBUG=INFO, plain and behind what
launchers put in front, and of warnings that repeat themselves. `laggard diagnose` reads a job's output so, with what
else the job printed; the rate of that is beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from common.figures import Figure, quartiles, show

from laggard.diagnose.job.reader import JobLogReader
from laggard.nccl.log.reader import NcclLogReader

RANKS = 64
ROUNDS = 7
BUDGET = 10.0  # us a line, so that what diagnose reads at most of a log takes three seconds

Feed = Callable[[str], None]


def start_of_a_rank(rank: int) -> list[str]:
    """What rank `rank` of an eight-GPU node prints of a communicator's start, as NCCL 2.2x does."""
    head = f"gpu{rank // 8:02d}:{4000 + rank}:{5000 + rank} [{rank % 8}] NCCL INFO "
    texts = [
        "Bootstrap : Using eth0:10.0.0.7<0>",
        "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.0.0.7<0>",
        "Using network IB",
        f"comm 0x55d0c0de{rank:04x} rank {rank} nranks {RANKS} cudaDev {rank % 8} busId {rank % 8}b000 - Init START",
        "NVLS multicast support is available on dev 0",
        *(f"Channel {n:02d}/0 : {rank}[{rank % 8}] -> {(rank + 1) % RANKS}[0] via P2P/CUMEM" for n in range(16)),
        *(f"Channel {n:02d}/0 : {rank}[{rank % 8}] -> {(rank + 8) % RANKS}[0] [send] via NET/IB/{n % 8}/GDRDMA"
          for n in range(16)),
        "Trees [0] 1/-1/-1->0->8 [1] 1/-1/-1->0->-1",
        "Connected all rings",
        f"comm 0x55d0c0de{rank:04x} rank {rank} nranks {RANKS} cudaDev {rank % 8} busId {rank % 8}b000 - Init COMPLETE",
    ]  # fmt: skip
    return [head + text for text in texts]


def logs() -> dict[str, str]:
    """Texts of some ten thousand lines each. The ranks' lines are mixed, as in one file of all."""
    by_rank = [start_of_a_rank(rank) for rank in range(RANKS)]
    mixed = [line for lines in zip(*by_rank, strict=True) for line in lines]
    prefixed = [f"{number % 8}: [rank{number % RANKS}]: {line}" for number, line in enumerate(mixed)]
    dated = [f"2026-05-21T15:43:03.{number % 10**6:06d}Z {line}" for number, line in enumerate(mixed)]
    warned = [f"gpu07:81:9 [4] NCCL WARN call {call} failed, error {call}" for call in range(10_000)]
    texts = {"INFO": mixed * 4, "INFO behind ranks": prefixed * 4, "INFO behind dates": dated * 4, "WARN": warned}
    return {name: "\n".join(lines) + "\n" for name, lines in texts.items()}


def rate(name: str, text: str, readers: Callable[[], Sequence[Feed]], budget: float | None) -> Figure:
    """Microseconds of CPU time a line."""
    lines = text.count("\n")
    times = []
    for _ in range(ROUNDS):
        feeds = readers()
        began = time.process_time()
        for feed in feeds:
            feed(text)
        times.append((time.process_time() - began) / lines * 1e6)
    return quartiles(name, times, "us", budget)


def nccl_alone() -> Sequence[Feed]:
    return (NcclLogReader().feed,)


def as_diagnose() -> Sequence[Feed]:
    job = JobLogReader()
    job.begin_file()
    return job.feed, NcclLogReader().feed


def main() -> int:
    figures = []
    for name, text in logs().items():
        figures.append(rate(f"{name}, a line", text, nccl_alone, None))
        figures.append(rate(f"{name}, a line of a job's output", text, as_diagnose, BUDGET))
    return 0 if show("NCCL's lines", figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
