"""A small DeepSpeed training on CPU and gloo, for `laggard tune zero` and `deepspeed`: it takes its configuration
from a file, as trainings of users do, and contains nothing of laggard.

    laggard tune zero --gpus 2 --config CONFIG --command \\
        'torchrun --standalone --nproc-per-node 2 bench/trainings/tuned_training.py {config}'
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled, perhaps without a compiler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="DeepSpeed's")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = json.loads(options.config.read_text())
    width = options.width
    layers = [each for _ in range(options.layers) for each in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    micro, accumulation = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    rank = int(os.environ["RANK"])
    for step in range(options.steps):
        drawn = torch.Generator().manual_seed(1000 * step + rank)
        samples = torch.randn(micro * accumulation, width, generator=drawn)
        whole = 0.0
        for part in samples.split(micro):
            loss = (engine(part) - part).square().mean()
            engine.backward(loss)
            engine.step()
            whole += loss.item() / accumulation
        if rank == 0:
            print(f"step {step} loss: {whole:.6f}", flush=True)
    torch.distributed.destroy_process_group()
    time.sleep(0.5)  # gloo's threads may hold the last tensors while the interpreter ends


if __name__ == "__main__":
    main()
