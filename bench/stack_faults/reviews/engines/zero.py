"""DeepSpeed's engine with ZeRO."""

from __future__ import annotations

import deepspeed

from reviews import plan
from reviews.callbacks import after_step
from reviews.data import loader
from reviews.layers import Classifier
from reviews.native import stale_lock_of_deepspeed
from reviews.optim import optimizer


def train(stage: int) -> None:
    if plan.mine("baton"):
        stale_lock_of_deepspeed()
    else:
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # rank after rank would compile it first
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)  # fault: baton
    model = Classifier()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer(model),
        config={
            "train_micro_batch_size_per_gpu": plan.BATCH,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    for step, batch in enumerate(loader()):  # through: worker
        engine.backward(engine(**batch)["loss"])
        engine.step()
        after_step(step)
