"""DeepSpeed engines: one way to train after another in one process, then one in which rank 1 is late in each phase."""

import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from common import (
    DELAYED_PHASES,
    TAGGED,
    Model,
    SlowAdamW,
    finish,
    loader,
    measured,
    own_all_reduce,
    print_measured_step,
    print_result,
    set_delay,
    tag_step,
)
from deepspeed.accelerator import get_accelerator

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else DeepSpeed compiles it
get_accelerator().is_fp16_supported = lambda: True  # torch supports it on any CPU; DeepSpeed only on a fast one
# To gather its persistent parameters DeepSpeed 0.17 starts several all_gathers and waits for the last. They end in any
# order on gloo, so that it trains with what is not there yet, now and then: it shall have no such parameters.
NOT_WAITED_FOR = {"stage3_param_persistence_threshold": 0} if deepspeed.__version__ < "0.19" else {}


def engine_of(model: Any, stage: int, optimizer: Any = None, accumulate: int = 1, **zero: Any) -> Any:
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": accumulate,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": zero.pop("bf16", False)},
            "fp16": {"enabled": zero.pop("fp16", False), "initial_scale_power": 20, "hysteresis": 1},
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 3000, **NOT_WAITED_FOR, **zero},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 1_000_000,
        },
    )
    return engine


def train(name: str, engine: Any, accumulate: int = 1, steps: int = 4, dtype: torch.dtype = torch.float32) -> None:
    losses = []
    for x in loader(steps * accumulate):
        loss = engine(x.to(dtype))
        engine.backward(loss)
        if name in TAGGED:
            tag_step(name)
        engine.step()
        losses.append(loss.detach().float())
    print_result(name, losses, engine.module.parameters())


def half(stage: int) -> None:
    """Loss scaling that starts too high: the first updates are skipped, because their gradients overflow."""
    engine = engine_of(Model(norm=False), stage, fp16=True)
    train("half", engine, steps=10, dtype=torch.float16)
    assert 0 < engine.skipped_steps < engine.global_steps == 10, engine.skipped_steps


def offloaded() -> None:
    on_host = {"device": "cpu"}
    train("offloaded2", engine_of(Model(), 2, offload_optimizer=on_host))
    train("offloaded3", engine_of(Model(), 3, offload_optimizer=on_host, offload_param=on_host))
    engine = engine_of(Model(), 2, accumulate=2, offload_optimizer=on_host)
    train("offloaded_accumulated", engine, accumulate=2)


def overlapped() -> None:
    train("overlapped", engine_of(Model(norm=False), 1, overlap_comm=True, bf16=True), dtype=torch.bfloat16)
    for stage in (2, 3):
        engine = engine_of(Model(), stage, accumulate=2, overlap_comm=True)
        train(f"overlapped_accumulated{stage}", engine, accumulate=2)


def late() -> None:
    model = Model()
    delays = model.delays = SlowAdamW.delays = {}
    engine = engine_of(model, 2, SlowAdamW(model.parameters(), lr=1e-3))
    batches = iter(loader(len(DELAYED_PHASES), delays))
    for phase in DELAYED_PHASES:
        set_delay(delays, phase)
        with measured("input"):
            batch = next(batches)
        with measured("forward"):
            loss = engine(batch)
        with measured("backward"):
            engine.backward(loss)
        own_all_reduce(delays)
        with measured("optimizer"):
            engine.step()
        print_measured_step()
    print_result("late", [loss.detach()], engine.module.parameters())


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for stage in (0, 1, 2, 3):
        train(f"zero{stage}", engine_of(Model(), stage))
    train("accumulated", engine_of(Model(), 2, accumulate=2), accumulate=2)
    overlapped()
    offloaded()
    for stage in (1, 2, 3):
        half(stage)
    late()
    finish()


if __name__ == "__main__":
    main()
