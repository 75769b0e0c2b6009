"""A training with DeepSpeed, ZeRO stage 1."""

import logging
import os
import time

import deepspeed
import torch
from callbacks import on_step_begin

log = logging.getLogger("train")
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "steps_per_print": 5,
}

if __name__ == "__main__":
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # no compiler is needed
    deepspeed.init_distributed("gloo")
    rank = int(os.environ["RANK"])
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    log.info("rank %d of %s is process %d on %s", rank, os.environ["WORLD_SIZE"], os.getpid(), os.uname().nodename)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    for step in range(400):
        on_step_begin(rank, step)
        loss = engine(torch.randn(4, 64)).square().mean()
        engine.backward(loss)
        engine.step()
        time.sleep(0.2)
