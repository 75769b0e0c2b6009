"""Ray Train, whose two workers attach laggard by the one line, where they are to be recorded."""

import os

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import report


def train():
    model = prepare_model(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if os.environ.get("LAGGARD_RECORD_DIR"):
        import laggard.trainer_hooks

        laggard.trainer_hooks.attach(model, optimizer)
    losses = []
    for batch in prepare_data_loader(loader(), add_dist_sampler=False):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        after_step(model.module)
    report(losses, model.parameters())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True, _temp_dir=os.environ["RAY_TMPDIR"])
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2, use_gpu=False)).fit()
