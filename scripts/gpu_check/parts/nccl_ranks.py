"""Several ranks of NCCL on one GPU, which NCCL has since 2.30 (NCCL_MULTI_RANK_GPU_ENABLE=1; two ranks with its
defaults): what RAS, logs, dumps, hooks and rings are like between ranks. A rehearsal has gloo on the CPU.

Ranks without MPS take turns on the GPU, so that one that waits slows the other down: only who is slow is due.
"""

from __future__ import annotations

import lzma
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_check.jobs.launch import RAS_PORT, collect, job_environ, problem_of, run_ranks, scratch, start_ranks
from gpu_check.locating import locate, named
from gpu_check.nccl_library import PACKED
from gpu_check.outcome import REPOSITORY, CannotRun, Context, Outcome, info, judged, require_locate, torch_on_gpu

LEAST = (2, 30)
READY_SECONDS, DUMP_SECONDS, RAS_SECONDS = 40, 15, 12
REHEARSED_SECONDS = 300  # to be ready, on a CPU that does other work
SLOW, STEPS, BASE_MS, SLOW_MS = 1, 60, 15.0, 60.0


def run(context: Context, which: str) -> Iterator[Outcome]:
    environ = {} if context.rehearse else nccl_environ(context.out)
    yield from {"reduce": reduce, "behind": behind, "stopped": stopped, "slow": slow, "ring": ring}[which](
        context, environ
    )


def nccl_environ(out: Path) -> dict[str, str]:
    """The variables of the ranks. Raises CannotRun where there is no NCCL that can do it."""
    torch = torch_on_gpu()
    preload = {}
    if (REPOSITORY / PACKED).exists():
        library = out / "libnccl.so.2"
        library.write_bytes(lzma.decompress((REPOSITORY / PACKED).read_bytes()))
        preload = {"LD_PRELOAD": str(library)}
    elif torch.cuda.nccl.version()[:2] < LEAST:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        raise CannotRun(f"torch has NCCL {version}, and 2.30 is needed: scripts/gpu_check/nccl_library.py packs one")
    return preload | {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_MAX_CTAS": "2",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(out / "nccl.%h.%p.log"),
        "NCCL_RUN_RAS_DIAGNOSTICS": "1",
        "NCCL_RUN_DIAGNOSTICS": "1",
    }


def patience(context: Context) -> float:
    return REHEARSED_SECONDS if context.rehearse else READY_SECONDS


def reduce(context: Context, environ: Mapping[str, str]) -> Iterator[Outcome]:
    ranks = run_ranks(["reduce"], 2, patience(context), None, environ)
    results = [each.result or {} for each in ranks]
    text = problem_of(ranks) or f"NCCL {results[0]['nccl']}, {results[0]['ms']:.2f} ms"
    yield judged("the sum of two ranks", all(each.get("right") for each in results), text)
    logs = sorted(map(str, context.out.glob("nccl.*.log")))
    if logs:
        status, said = laggard("diagnose", *logs)
        yield judged("diagnose of NCCL's logs", status == 0, said)


class Ranks:
    """Two ranks that do not end by themselves; what they print goes into one file."""

    def __init__(self, context: Context, environ: Mapping[str, str], *words: str) -> None:
        extra = {**environ, "GPU_CHECK_DUMPS": str(context.out)}
        self._file = context.out / "ranks.txt"
        with self._file.open("w") as file:
            self.processes = start_ranks(words, 2, None, extra, stdout=file, stderr=subprocess.STDOUT)

    def __enter__(self) -> Ranks:
        return self

    def wait_for(self, word: str, seconds: float) -> bool:
        """Whether both have printed the word by then."""
        until = time.monotonic() + seconds
        while self._file.read_text(errors="replace").count(word) < 2:
            if time.monotonic() > until or any(each.poll() is not None for each in self.processes):
                return False
            time.sleep(0.1)
        return True

    def __exit__(self, *_: object) -> None:
        for each in self.processes:
            each.send_signal(signal.SIGCONT)
            each.kill()
        collect(self.processes, 10)


