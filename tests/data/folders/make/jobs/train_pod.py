"""A training in four containers. It prints into a buffered standard output; LEAK_RANK keeps each step's predictions."""

import datetime
import os
import time

import torch
import torch.distributed as dist

if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    print(f"rank {rank}/{dist.get_world_size()} on {os.uname().nodename}: pid {os.getpid()}", flush=True)
    torch.manual_seed(rank)
    model = torch.nn.Linear(256, 256)
    predictions = []
    for step in range(4000):
        loss = model(torch.randn(32, 256)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if str(rank) == os.environ["LEAK_RANK"]:
            predictions.append(torch.ones(1 << 20))
        norm = sum(float(parameter.grad.norm()) for parameter in model.parameters())
        said = f"epoch=0 step={step} loss={loss.item():.6f} grad_norm={norm:.4f} lr=0.000300"
        print(f"{said} tokens={step * 8192} seq_len=256")
        model.zero_grad()
        time.sleep(0.05)
