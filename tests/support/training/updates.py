"""Plain torch where not every backward pass is followed by an update: a scaler skips some, modules take turns."""

import torch
import torch.distributed as dist
from common import Model, finish, loader, print_result, tag_step
from torch.nn.parallel import DistributedDataParallel as DDP


def scaled() -> None:
    """Loss scaling that starts too high: the first updates are skipped, because their gradients overflow."""
    model = DDP(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-50)
    losses, scales = [], []
    for x in loader(6):
        loss = model(x)
        scaler.scale(loss * 100).backward()
        tag_step("scaled")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
        scales.append(scaler.get_scale())
    assert scales[0] < 2.0**126 and scales[-1] == scales[-2], scales
    print_result("scaled", losses, model.parameters())


def adversaries() -> None:
    """Two modules that are trained in turn."""
    critic, maker = DDP(Model()), DDP(torch.nn.Linear(16, 16))
    optimizers = [torch.optim.AdamW(module.parameters(), lr=1e-3) for module in (critic, maker)]
    losses = []
    for number, x in enumerate(loader(24)):
        trains_critic = number % 2 == 0
        critic.module.requires_grad_(trains_critic)
        loss = critic(x) if trains_critic else -critic.module(maker(x))
        loss.backward()
        optimizers[number % 2].step()
        optimizers[number % 2].zero_grad()
        losses.append(loss.detach())
    print_result("adversaries", losses, [*critic.parameters(), *maker.parameters()])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    scaled()
    adversaries()
    finish()


if __name__ == "__main__":
    main()