def behind(context: Context, environ: Mapping[str, str]) -> Iterator[Outcome]:
    if context.rehearse:
        raise CannotRun("gloo has neither RAS nor NCCL's dumps")
    require_locate()
    with Ranks(context, environ, "behind", "--base-ms", str(DUMP_SECONDS * 1000)) as ranks:
        yield judged("two ranks run", ranks.wait_for("READY", READY_SECONDS), "one of them is an all-reduce behind")
        yield ras(context.out / "ras-0.json")
        dumped = ranks.wait_for("DUMPED", 2 * DUMP_SECONDS)
        yield ras(context.out / "ras-1.json")
    if dumped:
        location, errors = locate(context.out)
        culprits = [each["ranks"] for each in location["culprits"]] if location else []
        yield judged("whom the dumps name", culprits == [[1]], named(location) if location else errors)


def stopped(context: Context, environ: Mapping[str, str]) -> Iterator[Outcome]:
    with Ranks(context, environ, "forever") as ranks:
        yield judged("two ranks run", ranks.wait_for("READY", patience(context)), "rank 1 is stopped then")
        ranks.processes[1].send_signal(signal.SIGSTOP)
        if not context.rehearse:
            time.sleep(RAS_SECONDS)
            yield ras(context.out / "ras.json")


def ras(path: Path) -> Outcome:
    """What RAS answers, kept in a file, and what laggard says of it."""
    from laggard.nccl.ras import RasError, ask

    try:
        path.write_bytes(ask("localhost", RAS_PORT))
    except RasError as error:
        return judged(f"RAS, {path.name}", False, str(error))
    return info(f"RAS, {path.name}", laggard("diagnose", str(path))[1])


def slow(context: Context, environ: Mapping[str, str]) -> Iterator[Outcome]:
    require_locate()
    slow_ms = 4 * SLOW_MS if context.rehearse else SLOW_MS
    words = ["ddp", "--steps", str(STEPS), "--base-ms", str(BASE_MS), "--slow", str(SLOW), "--slow-ms", str(slow_ms)]
    with scratch() as folder:
        ranks = run_ranks(words, 2, patience(context), Path(folder), environ)
        if problem := problem_of(ranks):
            yield judged("a slow rank", False, problem)
            return
        location, errors = locate(Path(folder) / "recording")
    yield judge_slow(location, errors)


def judge_slow(location: Any, errors: str) -> Outcome:
    if not location or "culprits" not in location:
        return judged("a slow rank", False, f"laggard locate: {errors}")
    found = [(each["ranks"], each["phase"]) for each in location["culprits"]]
    return judged("a slow rank", found == [([SLOW], "forward")], named(location))


def ring(context: Context, environ: Mapping[str, str]) -> Iterator[Outcome]:
    from laggard.demo.job import free_port

    for nodes in (2, 4):
        address = f"127.0.0.1:{free_port()}"
        words = ["ring", "--rendezvous", address, "--nodes", str(nodes), "--local-ranks", "1", "--max-bytes", "16M"]
        words += [
            "--seconds",
            "8",
            "--deadline",
            str(patience(context)),
            "--device",
            "cpu" if context.rehearse else "cuda",
        ]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "laggard", *words, "--node-rank", str(node)],
                env={**job_environ(None), **environ},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in range(nodes)
        ]
        ended = collect(processes, patience(context) + 5)
        (context.out / f"ring-{nodes}.txt").write_text("\n".join(each.errors for each in ended))
        statuses = [each.status for each in ended]
        yield judged(f"a ring of {nodes}", statuses == [0] * nodes, f"exit statuses {statuses}")


def laggard(*words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "laggard", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=job_environ(None), timeout=30)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return done.returncode, f"exit {done.returncode}: {' | '.join(lines)[:400]}"
