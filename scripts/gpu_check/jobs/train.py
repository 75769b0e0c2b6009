"""The trainings of gpu-check, one KIND a run: `train.py KIND [--steps N] ...`. It knows nothing of laggard.

Each rank prints one line, RESULT and JSON: losses and a digest of the weights, bit by bit; what torch's Flight Recorder
holds; and times by events of its own. With GPU_CHECK_REHEARSAL=1 it trains on the CPU with gloo, beside the tests' lazy
device, which the hooks time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ON_CPU = os.environ.get("GPU_CHECK_REHEARSAL") == "1"
if ON_CPU:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch  # noqa: E402 - DeepSpeed's accelerator is chosen before
import torch.distributed as dist  # noqa: E402

from gpu_check.ending import end_with_parent  # noqa: E402
from gpu_check.jobs.launch import RAS_PORT  # noqa: E402
from gpu_check.jobs.loads import find_loads  # noqa: E402

WIDTH, BATCH = (64, 8) if ON_CPU else (512, 64)
REDUCED = 1 << 16 if ON_CPU else 1 << 22  # elements
SPIN_CYCLES = 20_000_000
DEVICE = torch.device("cpu")  # of this rank, from start() on


class Model(torch.nn.Module):
    """Four layers. `delay` is called in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)), torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 8)
        )
        self.delay: Callable[[], None] | None = None

    def forward(self, x: Any) -> Any:
        if self.delay is not None:
            self.delay()
        return self.layers(x)


class Stopwatch:
    """Times on the device by events that only this script knows of; on the CPU by its clock."""

    def __init__(self) -> None:
        self.forward: list[tuple[Any, Any]] = []

    @contextmanager
    def in_forward(self) -> Iterator[None]:
        before = stamp()
        yield
        self.forward.append((before, stamp()))

    def result(self) -> dict[str, float | None]:
        """In milliseconds; the first steps, in which much is set up, are left out."""
        synchronize()
        forward = [between(*pair) for pair in self.forward[3:]]
        return {"forward_ms": statistics.median(forward) if forward else None}


def stamp() -> Any:
    if ON_CPU:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(DEVICE))
    return event


def between(earlier: Any, later: Any) -> float:
    return (later - earlier) * 1e3 if ON_CPU else float(earlier.elapsed_time(later))


def synchronize() -> None:
    if not ON_CPU:
        torch.cuda.synchronize(DEVICE)


def choose_device(set_device: bool = True) -> torch.device:
    """Returns this rank's device, and makes it the current one where `set_device`."""
    global DEVICE
    if not ON_CPU:
        DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        if set_device:
            torch.cuda.set_device(DEVICE)
    return DEVICE


def start(set_device: bool = True) -> torch.device:
    """Joins the process group. Returns the device of this rank."""
    device = choose_device(set_device)
    together = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"  # NCCL 2.30: ranks may share a GPU
    shared = torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]) and not together
    dist.init_process_group("gloo" if ON_CPU or shared else "nccl")
    return device


def batches(count: int, device: torch.device) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for _ in range(count):
        yield torch.randn(BATCH, WIDTH, generator=generator).to(device)


def loss_of(output: Any) -> Any:
    return output.float().square().mean()


def train(model: Any, device: torch.device, steps: int) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch, losses = Stopwatch(), []
    for x in batches(steps, device):
        with watch.in_forward():
            output = model(x)
        loss = loss_of(output)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
    return {**numbers(losses, model), **watch.result()}


def ddp(options: argparse.Namespace, set_device: bool = True) -> dict[str, Any]:
    device = start(set_device)
    model = Model().to(device)
    if options.base_ms or options.slow == dist.get_rank():
        model.delay = delay(options, device)
    found = train(wrapped(model, device), device, options.steps)
    if device.type == "cuda" and dist.get_rank() == 0:
        free, total = torch.cuda.mem_get_info(0)
        found["gpu0_used_mib"] = (total - free) >> 20
    dist.barrier()  # the others have not ended before that is read
    return found


def no_set_device(options: argparse.Namespace) -> dict[str, Any]:
    return ddp(options, set_device=False)


def wrapped(model: Any, device: torch.device) -> Any:
    ids = [device.index] if device.type == "cuda" else None
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)


