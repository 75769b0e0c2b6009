"""Ray Train, with two workers on this machine, which has laggard beside torch; each attaches itself, by the one line.

    LAGGARD_RECORD_DIR=$PWD/recording python docs/examples/ray_train.py
    laggard locate --trace recording

Workers on other machines have the variable where `ray start` had it there, and write into a folder that all share.
"""

import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def train():
    import laggard.trainer_hooks

    model = prepare_model(torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    laggard.trainer_hooks.attach(model, optimizer)
    data = prepare_data_loader(torch.utils.data.DataLoader(torch.randn(16_000, 32), batch_size=8))
    for batch in data:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available())).fit()