def delay(options: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    """What keeps this rank busy in each forward pass: a kernel, or the host where ranks share a GPU."""
    seconds = (options.base_ms + (options.slow_ms if options.slow == dist.get_rank() else 0)) / 1e3
    if device.type == "cpu" or dist.get_backend() == "gloo":
        return lambda: time.sleep(seconds)
    rate = cycles_per_second()
    return lambda: spin(int(seconds * rate))


def cycles_per_second() -> float:
    """Of the kernel that spins, on this GPU at its full clock rate."""
    until = time.perf_counter() + 1.5
    rate = 1.0
    while time.perf_counter() < until:
        before = stamp()
        spin(SPIN_CYCLES)
        after = stamp()
        synchronize()
        rate = SPIN_CYCLES / between(before, after) * 1e3
    return rate


def spin(cycles: int) -> None:
    with torch.cuda.device(DEVICE):
        torch.cuda._sleep(cycles)


def zero(stage: int) -> Callable[[argparse.Namespace], dict[str, Any]]:
    def run(options: argparse.Namespace) -> dict[str, Any]:
        device, deepspeed = start_deepspeed()
        model = Model().to(device)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
            config={**deepspeed_config(), "zero_optimization": {"stage": stage}},
        )
        watch, losses = Stopwatch(), []
        for x in batches(options.steps, device):
            with watch.in_forward():
                output = engine(x)
            loss = loss_of(output)
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach().clone())
        return {**numbers(losses, engine.module), **watch.result()}

    return run


def start_deepspeed() -> tuple[torch.device, Any]:
    import deepspeed

    if ON_CPU:
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles one
    device = choose_device()
    deepspeed.init_distributed(dist_backend="gloo" if ON_CPU else "nccl", verbose=False)
    return device, deepspeed


def deepspeed_config() -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
    }


def reduce(options: argparse.Namespace) -> dict[str, Any]:
    """All-reduces, whether their sums are right, and the median of their times."""
    tensor, times = torch.ones(REDUCED, device=start()), []
    for _ in range(20):
        tensor.fill_(1.0)
        synchronize()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        synchronize()
        times.append(time.perf_counter() - began)
    right = bool((tensor == dist.get_world_size()).all())
    return {"right": right, "ms": statistics.median(times) * 1e3, "nccl": None if ON_CPU else torch.cuda.nccl.version()}


def behind(options: argparse.Namespace) -> dict[str, Any]:
    """Rank 1 makes one all-reduce less than the others, which wait for it until somebody ends them. Each rank leaves
    the Flight Recorder's dump in the file DUMP_N that the variable GPU_CHECK_DUMPS names the folder of."""
    tensor = torch.ones(REDUCED, device=start())
    for _ in range(5):
        dist.all_reduce(tensor)
    synchronize()
    if dist.get_rank() != 1:
        dist.all_reduce(tensor, async_op=True)
    print("READY", flush=True)
    time.sleep(options.base_ms / 1e3)
    found = torch._C._distributed_c10d._dump_nccl_trace()
    Path(os.environ["GPU_CHECK_DUMPS"], f"dump_{dist.get_rank()}").write_bytes(found)
    print("DUMPED", flush=True)
    time.sleep(600)
    return {}


def forever(options: argparse.Namespace) -> dict[str, Any]:
    tensor = torch.ones(REDUCED, device=start())
    print("READY", flush=True)
    while True:
        dist.all_reduce(tensor)
        synchronize()
        time.sleep(0.01)


KINDS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "ddp": ddp,
    "no_set_device": no_set_device,
    "zero1": zero(1),
    "zero2": zero(2),
    "zero3": zero(3),
    "reduce": reduce,
    "behind": behind,
    "forever": forever,
}


def numbers(losses: list[Any], model: Any) -> dict[str, Any]:
    """The losses and a digest of this rank's weights."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        local = getattr(parameter, "_local_tensor", parameter)
        digest.update(local.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes() if local.numel() else b"")
    return {"losses": [float(loss).hex() for loss in losses], "weights": digest.hexdigest()}


def flight_recorder() -> dict[str, int] | None:
    """How many collectives of each name torch's Flight Recorder holds; None: it is off, or this torch has none. From
    torch 2.15 on each backend has a recorder of its own."""
    module = torch._C._distributed_c10d
    texts = [
        dump(lambda: module._dump_nccl_trace_json(True, False)),
        dump(lambda: module._dump_fr_trace_json(True, False)),
    ]
    entries: dict[tuple[str, int, int], dict[str, Any]] = {}
    for text in texts:
        for entry in json.loads(text).get("entries") or ():
            entries[entry["profiling_name"], int(entry["record_id"]), int(entry["time_created_ns"])] = entry
    return Counter(entry["profiling_name"] for entry in entries.values() if not entry["is_p2p"]) if entries else None


def dump(call: Callable[[], Any]) -> str:
    try:
        found = call()
    except (AttributeError, TypeError):
        return "{}"
    return (found.decode() if isinstance(found, bytes) else str(found)) or "{}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--slow", type=int, default=-1, metavar="RANK")
    parser.add_argument("--slow-ms", type=float, default=30.0)
    parser.add_argument("--base-ms", type=float, default=0.0)
    options = parser.parse_args()
    end_with_parent()
    os.environ["NCCL_RAS_ADDR"] = f"localhost:{RAS_PORT + int(os.environ['RANK'])}"  # one answers while another cannot
    if ON_CPU:
        find_loads()  # the hooks time a lazy device
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = KINDS[options.kind](options)
    synchronize()
    print("RESULT", json.dumps({**found, "seen": flight_recorder()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
